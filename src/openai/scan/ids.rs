//! Lists of token ids as most writers write them: numbers without a zero in front, and between two of them a comma, or a comma
//! and a space. What each byte of a block is, is found out for all of them at once; anything else, valid or not, is left to who
//! reads byte by byte.

use crate::stride::{STRIDE, Stride, place};

/// The most digits of a number that is read in one step.
const DIGITS_MAX: usize = 8;

/// What the bytes of a block are: a bit for each.
struct Spelling {
    digits: u64,
    commas: u64,
    /// Zeros that a number begins with.
    zeros: u64,
    /// Those that do not belong where they are.
    wrong: u64,
}

/// What a block begins behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Any other digit.
    Digit,
    /// A zero that a number begins with.
    Zero,
    Comma,
    Space,
}

impl Spelling {
    #[inline]
    fn of(block: Stride, behind: Behind) -> Self {
        let (digits, commas) = (block.is_digit(), block.is(b','));
        // Most writers put none.
        let spaces = if digits | commas == u64::MAX { 0 } else { block.is(b' ') };
        let behind_digits = digits << 1 | u64::from(matches!(behind, Behind::Digit | Behind::Zero));
        let behind_commas = commas << 1 | u64::from(behind == Behind::Comma);
        let zeros = block.is(b'0') & !behind_digits;
        let behind_zeros = zeros << 1 | u64::from(behind == Behind::Zero);
        let right = digits & !behind_zeros | commas & behind_digits | spaces & behind_commas;
        Self { digits, commas, zeros, wrong: !right }
    }

    /// What the next block begins behind.
    fn last(&self) -> Behind {
        let is_last = |bits: u64| bits >> (STRIDE - 1) == 1;
        match () {
            () if is_last(self.zeros) => Behind::Zero,
            () if is_last(self.digits) => Behind::Digit,
            () if is_last(self.commas) => Behind::Comma,
            () => Behind::Space,
        }
    }
}

/// How many numbers a list has that are all written so, of any length; `None` for any other list, valid or not.
pub(super) fn count_plain(list: &[u8]) -> Option<usize> {
    let ([b'0'..=b'9', ..], [.., b'0'..=b'9']) = (list, list) else { return None };
    let (mut commas, mut behind) = (0, Behind::Comma);
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
    let (mut begin, mut numbers) = (0, [0; STRIDE / 2]);
    loop {
        let rest = &list[begin..];
        let at_end;
        let window = match rest.first_chunk() {
            Some(window) => window,
            None => {
                at_end = padded(rest);
                &at_end
            }
        };
        let spelling = Spelling::of(Stride::padded(window), Behind::Comma);
        // A space may be behind a comma, but what begins here is a number; and none has more digits than one step reads.
        let wrong = spelling.wrong | !spelling.digits & 1 | too_long(spelling.digits);
        let mut ends = spelling.commas & wrong.wrapping_sub(1) & !wrong;
        let Some(last) = (STRIDE - 1).checked_sub(usize::try_from(ends.leading_zeros()).unwrap_or(STRIDE)) else {
            return begin;
        };
        let mut starts = spelling.digits & !(spelling.digits << 1);
        let mut count = 0;
        while ends != 0 {
            numbers[count] = short_number(window, place(starts), place(ends));
            count += 1;
            starts &= starts - 1;
            ends &= ends - 1;
        }
        take(&numbers[..count]);
        begin += last + 1;
        begin += usize::from(list.get(begin) == Some(&b' '));
        if wrong != 0 {
            return begin;
        }
    }
}

/// A block, and a word behind it.
type Window = [u8; STRIDE + DIGITS_MAX];

/// The last bytes of a list, and spaces behind them.
fn padded(rest: &[u8]) -> Window {
    let mut window = [b' '; STRIDE + DIGITS_MAX];
    window[..rest.len()].copy_from_slice(rest);
    window
}

/// Where more digits begin than one step reads.
#[inline]
fn too_long(digits: u64) -> u64 {
    let two = digits & digits >> 1;
    let four = two & two >> 2;
    four & four >> 4 & digits >> DIGITS_MAX
}

/// The number whose one to eight digits are `window[from..end]`, without a branch for each of them: three multiplications, by
/// Lemire, "Quickly parsing eight digits".
#[inline]
fn short_number(window: &Window, from: usize, end: usize) -> u32 {
    const ZEROS: u64 = u64::from_le_bytes([b'0'; DIGITS_MAX]);
    let word = window[from..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)) ^ ZEROS;
    let digits = word << (8 * (DIGITS_MAX - (end - from)) % 64);
    let pairs = (digits.wrapping_mul(2561) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(6_553_601) >> 16) & 0x0000_ffff_0000_ffff;
    u32::try_from(fours.wrapping_mul(42_949_672_960_001) >> 32).unwrap_or(u32::MAX)
}

/// A number of any length that fits, and how many digits it has.
pub(super) fn number(text: &[u8]) -> Option<(u32, usize)> {
    let digits = text.iter().take(11).take_while(|byte| byte.is_ascii_digit());
    let (value, count) =
        digits.fold((0_u64, 0), |(value, count), digit| (value * 10 + u64::from(digit - b'0'), count + 1));
    (count > 0).then_some(())?;
    Some((u32::try_from(value).ok()?, count))
}
