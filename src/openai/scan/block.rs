//! 64 bytes of a text at a glance.

use wide::u8x64;

/// Bytes that are looked at together: one for each bit of a word.
pub(super) const BLOCK: usize = 64;

/// The bytes themselves.
#[derive(Clone, Copy)]
pub(super) struct Block(u8x64);

impl Block {
    #[inline]
    pub(super) fn new(bytes: &[u8; BLOCK]) -> Self {
        Self(u8x64::new(*bytes))
    }

    /// The first bytes of `text`, and spaces behind them where it ends sooner.
    #[inline]
    pub(super) fn padded(text: &[u8]) -> Self {
        match text.first_chunk() {
            Some(block) => Self::new(block),
            None => {
                let mut block = [b' '; BLOCK];
                block[..text.len()].copy_from_slice(text);
                Self::new(&block)
            }
        }
    }

    /// Those that are `byte`: a bit for each, the lowest for the first.
    #[inline]
    pub(super) fn is(self, byte: u8) -> u64 {
        self.0.simd_eq(u8x64::splat(byte)).to_bitmask()
    }

    /// Those that are a digit.
    #[inline]
    pub(super) fn is_digit(self) -> u64 {
        // Of what differs from a digit's upper half no bit is left below 10.
        Self(self.0 ^ u8x64::splat(b'0')).is_at_most(9)
    }

    /// Those that are a quote or a control character.
    #[inline]
    pub(super) fn is_quote_or_control(self) -> u64 {
        // A quote changes places with the space, and is then the first behind the control characters.
        Self(self.0 ^ u8x64::splat(b'"' ^ b' ')).is_at_most(b' ')
    }

    /// Those that are `most` or less.
    #[inline]
    fn is_at_most(self, most: u8) -> u64 {
        self.0.simd_le(u8x64::splat(most)).to_bitmask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_at_every_place() {
        for byte in 0..=u8::MAX {
            for at in 0..BLOCK {
                let mut bytes = [b'a'; BLOCK];
                bytes[at] = byte;
                let block = Block::new(&bytes);
                let expected = |is: bool| if is { 1 << at } else { 0 };
                assert_eq!(block.is_digit(), expected(byte.is_ascii_digit()), "{byte} at {at}");
                assert_eq!(block.is_quote_or_control(), expected(byte == b'"' || byte < b' '), "{byte} at {at}");
                assert_eq!(block.is(b'\\'), expected(byte == b'\\'), "{byte} at {at}");
            }
        }
    }

    #[test]
    fn behind_the_end_of_a_text_there_are_spaces() {
        for len in 0..=BLOCK + 1 {
            let spaces = Block::padded(&vec![b'a'; len]).is(b' ');
            assert_eq!(spaces, u64::MAX.checked_shl(u32::try_from(len).unwrap()).unwrap_or(0), "{len}");
        }
    }
}
