//! Words and their ids: a table of fixed size, which a word is looked up in by its bytes.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Longest word that is remembered, in bytes. Longer ones are hardly ever said twice.
pub(super) const WORD_BYTES_MAX: usize = 64;
/// Longest word that is compared byte by byte. Of a longer one it is a hash, which nobody can foretell.
const SHORT_BYTES_MAX: usize = 15;
/// Most ids of a word that is remembered.
pub(super) const WORD_IDS_MAX: usize = 12;
/// Two words each, in 128 bytes: 4 MiB. A language's common words are some ten thousand.
const BUCKET_BITS: u32 = 15;

/// A word of a text.
#[derive(Clone, Copy, Default)]
pub(super) struct Said {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Its name.
    pub(super) key: u128,
    buckets: [usize; 2],
    /// The word that lies first in the first of its buckets.
    first: u128,
}

impl Said {
    /// Whether it is a word that may be remembered.
    pub(super) fn is_word(&self) -> bool {
        self.key != NO_WORD
    }
}

/// A word and its ids, in a line of memory.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Word {
    /// Its name, and in the highest four bits how many ids: none if they are too many to keep.
    key: u128,
    pub(super) ids: [u32; WORD_IDS_MAX],
}

const COUNT_SHIFT: u32 = 124;
/// Where a short word's name says how many bytes it has. A long one's says none.
const LENGTH_SHIFT: u32 = 120;

/// The name of what is no word to be remembered: it is too long, or there is nothing.
const NO_WORD: u128 = 0;

/// The first so many bytes.
const MASKS: [u128; SHORT_BYTES_MAX + 1] = {
    let (mut masks, mut len) = ([0; SHORT_BYTES_MAX + 1], 1);
    while len <= SHORT_BYTES_MAX {
        masks[len] = masks[len - 1] << 8 | 0xff;
        len += 1;
    }
    masks
};

/// The name of a word of so many bytes, at most [`SHORT_BYTES_MAX`], that begins at `from`: they themselves.
#[inline]
fn short(bytes: &[u8], from: usize, len: u8) -> Option<u128> {
    let mask = MASKS.get(usize::from(len))?;
    let rest = bytes.get(from..)?;
    let word = rest.first_chunk().copied().unwrap_or_else(|| last(rest));
    Some(u128::from_le_bytes(word) & mask | u128::from(len) << LENGTH_SHIFT)
}

/// Fewer bytes than that, with zeros behind them.
#[cold]
fn last(rest: &[u8]) -> [u8; 16] {
    let mut word = [0; 16];
    word[..rest.len()].copy_from_slice(rest);
    word
}

impl Word {
    pub(super) fn new(key: u128, ids: &[u32]) -> Self {
        let mut word = Self { key, ..Self::default() };
        if let (Some(kept), Ok(count)) = (word.ids.get_mut(..ids.len()), u128::try_from(ids.len())) {
            kept.copy_from_slice(ids);
            word.key |= count << COUNT_SHIFT;
        }
        word
    }

    /// How many ids it has, if they are kept.
    #[inline]
    pub(super) fn count(&self) -> usize {
        usize::try_from(self.key >> COUNT_SHIFT).expect("four bits")
    }
}

/// What is remembered.
pub(super) struct WordTable {
    buckets: Box<[Bucket]>,
    secret: [u64; 2],
}

/// Words that may lie in one place.
#[derive(Clone, Copy, Default)]
struct Bucket([Word; 2]);

impl WordTable {
    pub(super) fn new() -> Self {
        // Whose words go out for whose is not for clients to choose.
        Self { buckets: vec![Bucket::default(); 1 << BUCKET_BITS].into(), secret: rand::random() }
    }

    /// The word between two places.
    #[inline]
    pub(super) fn said(&self, bytes: &[u8], from: usize, to: usize) -> Said {
        let short = u8::try_from(to - from).ok().and_then(|len| short(bytes, from, len));
        let key = short.unwrap_or_else(|| self.long(bytes.get(from..to).unwrap_or_default()));
        Said { from, to, key, buckets: self.buckets_of(key), first: 0 }
    }

    /// Looks at the buckets of words, which may be far away in memory, one behind the other without waiting for any.
    #[inline]
    pub(super) fn fetch(&self, said: &mut [Said]) {
        for said in said {
            said.first = self.buckets[said.buckets[0]].0[0].key;
        }
    }

