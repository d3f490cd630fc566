//! The ids of words, remembered in front of a tokenizer.
//!
//! Nearly all words of a text were seen before. A text is taken apart where words end ([`WordEnds`]); the ids of a word that
//! is known are copied, which takes some eighty instructions in all, and the tokenizer is asked for the others. It is asked only
//! so often, though: where most words are new, as in random characters, the rest of a text is encoded as a whole, as it
//! would be without this. Memory is bounded, and threads do not wait for one another: who finds it locked does without.

use std::sync::{RwLock, TryLockError};

use super::word_ends::{Before, WordEnds};
use super::word_table::{Said, WORD_IDS_MAX, Word, WordTable};
use super::{TokenizeError, Tokenizer};
use crate::stride::{STRIDE, place};

/// One word in so many bytes is worth a question of its own. Asking costs about as much as encoding these.
const BYTES_PER_QUESTION: usize = 64;
/// Questions that a short text has anyway.
const QUESTIONS_MIN: usize = 4;

/// A tokenizer with what it said of words.
pub(super) struct WordMemory<T> {
    tokenizer: T,
    ends: WordEnds,
    words: RwLock<WordTable>,
}

impl<T: Tokenizer> WordMemory<T> {
    /// Nothing is remembered yet. `ends` are where words of this tokenizer end.
    pub(super) fn new(tokenizer: T, ends: WordEnds) -> Self {
        Self { tokenizer, ends, words: RwLock::new(WordTable::new()) }
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
        let mut reading = Reading {
            memory: self,
            known: &known,
            text,
            ids,
            told: Told::default(),
            done: 0,
            questions,
            learned: Vec::new(),
        };
        let result = reading.follow();
        let learned = reading.learned;
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
struct Reading<'a, T> {
    memory: &'a WordMemory<T>,
    known: &'a WordTable,
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

impl<T: Tokenizer> Reading<'_, T> {
    fn follow(&mut self) -> Result<(), TokenizeError> {
        let (memory, bytes) = (self.memory, self.text.as_bytes());
        let (mut from, mut before) = (0, Before::default());
        let mut said = [Said::default(); STRIDE];
        for (number, stride) in bytes.chunks(STRIDE).enumerate() {
            let mut ends = memory.ends.within(&mut before, stride);
            let mut count = 0;
            while let (true, Some(said)) = (ends != 0, said.get_mut(count)) {
                let to = number * STRIDE + place(ends);
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
        if !said.is_word() || self.questions == 0 {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::pipeline::Pipeline;
    use super::super::word_table::WORD_BYTES_MAX;
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
}
