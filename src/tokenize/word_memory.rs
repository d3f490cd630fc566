//! The ids of words, remembered in front of a tokenizer.
//!
//! Nearly all words of a text were seen before. A text is taken apart where words end ([`WordEnds`]); the ids of a word that
//! is known are copied, which takes some eighty instructions in all, and the tokenizer is asked for the others. It is asked only
//! so often, though: where most words are new, as in random characters, the rest of a text is encoded as a whole, as it
//! would be without this. Memory is bounded, and threads do not wait for one another: who finds it locked does without.

use std::sync::{RwLock, TryLockError};

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::word_ends::{Before, WordEnds};
use super::{TokenizeError, Tokenizer};
use crate::stride::STRIDE;

/// Longest word that is remembered, in bytes. Longer ones are hardly ever said twice.
const WORD_BYTES_MAX: usize = 64;
/// Longest word that is compared byte by byte. Of a longer one it is a hash, which nobody can foretell.
const SHORT_BYTES_MAX: usize = 15;
/// Most ids of a word that is remembered.
const WORD_IDS_MAX: usize = 12;
/// Two words each, in 128 bytes: 4 MiB. A language's common words are some ten thousand.
const BUCKET_BITS: u32 = 15;
/// One word in so many bytes is worth a question of its own. Asking costs about as much as encoding these.
const BYTES_PER_QUESTION: usize = 64;
/// Questions that a short text has anyway.
const QUESTIONS_MIN: usize = 4;

/// A tokenizer with what it said of words.
pub(super) struct WordMemory<T> {
    tokenizer: T,
    ends: WordEnds,
    words: RwLock<Words>,
}

impl<T: Tokenizer> WordMemory<T> {
    /// Nothing is remembered yet. `ends` are where words of this tokenizer end.
    pub(super) fn new(tokenizer: T, ends: WordEnds) -> Self {
        Self { tokenizer, ends, words: RwLock::new(Words::new()) }
    }
}

impl<T: Tokenizer> Tokenizer for WordMemory<T> {
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        // What special tokens do to a text is not looked into.
        let Some(known) = (!special).then(|| self.words.try_read().ok()).flatten() else {
            return self.tokenizer.encode(text, special, ids);
        };
        let before = ids.len();
        let questions = QUESTIONS_MIN + text.len() / BYTES_PER_QUESTION;
        let mut course = Course {
            memory: self,
            known: &known,
            text,
            ids,
            told: Told::default(),
            done: 0,
            questions,
            learned: Vec::new(),
        };
        let result = course.follow();
        let learned = course.learned;
        drop(known);
        if result.is_err() {
            ids.truncate(before);
        }
        if !learned.is_empty() {
            match self.words.try_write() {
                Ok(mut words) => learned.into_iter().for_each(|word| words.put(word)),
                // Somebody reads: the next text with these words has another chance.
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {}
            }
        }
        result
    }
}

/// One text on its way.
struct Course<'a, T> {
    memory: &'a WordMemory<T>,
    known: &'a Words,
    text: &'a str,
    ids: &'a mut Vec<u32>,
    /// Of known words, not yet among `ids`.
    told: Told,
    /// Bytes whose ids are told. What is between them and the word in hand was not worth a question.
    done: usize,
    /// How often the tokenizer may still be asked.
    questions: usize,
    learned: Vec<Word>,
}

