//! Lists of token ids as most writers write them: numbers without a zero in front, and between two of them a comma, or a comma
//! and a space. What each byte of a block is, is found out for all of them at once; anything else, valid or not, is left to who
//! reads byte by byte.

use crate::stride::{STRIDE, Stride};

use super::words::{WORD, Window, Words};

/// What the bytes of a block are: a bit for each.
struct Spelling {
    digits: u64,
    commas: u64,
    /// Zeros that a number begins with.
    zeros: u64,
    /// Those that do not belong where they are.
    wrong: u64,
}

/// What a block begins behind: of each, one or none.
#[derive(Clone, Copy)]
struct Behind {
    digit: u64,
    comma: u64,
    /// A zero that a number begins with, which is a digit, too.
    zero: u64,
}

impl Behind {
    const COMMA: Self = Self { digit: 0, comma: 1, zero: 0 };
}

impl Spelling {
    #[inline]
    fn of(block: Stride, behind: Behind) -> Self {
        let (digits, commas) = (block.is_digit(), block.is(b','));
        // Most writers put none.
        let spaces = if digits | commas == u64::MAX { 0 } else { block.is(b' ') };
        let behind_digits = digits << 1 | behind.digit;
        let behind_commas = commas << 1 | behind.comma;
        let zeros = block.is(b'0') & !behind_digits;
        let behind_zeros = zeros << 1 | behind.zero;
        let right = digits & !behind_zeros | commas & behind_digits | spaces & behind_commas;
        Self { digits, commas, zeros, wrong: !right }
    }

    /// What the next block begins behind.
    #[inline]
    fn last(&self) -> Behind {
        let last = |bits: u64| bits >> (STRIDE - 1);
        Behind { digit: last(self.digits), comma: last(self.commas), zero: last(self.zeros) }
    }

    /// Where more digits begin than a word has, of which `before` are in the block before.
    #[inline]
    fn too_long(&self, before: u32) -> u64 {
        let two = self.digits & self.digits >> 1;
        let four = two & two >> 2;
        let eight = four & four >> 4;
        eight & self.digits >> WORD | u64::from(before + self.digits.trailing_ones() > u64::BITS / 8)
    }
}

/// How many numbers a list has that are all written so, of any length; `None` for any other list, valid or not.
pub(super) fn count_plain(list: &[u8]) -> Option<usize> {
    let ([b'0'..=b'9', ..], [.., b'0'..=b'9']) = (list, list) else { return None };
    let (mut commas, mut behind) = (0, Behind::COMMA);
    for bytes in list.chunks(STRIDE) {
        let spelling = Spelling::of(Stride::padded(bytes), behind);
        let padding = u64::MAX.checked_shl(u32::try_from(bytes.len()).ok()?).unwrap_or(0);
        if spelling.wrong & !padding != 0 {
            return None;
        }
        commas += spelling.commas.count_ones();
        behind = spelling.last();
    }
    usize::try_from(commas + 1).ok()
}

/// Gives the numbers at the beginning of `list` that are written so, and followed by a comma, to `take`. Returns how many bytes
/// they are, with what parts the last of them from what is left.
pub(super) fn plain(list: &[u8], take: &mut impl FnMut(&[u32])) -> usize {
    let (mut at, mut behind, mut digits_before) = (0_usize, Behind::COMMA, 0);
    let (mut words, mut end) = (Words::default(), 0);
    loop {
        let at_edge;
        let window = match at.checked_sub(WORD).and_then(|from| list.get(from..)?.first_chunk()) {
            Some(window) => window,
            None => {
                at_edge = padded(list, at);
                &at_edge
            }
        };
        let spelling = Spelling::of(Stride::padded(&window[WORD..]), behind);
        let wrong = spelling.wrong | spelling.too_long(digits_before);
        let ends = spelling.commas & wrong.wrapping_sub(1) & !wrong;
        if let Some(last) = ends.checked_ilog2() {
            words.push(window, ends);
            end = at + usize::try_from(last).unwrap_or(STRIDE) + 1;
        }
        if words.is_full() {
            words.read(take);
        }
        if wrong != 0 {
            break;
        }
        (at, behind, digits_before) = (at + STRIDE, spelling.last(), spelling.digits.leading_ones());
    }
    words.read(take);
    end + usize::from(list.get(end) == Some(&b' '))
}

/// What is round the block that begins `at` a place where not all of it is there: spaces.
#[cold]
fn padded(list: &[u8], at: usize) -> Window {
    let mut window = [b' '; WORD + STRIDE];
    let from = at.saturating_sub(WORD);
    let some = list.get(from..list.len().min(at + STRIDE)).unwrap_or_default();
    window[WORD - (at - from)..][..some.len()].copy_from_slice(some);
    window
}

/// A number of any length that fits, and how many digits it has.
pub(super) fn number(text: &[u8]) -> Option<(u32, usize)> {
    let digits = text.iter().take(11).take_while(|byte| byte.is_ascii_digit());
    let (value, count) =
        digits.fold((0_u64, 0), |(value, count), digit| (value * 10 + u64::from(digit - b'0'), count + 1));
    (count > 0).then_some(())?;
    Some((u32::try_from(value).ok()?, count))
}