    fn long(&self, word: &[u8]) -> u128 {
        if word.len() > WORD_BYTES_MAX {
            return NO_WORD;
        }
        xxh3_128_with_seed(word, self.secret[0]) & ((1 << LENGTH_SHIFT) - 1)
    }

    /// Where a word may lie: with two places to choose from, hardly any bucket is ever too small.
    #[inline]
    fn buckets_of(&self, key: u128) -> [usize; 2] {
        let [low, high] = halves(key);
        let [left, right] = halves(u128::from(low ^ self.secret[0]) * u128::from(high ^ self.secret[1]));
        // Once more, or numbers that follow one another would lie in the same buckets now and then.
        let hash = (left ^ right).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bucket = |bits: u64| usize::try_from(bits >> (64 - BUCKET_BITS)).expect("less than the number of buckets");
        [bucket(hash), bucket(hash << BUCKET_BITS)]
    }

    #[inline]
    pub(super) fn get(&self, said: &Said) -> Option<&Word> {
        let Bucket([first, second]) = self.buckets.get(said.buckets[0])?;
        if is(said.first, said.key) {
            Some(first)
        } else if is(second.key, said.key) {
            Some(second)
        } else {
            self.buckets.get(said.buckets[1])?.0.iter().find(|word| is(word.key, said.key))
        }
    }

    /// Where nothing is free, the word takes the place of the one that has been in its first bucket for longer.
    pub(super) fn put(&mut self, word: Word) {
        let key = word.key << (128 - COUNT_SHIFT) >> (128 - COUNT_SHIFT);
        let buckets = self.buckets_of(key);
        for bucket in buckets {
            if self.buckets[bucket].0.iter().any(|known| is(known.key, key)) {
                return;
            }
        }
        let has_room = |bucket: &usize| is(self.buckets[*bucket].0[1].key, NO_WORD);
        let bucket = buckets.into_iter().find(has_room).unwrap_or(buckets[0]);
        let Bucket([first, second]) = &mut self.buckets[bucket];
        *second = std::mem::replace(first, word);
    }
}

/// Whether both name the same word; the number of ids is none of it.
#[inline]
fn is(one: u128, other: u128) -> bool {
    (one ^ other) << (128 - COUNT_SHIFT) == 0
}

#[inline]
fn halves(both: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = both.to_le_bytes();
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_free_the_older_word_goes() {
        let mut words = WordTable::new();
        let key = |number: u128| number | 8 << LENGTH_SHIFT;
        // Four of one bucket, whose others are full.
        let bucket = words.buckets_of(key(0))[0];
        let same: Vec<u128> = (0..).map(key).filter(|key| words.buckets_of(*key)[0] == bucket).take(4).collect();
        for key in &same {
            let other = words.buckets_of(*key)[1];
            words.buckets[other] = Bucket([Word::new(1 << LENGTH_SHIFT, &[]); 2]);
        }
        words.buckets[bucket] = Bucket::default();
        same.iter().chain(&same[3..]).for_each(|key| words.put(Word::new(*key, &[1, 2])));
        let known = |key: u128| {
            let mut said = [Said { key, buckets: words.buckets_of(key), ..Said::default() }];
            words.fetch(&mut said);
            words.get(&said[0]).map(|word| word.ids[..word.count()].to_vec())
        };
        let kept = Some(vec![1, 2]);
        assert_eq!(same.iter().map(|key| known(*key)).collect::<Vec<_>>(), [None, None, kept.clone(), kept]);
    }

    #[test]
    fn a_full_bucket_leaves_the_word_to_the_other_one() {
        let mut words = WordTable::new();
        let keys: Vec<u128> = (0..20_000).map(|number| number | 8 << LENGTH_SHIFT).collect();
        keys.iter().for_each(|key| words.put(Word::new(*key, &[1])));
        let lies = |key: &u128| {
            words.buckets_of(*key).iter().any(|at| words.buckets[*at].0.iter().any(|word| is(word.key, *key)))
        };
        let lost = keys.iter().filter(|key| !lies(key)).count();
        assert!(lost < 200, "{lost} of {}", keys.len());
    }
}
