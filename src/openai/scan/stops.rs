//! Where the strings of a JSON text end: 64 bytes at a glance, since code and prose have an escape in every line.

use super::block::{BLOCK, Block};

/// The places of quotes, backslashes and control characters, found block by block.
pub(super) struct Stops {
    /// Where the block begins that was looked at last.
    from: usize,
    /// Its places, the lowest bit first.
    marks: u64,
}

impl Stops {
    /// Nothing was looked at.
    pub(super) fn new() -> Self {
        Self { from: usize::MAX, marks: 0 }
    }

    /// The place of the quote that ends the string whose text begins at `at`, and whether it has escapes; always of the same
    /// `text`. `None` where there is no such quote, or before it a control character or an escape that is none.
    pub(super) fn end(&mut self, text: &[u8], at: usize) -> Option<(usize, bool)> {
        let (mut at, mut escaped) = (at, false);
        loop {
            let from = at / BLOCK * BLOCK;
            if self.from != from {
                self.look(text, from)?;
            }
            let mut marks = self.marks & (u64::MAX << (at % BLOCK));
            at = from + BLOCK;
            while marks != 0 {
                let stop = from + usize::try_from(marks.trailing_zeros()).ok()?;
                match text.get(stop)? {
                    b'"' => return Some((stop, escaped)),
                    b'\\' => escaped = true,
                    _ => return None,
                }
                let behind = stop + escape(text.get(stop + 1..)?)?;
                if behind >= from + BLOCK {
                    at = behind;
                    break;
                }
                marks &= u64::MAX << (behind - from);
            }
        }
    }

    fn look(&mut self, text: &[u8], from: usize) -> Option<()> {
        let rest = text.get(from..).filter(|rest| !rest.is_empty())?;
        let block = Block::padded(rest);
        self.from = from;
        self.marks = (block.is(b'"') | block.is(b'\\') | block.is_at_most(b' ' - 1)).bits();
        Some(())
    }
}

/// How long the escape is that goes on with `behind`, its backslash included.
fn escape(behind: &[u8]) -> Option<usize> {
    match behind.first()? {
        b'u' => behind.get(1..5)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        byte => matches!(byte, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't').then_some(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str, at: usize) -> Option<(usize, bool)> {
        Stops::new().end(text.as_bytes(), at)
    }

    #[test]
    fn a_string_ends_at_the_first_quote_that_is_not_escaped_wherever_it_lies() {
        for escape in ["", "\\\"", "\\\\", "\\n", "\\u00e9", "\\\\\\\""] {
            for before in [0, 1, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 120, 127, 128] {
                let text = format!("{}{escape}bc\" \"d", "a".repeat(before));
                let quote = before + escape.len() + 2;
                assert_eq!(end(&text, 0), Some((quote, !escape.is_empty())), "{text}");
                assert_eq!(end(&text, before + escape.len()), Some((quote, false)), "{text}");
                let mut stops = Stops::new();
                let two = [0, quote + 1].map(|at| stops.end(text.as_bytes(), at).map(|(end, _)| end));
                assert_eq!(two, [Some(quote), Some(quote + 2)], "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_string_has_no_end() {
        for before in [0, 1, 58, 59, 60, 61, 62, 63, 64, 65, 127] {
            for wrong in
                ["", "\\", "\\\"", "\\x\"", "\\u00g0\"", "\\u12\"", "\\u123", "\n\"", "\u{1f}\"", "\0\"", "\\\n\""]
            {
                let text = format!("{}{wrong}", "a".repeat(before));
                assert_eq!(end(&text, 0), None, "{before} and {wrong:?}");
                assert_eq!(end(&text, text.len()), None);
            }
            assert_eq!(end(&format!("{}\u{7f}é\"", "a".repeat(before)), 0), Some((before + 3, false)));
        }
    }
}
