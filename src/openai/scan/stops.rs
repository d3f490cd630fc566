//! Where the strings of a JSON text end: 64 bytes at a glance. What is behind a backslash is reckoned for all of them at once
//! ([`Escaped`]), since code and prose have an escape in every line.

use crate::stride::{STRIDE, Stride, place};

/// Finds the ends of a text's strings, one behind the other; remembers the block where the last one ended.
pub(super) struct Stops {
    from: usize,
    block: Marks,
}

/// Places in a block, a bit for each.
#[derive(Clone, Copy)]
struct Marks {
    /// Quotes and control characters: nothing else ends a string.
    ends: u64,
    backslashes: u64,
}

impl Stops {
    /// Nothing was looked at.
    pub(super) fn new() -> Self {
        Self { from: usize::MAX, block: Marks { ends: 0, backslashes: 0 } }
    }

    /// The place of the quote that ends the string whose text begins at `at`, and whether it has escapes; always of the same
    /// `text`. `None` where there is no such quote, or before it a control character or an escape that is none.
    pub(super) fn end(&mut self, text: &[u8], at: usize) -> Option<(usize, bool)> {
        let mut from = at / STRIDE * STRIDE;
        let mut block = if from == self.from { self.block } else { Marks::of(text, from)? };
        let (mut inside, mut has_escapes, mut escaped) = (u64::MAX << (at % STRIDE), false, Escaped::default());
        loop {
            let escaped = escaped.by(block.backslashes & inside);
            let ends = block.ends & inside & !escaped;
            // All of them, unless the string ends here.
            let before_end = !ends & ends.wrapping_sub(1);
            if escaped & before_end != 0 {
                has_escapes = true;
                are_escapes(text, from, escaped & before_end)?;
            }
            if ends != 0 {
                *self = Self { from, block };
                let end = from + place(ends);
                return (*text.get(end)? == b'"').then_some((end, has_escapes));
            }
            from += STRIDE;
            (block, inside) = (Marks::of(text, from)?, u64::MAX);
        }
    }
}

impl Marks {
    /// Those of the block at `from`, if the text goes so far.
    fn of(text: &[u8], from: usize) -> Option<Self> {
        let rest = text.get(from..).filter(|rest| !rest.is_empty())?;
        let block = Stride::padded(rest);
        Some(Self { ends: block.is_quote_or_control(), backslashes: block.is(b'\\') })
    }
}

/// Which characters of a string are behind a backslash that is not itself behind one.
#[derive(Default)]
struct Escaped {
    /// The first bit, where the first character of the next block is.
    next: u64,
}

impl Escaped {
    /// Those of the next block, by its `backslashes`. Of a run of them every other one is escaped, and what follows the run
    /// where its length is odd: a subtraction runs through all runs at once, as in simdjson.
    fn by(&mut self, backslashes: u64) -> u64 {
        const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
        if backslashes == 0 {
            return std::mem::take(&mut self.next);
        }
        let begin = backslashes & !self.next;
        let escaping_or_behind = (begin << 1 | ODD).wrapping_sub(begin) ^ ODD;
        let escaped = escaping_or_behind ^ (backslashes | self.next);
        self.next = (escaping_or_behind & backslashes) >> (STRIDE - 1);
        escaped
    }
}

/// Whether there is an escape wherever one of these characters behind a backslash is.
fn are_escapes(text: &[u8], from: usize, mut escaped: u64) -> Option<()> {
    let kind = |byte: &u8| KINDS[usize::from(*byte)];
    while escaped != 0 {
        let (byte, behind) = text.get(from + place(escaped)..)?.split_first()?;
        let is_escape = kind(byte) & PLAIN != 0
            || *byte == b'u' && behind.first_chunk::<4>()?.iter().fold(HEX, |all, byte| all & kind(byte)) != 0;
        is_escape.then_some(())?;
        escaped &= escaped - 1;
    }
    Some(())
}

/// Bytes that are an escape with nothing but their backslash.
const PLAIN: u8 = 1;

/// Hexadecimal digits.
const HEX: u8 = 2;

/// What each byte is of these.
const KINDS: [u8; 256] = {
    let (mut kinds, mut at, mut byte) = ([0; 256], 0, 0_u8);
    while at < kinds.len() {
        let is_plain = matches!(byte, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't');
        kinds[at] = if is_plain { PLAIN } else { 0 } | if byte.is_ascii_hexdigit() { HEX } else { 0 };
        (at, byte) = (at + 1, byte.wrapping_add(1));
    }
    kinds
};

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

    /// The definition, character by character.
    fn plain_end(text: &[u8], at: usize) -> Option<(usize, bool)> {
        let (mut at, mut has_escapes) = (at, false);
        loop {
            let rest = text.get(at..)?;
            at += match rest {
                [b'"', ..] => return Some((at, has_escapes)),
                [b'\\', b'u', hex @ ..] if hex.len() >= 4 && hex[..4].iter().all(u8::is_ascii_hexdigit) => 6,
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
                [b' '..=b'[' | b']'.., ..] => 1,
                _ => return None,
            };
            has_escapes |= rest[0] == b'\\';
        }
    }

    #[test]
    fn a_string_ends_where_its_definition_says_so() {
        // As many of each kind as it takes for whole strings, broken ones and long runs of backslashes to be common.
        const PIECES: [&str; 24] = [
            r"\", r"\", r"\\", r"\\\\\\", r"\n", r"\n", r#"\""#, r#"\""#, r"\u00e9", r"\uD83d", r"\/", "\"", "a", "n",
            "u", "é", "0123", "of words", "of words", "of words", "{", "\u{7f}", "\n", "\0",
        ];
        let mut seed = 7_u64;
        let mut chance = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let mut found = [0; 2];
        for _ in 0..20_000 {
            // Half of them have no pieces that break a string wherever they stand.
            let kinds = PIECES.len() - 2 * chance(2);
            let text: String = (0..1 + chance(60)).map(|_| PIECES[chance(kinds)]).collect();
            let mut stops = Stops::new();
            let mut at = 0;
            // One string behind the other, as a scanner asks.
            while at <= text.len() {
                let expected = plain_end(text.as_bytes(), at);
                assert_eq!(stops.end(text.as_bytes(), at), expected, "{text:?} from {at}");
                found[usize::from(expected.is_some())] += 1;
                at = expected.map_or(at, |(end, _)| end) + 1 + chance(3);
            }
        }
        assert!(found.iter().all(|count| *count > 10_000), "{found:?}");
    }
}