impl<T: Tokenizer> Course<'_, T> {
    fn follow(&mut self) -> Result<(), TokenizeError> {
        let (memory, bytes) = (self.memory, self.text.as_bytes());
        let (mut from, mut before) = (0, Before::default());
        let mut said = [Said::default(); STRIDE];
        for (number, stride) in bytes.chunks(STRIDE).enumerate() {
            let mut ends = memory.ends.within(&mut before, stride);
            let mut count = 0;
            while let (true, Some(said)) = (ends != 0, said.get_mut(count)) {
                let place = usize::try_from(ends.trailing_zeros()).expect("a place among 64");
                let to = number * STRIDE + place;
                *said = self.known.said(bytes, from, to);
                (from, count, ends) = (to, count + 1, ends & (ends - 1));
            }
            self.words(&mut said[..count])?;
            if self.questions == 0 {
                return self.rest();
            }
        }
        self.words(&mut [self.known.said(bytes, from, bytes.len())])?;
        self.rest()
    }

    /// Words that stand one behind the other.
    fn words(&mut self, said: &mut [Said]) -> Result<(), TokenizeError> {
        self.known.fetch(said);
        said.iter().try_for_each(|said| self.word(said))
    }

    #[inline]
    fn word(&mut self, said: &Said) -> Result<(), TokenizeError> {
        let Said { from, to, .. } = *said;
        let Some(word) = self.known.get(said) else { return self.learn(said) };
        let count = word.count();
        if count == 0 {
            return Ok(());
        }
        if self.done < from {
            self.ask(from)?;
        }
        if !self.told.add(&word.ids, count) {
            self.tell();
            self.told.add(&word.ids, count);
        }
        self.done = to;
        Ok(())
    }

    fn rest(&mut self) -> Result<(), TokenizeError> {
        self.ask(self.text.len())?;
        self.tell();
        Ok(())
    }

    #[cold]
    fn tell(&mut self) {
        self.ids.extend_from_slice(self.told.take());
    }

    #[cold]
    fn learn(&mut self, said: &Said) -> Result<(), TokenizeError> {
        let Said { from, to, key, .. } = *said;
        if key == NO_WORD || self.questions == 0 {
            return Ok(());
        }
        self.ask(from)?;
        self.tell();
        let before = self.ids.len();
        self.ask(to)?;
        self.learned.push(Word::new(key, &self.ids[before..]));
        Ok(())
    }

    /// Asks the tokenizer for all that is before `to` and not told.
    fn ask(&mut self, to: usize) -> Result<(), TokenizeError> {
        if self.done < to {
            self.tell();
            self.memory.tokenizer.encode(&self.text[self.done..to], false, self.ids)?;
            self.questions = self.questions.saturating_sub(1);
            self.done = to;
        }
        Ok(())
    }
}

/// A word of a text.
#[derive(Clone, Copy, Default)]
struct Said {
    from: usize,
    to: usize,
    /// Its name.
    key: u128,
    buckets: [usize; 2],
    /// The word that lies first in the first of its buckets.
    first: u128,
}

/// A word and its ids, in a line of memory.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Word {
    /// Its name, and in the highest four bits how many ids: none if they are too many to keep.
    key: u128,
    ids: [u32; WORD_IDS_MAX],
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
    fn new(key: u128, ids: &[u32]) -> Self {
        let mut word = Self { key, ..Self::default() };
        if let (Some(kept), Ok(count)) = (word.ids.get_mut(..ids.len()), u128::try_from(ids.len())) {
            kept.copy_from_slice(ids);
            word.key |= count << COUNT_SHIFT;
        }
        word
    }

    /// How many ids it has, if they are kept.
    #[inline]
    fn count(&self) -> usize {
        usize::try_from(self.key >> COUNT_SHIFT).expect("four bits")
    }
}

/// Ids that are told together, since each time costs as much as a word.
struct Told {
    ids: [u32; 128],
    count: usize,
}

impl Default for Told {
    fn default() -> Self {
        Self { ids: [0; 128], count: 0 }
    }
}

impl Told {
    /// Adds the first `count` of `ids`, if there is room.
    #[inline]
    fn add(&mut self, ids: &[u32; WORD_IDS_MAX], count: usize) -> bool {
        // All that a word may have, at once: the next ones lie over those that are none.
        let Some(place) = self.ids.get_mut(self.count..).and_then(|rest| rest.first_chunk_mut()) else { return false };
        *place = *ids;
        self.count += count;
        true
    }

    fn take(&mut self) -> &[u32] {
        &self.ids[..std::mem::take(&mut self.count)]
    }
}

/// What is remembered.
struct Words {
    buckets: Box<[Bucket]>,
    secret: [u64; 2],
}

/// Words that may lie in one place.
#[derive(Clone, Copy, Default)]
struct Bucket([Word; 2]);

impl Words {
    fn new() -> Self {
        // Whose words go out for whose is not for clients to choose.
        Self { buckets: vec![Bucket::default(); 1 << BUCKET_BITS].into(), secret: rand::random() }
    }

    /// The word between two places.
    #[inline]
    fn said(&self, bytes: &[u8], from: usize, to: usize) -> Said {
        let short = u8::try_from(to - from).ok().and_then(|len| short(bytes, from, len));
        let key = short.unwrap_or_else(|| self.long(bytes.get(from..to).unwrap_or_default()));
        Said { from, to, key, buckets: self.buckets_of(key), first: 0 }
    }

