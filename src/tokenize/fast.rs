//! The fast tokenizer: byte-level BPE without a regular expression engine on the way, three dozen times the reference's
//! speed. It is used for what it was compared on; see [`checked`](super::checked).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use splintr::Backend;

use super::{TokenizeError, Tokenizer};

/// Bytes of texts and of their ids after which the cache of words is emptied. It has places for 66 000 long words, each of
/// which keeps the room of the longest that it ever had: a client that sends words of thousands of letters would fill
/// gigabytes for good.
const CACHED_BYTES_MAX: usize = 32 << 20;

/// A text so short is no long word: as many as there are places for take 20 MB.
const SHORT_BYTES_MAX: usize = 64;

/// The bytes of an id.
const ID_BYTES: usize = 4;

/// A tokenizer of the crate `splintr`. Its cache of words is shared by all threads; a thread costs nothing.
pub(super) struct FastTokenizer {
    tokenizer: splintr::AnyTokenizer,
    /// Bytes that may have come into the cache since it was emptied.
    cached: AtomicUsize,
    cached_max: usize,
}

impl FastTokenizer {
    /// Reads the text of a `tokenizer.json`; `None` for a kind of tokenizer that is not known, or that keeps words and never
    /// lets go of them. 0.5 s and 80 MB for a vocabulary of 150 000.
    pub(super) fn read(json: &str) -> Option<Self> {
        // Foreign code on a file that anybody may have written.
        let read = catch_unwind(AssertUnwindSafe(|| splintr::from_json_bytes(json.as_bytes())));
        let tokenizer = read.ok()?.ok()?;
        // The cache of this kind cannot be emptied.
        if matches!(tokenizer.backend(), Backend::WordPiece(_)) {
            return None;
        }
        let tokenizer = Self { tokenizer, cached: AtomicUsize::new(0), cached_max: CACHED_BYTES_MAX };
        // The first text builds tables for tenths of a second.
        tokenizer.encode("a b", false, &mut Vec::new()).ok()?;
        Some(tokenizer)
    }

    /// Takes note that this much text was encoded, whose words may all be new and stay in the cache.
    fn has_cached(&self, text: usize, ids: usize) {
        let Backend::Bpe(words) = self.tokenizer.backend() else { return };
        let bytes = text.saturating_add(ids.saturating_mul(ID_BYTES));
        if text <= SHORT_BYTES_MAX || self.cached.fetch_add(bytes, Ordering::Relaxed) < self.cached_max {
            return;
        }
        // One of those who find it full is enough.
        if self.cached.swap(0, Ordering::Relaxed) >= self.cached_max {
            words.clear_cache();
        }
    }
}

impl Tokenizer for FastTokenizer {
    /// Fails where the library panics.
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let encode = || if special { self.tokenizer.encode(text) } else { self.tokenizer.encode_raw(text) };
        let encoded = catch_unwind(AssertUnwindSafe(encode)).map_err(|_| TokenizeError);
        self.has_cached(text.len(), encoded.as_ref().map_or(0, Vec::len));
        ids.extend(encoded?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the letters from a to p.
    fn letters() -> FastTokenizer {
        let vocab: serde_json::Map<_, _> =
            ('a'..='p').zip(0..).map(|(letter, id)| (letter.into(), id.into())).collect();
        let json = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        FastTokenizer { cached_max: 8192, ..FastTokenizer::read(&json.to_string()).unwrap() }
    }

    fn word(number: u32, letters: usize) -> String {
        let digits = (0..8).map(|place| char::from(b'a' + u8::try_from(number >> (4 * place) & 15).unwrap()));
        digits.chain(std::iter::repeat('p')).take(letters).collect()
    }

    #[test]
    fn words_of_clients_stay_in_the_cache_up_to_a_bound_in_bytes() {
        let tokenizer = letters();
        let Backend::Bpe(words) = tokenizer.tokenizer.backend() else { panic!("it is byte-level BPE") };
        let (mut ids, mut most) = (Vec::new(), 0);
        for number in 0..1_000 {
            tokenizer.encode(&word(number, 100), false, &mut ids).unwrap();
            most = most.max(words.cache_len());
        }
        assert_eq!(ids.len(), 100_000);
        // 500 bytes each with their ids.
        assert!((10..=20).contains(&most), "{most}");
    }

    #[test]
    fn short_words_stay_though_there_are_many() {
        let tokenizer = letters();
        let Backend::Bpe(words) = tokenizer.tokenizer.backend() else { panic!("it is byte-level BPE") };
        let before = words.cache_len();
        (0..1_000).for_each(|number| tokenizer.encode(&word(number, 20), false, &mut Vec::new()).unwrap());
        assert_eq!(words.cache_len() - before, 1_000);
    }
}
