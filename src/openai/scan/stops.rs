//! Where the strings of a JSON text may end: 64 bytes at a glance, since code and prose have an escape in every line.

/// Bytes that are looked at together, one for each bit of a word.
const BLOCK: usize = 64;

/// The places of quotes, backslashes and control characters, found block by block.
pub(super) struct Stops {
    /// Where the block begins that was looked at last.
    from: usize,
    /// Its places, the lowest bit first.
    marks: u64,
}

impl Stops {
    /// Nothing was looked at.
    pub(super) fn new() -> Self {
        Self { from: usize::MAX, marks: 0 }
    }

    /// The first place of `text` at `at` or behind it; always of the same text.
    pub(super) fn next(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let block = at / BLOCK * BLOCK;
        if self.from != block {
            self.look(text, block)?;
        }
        let mut marks = self.marks & (u64::MAX << (at % BLOCK));
        while marks == 0 {
            self.look(text, self.from + BLOCK)?;
            marks = self.marks;
        }
        Some(self.from + usize::try_from(marks.trailing_zeros()).ok()?)
    }

    fn look(&mut self, text: &[u8], from: usize) -> Option<()> {
        let rest = text.get(from..).filter(|rest| !rest.is_empty())?;
        self.from = from;
        self.marks = match rest.first_chunk() {
            Some(block) => marks(block),
            None => {
                let mut block = [b' '; BLOCK];
                block[..rest.len()].copy_from_slice(rest);
                marks(&block)
            }
        };
        Some(())
    }
}

/// A bit for each place. Without a branch: the compiler makes vector instructions of the first loop, and the second gathers
/// eight zeros and ones by one multiplication.
fn marks(block: &[u8; BLOCK]) -> u64 {
    let mut ones = [0_u8; BLOCK];
    for (one, &byte) in ones.iter_mut().zip(block) {
        *one = u8::from((byte == b'"') | (byte == b'\\') | (byte < b' '));
    }
    let (eights, _) = ones.as_chunks::<8>();
    let bits = eights.iter().map(|eight| u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56);
    bits.rev().fold(0, |marks, bits| marks << 8 | bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found_wherever_it_lies() {
        let is_stop = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
        for byte in 0..=u8::MAX {
            for len in [1, 63, 64, 65, 130] {
                for at in [0, 1, 7, 8, 62, 63, 64, 129] {
                    let mut text = vec![b'a'; len];
                    let Some(place) = text.get_mut(at) else { continue };
                    *place = byte;
                    let mut stops = Stops::new();
                    assert_eq!(stops.next(&text, 0), is_stop(byte).then_some(at), "{byte} at {at} of {len}");
                    assert_eq!(stops.next(&text, at + 1), None);
                    assert_eq!(stops.next(&text, at), is_stop(byte).then_some(at), "{byte} at {at} of {len}, again");
                }
            }
        }
        assert_eq!(marks(&[b'"'; BLOCK]), u64::MAX);
    }
}