    /// Looks at the buckets of words, which may be far away in memory, one behind the other without waiting for any.
    fn fetch(&self, said: &mut [Said]) {
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
    fn get(&self, said: &Said) -> Option<&Word> {
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
    fn put(&mut self, word: Word) {
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::pipeline::Pipeline;
    use super::*;

    /// Each word that the pattern of GPT-2 finds at a space is as many tokens as it has letters; counts how often it is asked.
    #[derive(Default)]
    struct Letters(AtomicUsize);

    impl Tokenizer for Letters {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if text.contains('\u{0}') {
                // As a tokenizer does that fails halfway.
                ids.push(0);
                return Err(TokenizeError);
            }
            ids.extend(special.then_some(1));
            ids.extend(text.chars().map(u32::from));
            Ok(())
        }
    }

    fn memory() -> WordMemory<Letters> {
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
        let file = json!({"pre_tokenizer": byte_level, "model": {"type": "BPE"}}).to_string();
        WordMemory::new(Letters::default(), WordEnds::of(&Pipeline::read(&file).unwrap()).unwrap())
    }

    fn encoded(tokenizer: &impl Tokenizer, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut ids = vec![7];
        tokenizer.encode(text, false, &mut ids)?;
        assert_eq!(ids.remove(0), 7);
        Ok(ids)
    }

    fn asked(memory: &WordMemory<Letters>, text: &str) -> usize {
        let before = memory.tokenizer.0.load(Ordering::Relaxed);
        assert_eq!(encoded(memory, text), encoded(&Letters::default(), text), "{text:?}");
        memory.tokenizer.0.load(Ordering::Relaxed) - before
    }

    proptest! {
        #[test]
        fn the_ids_are_those_of_the_tokenizer(
            texts in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec![
                        "a", "word", " the", " fifteen bytes.", "sixteen--bytes--", " ", "\n", ", ", "é", "字",
                        " 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789",
                    ]),
                    0..80,
                ),
                1..8,
            ),
        ) {
            let memory = memory();
            for text in texts.iter().chain(&texts) {
                let text = text.concat();
                prop_assert_eq!(encoded(&memory, &text), encoded(&Letters::default(), &text));
            }
        }
    }

    #[test]
    fn a_word_is_asked_for_once() {
        let memory = memory();
        assert_eq!(asked(&memory, "one two two"), 3, "what a text brings is known to the next one");
        assert_eq!(asked(&memory, "one two two two one"), 1, "one with a space before it is another word");
        assert_eq!(asked(&memory, "one two two two one"), 0);
        assert_eq!(asked(&memory, ""), 0);
    }

    #[test]
    fn words_of_more_ids_than_are_kept_are_asked_for_together() {
        let memory = memory();
        let text = " thirteen-ids fourteen-bytes x";
        asked(&memory, text);
        assert_eq!(asked(&memory, text), 1, "what is between two words that are known");
        let long = format!("a {} b", "y".repeat(WORD_BYTES_MAX + 1));
        asked(&memory, &long);
        assert_eq!(asked(&memory, &long), 1);
    }

    #[test]
    fn a_text_of_new_words_is_soon_encoded_as_a_whole() {
        let memory = memory();
        let text: String = (0..1000).map(|number| format!(" {number:04}")).collect();
        assert_eq!(asked(&memory, &text), QUESTIONS_MIN + text.len() / BYTES_PER_QUESTION + 1);
    }

    #[test]
    fn of_a_text_that_fails_nothing_is_told() {
        let memory = memory();
        let mut ids = vec![7];
        assert_eq!(memory.encode("one two \u{0} three", false, &mut ids), Err(TokenizeError));
        assert_eq!(ids, [7]);
        assert_eq!(encoded(&memory, "one two three"), encoded(&Letters::default(), "one two three"));
    }

    #[test]
    fn who_finds_the_words_locked_does_without() {
        let memory = memory();
        let locked = memory.words.write().unwrap();
        assert_eq!(asked(&memory, "one two"), 1);
        drop(locked);
        let read = memory.words.read().unwrap();
        assert_eq!([asked(&memory, "one two"), asked(&memory, "one two")], [2, 2], "nothing is learned meanwhile");
        drop(read);
        assert_eq!([asked(&memory, "one two"), asked(&memory, "one two")], [2, 0]);
    }

    #[test]
    fn with_special_tokens_the_tokenizer_is_asked() {
        let mut ids = Vec::new();
        memory().encode("a", true, &mut ids).unwrap();
        assert_eq!(ids, [1, 97]);
    }

    #[test]
    fn where_nothing_is_free_the_older_word_goes() {
        let mut words = Words::new();
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
        let mut words = Words::new();
        let keys: Vec<u128> = (0..20_000).map(|number| number | 8 << LENGTH_SHIFT).collect();
        keys.iter().for_each(|key| words.put(Word::new(*key, &[1])));
        let lies = |key: &u128| {
            words.buckets_of(*key).iter().any(|at| words.buckets[*at].0.iter().any(|word| is(word.key, *key)))
        };
        let lost = keys.iter().filter(|key| !lies(key)).count();
        assert!(lost < 200, "{lost} of {}", keys.len());
    }
}
