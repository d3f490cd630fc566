//! Many numbers read at once: each is gathered as the eight bytes that end with its last digit, and where a list of those is
//! full, four at a time become numbers. Gathering and reading are apart since wide registers wait for what was just written.

use bytemuck::cast;
use wide::{i16x16, u8x32, u16x16, u64x4};

use crate::stride::{STRIDE, place};

/// Bytes of a word: the most digits of a number that is read here.
pub(super) const WORD: usize = 8;

/// A block, and the word before it.
pub(super) type Window = [u8; WORD + STRIDE];

/// How many are read together.
const WORDS: usize = 128;

/// The most numbers of a block: a digit each, and a comma.
const OF_BLOCK: usize = STRIDE / 2;

/// Numbers that were found and not read yet.
pub(super) struct Words {
    words: [u64; WORDS],
    count: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self { words: [0; WORDS], count: 0 }
    }
}

impl Words {
    /// Whether the numbers of a further block may not fit.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count > WORDS - OF_BLOCK
    }

    /// Adds the numbers that end before each of `ends`, which are places in the block of `window`. Before each number there is
    /// a comma or a space, or it fills a word.
    #[inline(always)]
    pub(super) fn push(&mut self, window: &Window, mut ends: u64) {
        let Some(room) = self.words[self.count..].first_chunk_mut::<OF_BLOCK>() else { return };
        self.count += usize::try_from(ends.count_ones()).unwrap_or(OF_BLOCK);
        // In steps of four, since how many there are is then easier to foresee; what is too many is written over.
        for four in room.as_chunks_mut::<4>().0 {
            for word in four {
                *word = window[place(ends)..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                ends &= ends.wrapping_sub(1);
            }
            if ends == 0 {
                break;
            }
        }
    }

    /// Gives the numbers to `take`, and forgets them.
    #[inline(never)]
    pub(super) fn read(&mut self, take: &mut impl FnMut(&[u32])) {
        let mut numbers = [0; WORDS];
        let (words, _) = self.words[..self.count.next_multiple_of(4)].as_chunks();
        for (numbers, words) in numbers.as_chunks_mut().0.iter_mut().zip(words) {
            *numbers = four(*words);
        }
        if self.count > 0 {
            take(&numbers[..self.count]);
        }
        self.count = 0;
    }
}

/// The numbers whose last digits four words end with, behind a comma or a space, or nothing else. By multiplications as in
/// Lemire, "Quickly parsing eight digits", of all four at once.
#[inline]
fn four(words: [u64; 4]) -> [u32; 4] {
    let words: u8x32 = cast(u64x4::new(words));
    let digits: u64x4 = cast(words.swizzle_half_relaxed(LAST_FIRST) ^ u8x32::splat(b'0'));
    // Of a comma and a space this bit is left, of digits it is not: what comes before the first that has it stays.
    let others = digits & u64x4::splat(u64::from_le_bytes([0x10; WORD]));
    let number = digits & (((others - u64x4::splat(1)) & !others) >> 4_u32);
    // Of two neighbours each becomes one: two digits, four, eight.
    let twos: u16x16 = cast(number);
    let twos: i16x16 = cast((twos * u16x16::splat((1 << 8) + 10)) >> 8_u32);
    let fours: i16x16 = cast(twos.dot(HUNDREDS));
    let eights: u64x4 = cast(fours.dot(TEN_THOUSANDS));
    let numbers: [u32; 8] = cast(eights + (eights >> 32_u32));
    [numbers[0], numbers[2], numbers[4], numbers[6]]
}

/// Turns each of four words round.
const LAST_FIRST: u8x32 = u8x32::new([
    7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8,
]);

const HUNDREDS: i16x16 = i16x16::new([1, 100, 1, 100, 1, 100, 1, 100, 1, 100, 1, 100, 1, 100, 1, 100]);

/// Of four digits there is an empty place between two.
const TEN_THOUSANDS: i16x16 = i16x16::new([1, 0, 10_000, 0, 1, 0, 10_000, 0, 1, 0, 10_000, 0, 1, 0, 10_000, 0]);

// Where words are parts of others, the first is the lowest.
const _: () = assert!(cfg!(target_endian = "little"), "processors that put the high byte first are not supported");
