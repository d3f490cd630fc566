//! 64 bytes of a text at a glance.

use wide::u8x64;

/// Bytes that are looked at together: one for each bit of a word.
pub(crate) const STRIDE: usize = 64;

/// The bytes themselves.
#[derive(Clone, Copy)]
pub(crate) struct Stride(u8x64);

impl Stride {
    #[inline]
    pub(crate) fn new(bytes: &[u8; STRIDE]) -> Self {
        Self(u8x64::new(*bytes))
    }

    /// The first bytes of `text`, and spaces behind them where it ends sooner.
    #[inline]
    pub(crate) fn padded(text: &[u8]) -> Self {
        match text.first_chunk() {
            Some(block) => Self::new(block),
            None => {
                let mut block = [b' '; STRIDE];
                block[..text.len()].copy_from_slice(text);
                Self::new(&block)
            }
        }
    }

    /// Those that are `byte`: a bit for each, the lowest for the first.
    #[inline]
    pub(crate) fn is(self, byte: u8) -> u64 {
        self.0.simd_eq(u8x64::splat(byte)).to_bitmask()
    }

    /// Those that are one or the other.
    #[inline]
    pub(crate) fn is_either(self, one: u8, other: u8) -> u64 {
        (self.0.simd_eq(u8x64::splat(one)) | self.0.simd_eq(u8x64::splat(other))).to_bitmask()
    }

    /// Those that are an ASCII letter or digit.
    #[inline]
    pub(crate) fn is_alphanumeric(self) -> u64 {
        // One case; what is below the first letter wraps around.
        let letter = at_most((self.0 | u8x64::splat(0x20)) - u8x64::splat(b'a'), b'z' - b'a');
        (letter | at_most(self.0 - u8x64::splat(b'0'), 9)).to_bitmask()
    }

    /// Those that are an ASCII character which is seen.
    #[inline]
    pub(crate) fn is_graphic(self) -> u64 {
        at_most(self.0 - u8x64::splat(b'!'), b'~' - b'!').to_bitmask()
    }

    /// Those that are a digit.
    #[inline]
    pub(crate) fn is_digit(self) -> u64 {
        // Of what differs from a digit's upper half no bit is left below 10.
        at_most(self.0 ^ u8x64::splat(b'0'), 9).to_bitmask()
    }

    /// Those that are a quote or a control character.
    #[inline]
    pub(crate) fn is_quote_or_control(self) -> u64 {
        // A quote changes places with the space, and is then the first behind the control characters.
        at_most(self.0 ^ u8x64::splat(b'"' ^ b' '), b' ').to_bitmask()
    }
}

/// Where the lowest of some bits is: that many bytes stand before it. [`STRIDE`] where there is none.
#[inline]
pub(crate) fn place(bits: u64) -> usize {
    usize::try_from(bits.trailing_zeros()).unwrap_or(STRIDE)
}

/// All bits of those bytes that are `most` or less. The oldest instructions compare signed bytes only, but know the lesser
/// of two that are not.
#[inline]
fn at_most(bytes: u8x64, most: u8) -> u8x64 {
    bytes.min(u8x64::splat(most)).simd_eq(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_at_every_place() {
        for byte in 0..=u8::MAX {
            for at in 0..STRIDE {
                let mut bytes = [b'a'; STRIDE];
                bytes[at] = byte;
                let block = Stride::new(&bytes);
                let expected = |is: bool| if is { 1 << at } else { 0 };
                assert_eq!(block.is_digit(), expected(byte.is_ascii_digit()), "{byte} at {at}");
                assert_eq!(block.is_quote_or_control(), expected(byte == b'"' || byte < b' '), "{byte} at {at}");
                assert_eq!(block.is(b'\\'), expected(byte == b'\\'), "{byte} at {at}");
                let either = byte == b'\\' || byte == b'"';
                assert_eq!(block.is_either(b'\\', b'"'), expected(either), "{byte} at {at}");
                // The letters round it are among these.
                assert_eq!(!block.is_alphanumeric(), expected(!byte.is_ascii_alphanumeric()), "{byte} at {at}");
                assert_eq!(!block.is_graphic(), expected(!byte.is_ascii_graphic()), "{byte} at {at}");
            }
        }
    }

    #[test]
    fn the_lowest_bit_has_a_place() {
        assert_eq!([1, 0b1100, 1 << 63, 0].map(place), [0, 2, 63, STRIDE]);
    }

    #[test]
    fn behind_the_end_of_a_text_there_are_spaces() {
        for len in 0..=STRIDE + 1 {
            let spaces = Stride::padded(&vec![b'a'; len]).is(b' ');
            assert_eq!(spaces, u64::MAX.checked_shl(u32::try_from(len).unwrap()).unwrap_or(0), "{len}");
        }
    }
}
