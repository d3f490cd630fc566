//! The fast tokenizer: byte-level BPE without a regular expression engine on the way, three dozen times the reference's
//! speed. It is used for what it was compared on; see [`checked`](super::checked).

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{TokenizeError, Tokenizer};

/// A tokenizer of the crate `splintr`. Its cache of words is bounded and shared by all threads; a thread costs nothing.
pub(super) struct FastTokenizer(splintr::AnyTokenizer);

impl FastTokenizer {
    /// Reads the text of a `tokenizer.json`; `None` for a kind of tokenizer that is not known. 0.5 s and 80 MB for a
    /// vocabulary of 150 000.
    pub(super) fn read(json: &str) -> Option<Self> {
        // Foreign code on a file that anybody may have written.
        let read = catch_unwind(AssertUnwindSafe(|| splintr::from_json_bytes(json.as_bytes())));
        let tokenizer = Self(read.ok()?.ok()?);
        // The first text builds tables for tenths of a second.
        tokenizer.encode("a b", false, &mut Vec::new()).ok()?;
        Some(tokenizer)
    }
}

impl Tokenizer for FastTokenizer {
    /// Fails where the library panics.
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let encode = || if special { self.0.encode(text) } else { self.0.encode_raw(text) };
        ids.extend(catch_unwind(AssertUnwindSafe(encode)).map_err(|_| TokenizeError)?);
        Ok(())
    }
}
