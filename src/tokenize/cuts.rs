//! Where a text may be cut so that the tokens of its parts, one after the other, are the tokens of the whole.
//!
//! For tokenizers that first find added tokens in the text, then split what is between into words by a pattern and make
//! tokens of each word by itself, a cut is safe where in every text one word ends and the next begins. The patterns
//! ([`Words`]) were read for that. All of them tile the text from left to right, none looks behind, and the only
//! look-ahead is `(?!\S)` after white space. So:
//!
//! - **An ASCII letter or digit, then a space or line feed.** No alternative matches the one followed by the other, and what
//!   is white space is behind the cut as a whole.
//! - **A line feed, then no white space** ([`Words::Lines`]). The alternatives that match a line feed take as many as there
//!   are (`[\r\n]*`, `\s*[\r\n]+`) and nothing of what follows. In o200k a sign takes slashes along (`[\r\n/]*`). Not so in
//!   GPT-2: `\s+(?!\S)` leaves the last of two line feeds to the next word, and at a text's end it does not.
//! - **A Chinese or Japanese letter, then an ideographic full stop or comma.** A word of letters ends there, and no
//!   alternative begins with a letter and goes on to a sign.
//! - **The end of an added token** that overlaps no other one: such tokens are found first, and what is between them is
//!   looked at piece by piece.
//!
//! Composition (NFC) crosses none of these places: nothing composes with white space or ideographic punctuation behind it,
//! nor with a line feed before it. An added token that has such a pair inside would be cut apart: then the rule is not used.

use memchr::memmem::Finder;

use super::pipeline::{Pipeline, Words};

/// Bytes after which a part may end behind the token that ends a turn. Less is not worth an entry.
const TURN_BYTES_MIN: usize = 64;

/// Where the texts of one tokenizer may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    pairs: Pairs,
    turn_end: Option<Finder<'static>>,
}

/// The rules that look at two characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pairs {
    word_then_space: bool,
    line_then_text: bool,
    slash_too: bool,
    letter_then_stop: bool,
}

impl Cuts {
    /// No cut is known to be safe.
    pub(super) fn none() -> Self {
        Self { pairs: Pairs::default(), turn_end: None }
    }

    /// The cuts that are safe for this tokenizer. `turn_end` is the token that ends a message, if the model has one.
    pub(super) fn of(pipeline: &Pipeline, turn_end: Option<&str>) -> Self {
        let Some(words) = pipeline.words().filter(|_| pipeline.adds_plainly()) else { return Self::none() };
        let added: Vec<&str> = pipeline.added_tokens.iter().map(|token| token.content.as_str()).collect();
        let turn_end = turn_end.filter(|token| added.contains(token) && stands_alone(token, &added));
        Self {
            pairs: Pairs::of(words).without(&added),
            turn_end: turn_end.map(|token| Finder::new(token.as_bytes()).into_owned()),
        }
    }

    /// Whether any place is known to be safe.
    pub(super) fn any(&self) -> bool {
        self.pairs != Pairs::default() || self.turn_end.is_some()
    }

    /// The end of the part of `text` that begins at `from` and has at least `bytes_min` bytes, or fewer where a turn ends.
    /// Depends only on what lies between and on the character behind, so texts that begin alike have the same parts, but for
    /// the last one. O(part): nothing is looked at far behind the place that is found.
    pub(super) fn next(&self, text: &str, from: usize, bytes_min: usize) -> usize {
        let bytes = text.as_bytes();
        let long = from.saturating_add(bytes_min).min(bytes.len());
        if let Some(len) = self.turn_within(&bytes[from..long], bytes_min) {
            return from + len;
        }
        let ends = |at: &usize| self.pairs.safe(text, *at) || self.ends_turn(&bytes[from..*at]);
        (long.max(1)..bytes.len()).find(ends).unwrap_or(bytes.len())
    }

    /// How long a part is that a turn's end cuts short, if one does.
    fn turn_within(&self, part: &[u8], bytes_min: usize) -> Option<usize> {
        let finder = self.turn_end.as_ref()?;
        let mut ends = finder.find_iter(part).map(|at| at + finder.needle().len());
        ends.find(|len| *len >= TURN_BYTES_MIN.min(bytes_min))
    }

    fn ends_turn(&self, part: &[u8]) -> bool {
        // Nearly always the last byte tells.
        let ends = |needle: &[u8]| part.last() == needle.last() && part.ends_with(needle);
        self.turn_end.as_ref().is_some_and(|finder| ends(finder.needle()))
    }
}

impl Pairs {
    fn of(words: Words) -> Self {
        let known = words != Words::Unknown;
        let lines = matches!(words, Words::Lines | Words::LinesOrSlash);
        Self {
            word_then_space: known,
            line_then_text: lines,
            slash_too: words == Words::Lines,
            letter_then_stop: known,
        }
    }

    /// Leaves out each rule by which one of `tokens` would be cut apart.
    fn without(self, tokens: &[&str]) -> Self {
        let cuts = |pairs: Self| tokens.iter().any(|token| pairs.first(token, 1).is_some());
        let only = |pairs: Self, on: bool| on && !cuts(pairs);
        let none = Self::default();
        Self {
            word_then_space: only(Self { word_then_space: true, ..none }, self.word_then_space),
            line_then_text: only(Self { line_then_text: true, slash_too: true, ..none }, self.line_then_text),
            letter_then_stop: only(Self { letter_then_stop: true, ..none }, self.letter_then_stop),
            ..self
        }
    }

    /// The first safe place of `text` at `from` or later, but for its ends.
    fn first(self, text: &str, from: usize) -> Option<usize> {
        (from.max(1)..text.len()).find(|&at| self.safe(text, at))
    }

    fn safe(self, text: &str, at: usize) -> bool {
        #[cfg(test)]
        tests::LOOKED_AT.with(|count| count.set(count.get() + 1));
        let bytes = text.as_bytes();
        let (before, behind) = (bytes[at - 1], bytes[at]);
        match (before, behind) {
            (b'\n', b'/') => self.line_then_text && self.slash_too,
            (b'\n', 0..=b' ' | 0x7f) => false,
            (b'\n', 0..=0x7f) => self.line_then_text,
            // What follows is a character of its own: a line feed ends one.
            (b'\n', _) => self.line_then_text && text[at..].starts_with(|char: char| !char.is_whitespace()),
            (_, b' ' | b'\n') => self.word_then_space && before.is_ascii_alphanumeric(),
            (_, 0xe3 | 0xef) => self.letter_then_stop && stop_behind_letter(bytes, at),
            _ => false,
        }
    }
}

/// Whether `、`, `。` or `，` begins at `at` and a Han, Hiragana or Katakana letter ends there.
fn stop_behind_letter(bytes: &[u8], at: usize) -> bool {
    let stop = matches!(bytes.get(at..at + 3), Some([0xe3, 0x80, 0x81 | 0x82] | [0xef, 0xbc, 0x8c]));
    if !stop || at < 3 {
        return false;
    }
    let letter = std::str::from_utf8(&bytes[at - 3..at]).ok().and_then(|text| text.chars().next());
    letter.is_some_and(
        |letter| matches!(letter, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fa5}'),
    )
}

/// Whether `token`, wherever it stands in a text, is found there: no other token can begin inside of it or reach into it.
fn stands_alone(token: &str, tokens: &[&str]) -> bool {
    let overlap = |first: &str, second: &str| {
        (1..first.len()).any(|at| first.is_char_boundary(at) && second.starts_with(&first[at..]))
    };
    !overlap(token, token)
        && tokens.iter().filter(|other| **other != token).all(|other| {
            !other.contains(token) && !token.contains(other) && !overlap(token, other) && !overlap(other, token)
        })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    thread_local! {
        /// Places that were looked at.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    /// The end of a part as it is meant: of all places from `bytes_min` bytes on that are safe, and of all ends of a turn that
    /// leave the part long enough, the first.
    fn defined(cuts: &Cuts, text: &str, from: usize, bytes_min: usize) -> usize {
        let end = cuts.pairs.first(text, from + bytes_min).unwrap_or(text.len());
        let Some(finder) = &cuts.turn_end else { return end };
        let part = text.as_bytes().get(from..end).unwrap_or_default();
        let mut ends = finder.find_iter(part).map(|at| at + finder.needle().len());
        ends.find(|len| *len >= TURN_BYTES_MIN.min(bytes_min)).map_or(end, |len| from + len)
    }

    proptest! {
        #[test]
        fn every_part_ends_where_the_definition_says(
            pieces in prop::collection::vec(
                prop::sample::select(vec!["a", "word", " ", "\n", "/", "!", "é", "字", "。", "<end>", "<en", "!!!!!!!!!!!!!!!!"]),
                0..200,
            ),
            words in prop::sample::select(vec![Words::Lines, Words::LinesOrSlash, Words::Gpt2, Words::Unknown]),
            has_turn_end: bool,
            bytes_min in 1_usize..150,
        ) {
            let text = pieces.concat();
            let turn_end = has_turn_end.then(|| Finder::new(b"<end>").into_owned());
            let cuts = Cuts { turn_end, ..everywhere(words, &[]) };
            let mut from = 0;
            while from < text.len() {
                let end = cuts.next(&text, from, bytes_min);
                prop_assert_eq!(end, defined(&cuts, &text, from, bytes_min));
                from = end;
            }
        }
    }

    #[test]
    fn a_text_is_looked_at_once_whatever_it_is_made_of() {
        let cuts = Cuts { turn_end: Some(Finder::new(b"<end>").into_owned()), ..everywhere(Words::Lines, &[]) };
        for (piece, parts) in
            [("!".repeat(64) + "<end>", 4000), ("!".repeat(4000) + " <end>", 4000), ("a ".repeat(40), 150)]
        {
            let text = piece.repeat(4000);
            LOOKED_AT.set(0);
            assert!(parts_of(2048, &cuts, &text).len() >= parts, "{}", &piece[..8]);
            assert!(LOOKED_AT.get() <= text.len(), "{} places of {} bytes", LOOKED_AT.get(), text.len());
        }
    }

    fn everywhere(words: Words, tokens: &[&str]) -> Cuts {
        let turn_end = tokens.first().filter(|token| stands_alone(token, tokens));
        Cuts {
            pairs: Pairs::of(words).without(tokens),
            turn_end: turn_end.map(|token| Finder::new(token.as_bytes()).into_owned()),
        }
    }

    fn parts<'a>(cuts: &Cuts, text: &'a str) -> Vec<&'a str> {
        parts_of(1, cuts, text)
    }

    fn parts_of<'a>(bytes_min: usize, cuts: &Cuts, text: &'a str) -> Vec<&'a str> {
        let (mut parts, mut from) = (Vec::new(), 0);
        while from < text.len() {
            let end = cuts.next(text, from, bytes_min);
            parts.push(&text[from..end]);
            from = end;
        }
        parts
    }

    #[test]
    fn each_rule_cuts_where_it_is_proven_and_nowhere_else() {
        let lines = everywhere(Words::Lines, &[]);
        assert_eq!(parts(&lines, "a b  c1 "), ["a", " b", "  c1", " "]);
        assert_eq!(parts(&lines, "a! b\t(c) d"), ["a! b\t(c) d"]);
        assert_eq!(parts(&lines, "!\n\n \n/x\n\u{3000}y\n字"), ["!\n\n \n", "/x", "\n\u{3000}y", "\n", "字"]);
        assert_eq!(parts(&lines, "é \u{301}e\n\u{301}x"), ["é \u{301}e", "\n", "\u{301}x"]);
        assert_eq!(parts(&lines, "漢字。かな，カナ、一.。"), ["漢字", "。かな", "，カナ", "、一.。"]);
        let slash = everywhere(Words::LinesOrSlash, &[]);
        assert_eq!(parts(&slash, "!\n/x\n!"), ["!\n/x", "\n", "!"]);
        let gpt2 = everywhere(Words::Gpt2, &[]);
        assert_eq!(parts(&gpt2, "!\n\nx\ny z"), ["!\n\nx", "\ny", " z"]);
        assert_eq!(parts(&everywhere(Words::Unknown, &[]), "a b\nc"), ["a b\nc"]);
    }

    #[test]
    fn a_turn_ends_a_part_unless_its_token_may_not_be_one() {
        let cuts = everywhere(Words::Unknown, &["<end>", "<other>"]);
        assert_eq!(parts(&cuts, "a b<end>\n<end><end"), ["a b<end>", "\n<end>", "<end"]);
        for tokens in [["<end>", ">>"], ["<end>", "x<"], ["<end>", "<end>x"], ["<end>", "end"], ["aba", "c"]] {
            assert!(everywhere(Words::Unknown, &tokens).turn_end.is_none(), "{tokens:?}");
        }
    }

    #[test]
    fn a_rule_that_would_cut_an_added_token_is_left_out() {
        let cuts = everywhere(Words::Lines, &["<a b>"]);
        assert_eq!(parts(&cuts, "x <a b>y\nz"), ["x <a b>", "y\n", "z"]);
        let cuts = everywhere(Words::Lines, &["<\n/>"]);
        assert_eq!(parts(&cuts, "x\ny z"), ["x", "\ny", " z"]);
        let cuts = everywhere(Words::Lines, &["字。"]);
        assert_eq!(parts(&cuts, "字字。"), ["字字。"]);
    }

    #[test]
    fn parts_are_long_but_for_those_that_end_a_turn() {
        let cuts = Cuts { turn_end: Some(Finder::new(b"<end>").into_owned()), ..everywhere(Words::Lines, &[]) };
        let text = format!("{}<end>{}", "word ".repeat(20), "word ".repeat(1000));
        let lengths: Vec<usize> = parts_of(2048, &cuts, &text).iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [105, 2049, 2050, 901]);
        // What follows changes the last part only.
        let longer = format!("{text}and so on");
        assert_eq!(parts_of(2048, &cuts, &longer)[..3], parts_of(2048, &cuts, &text)[..3]);
    }

    #[test]
    fn only_plain_tokens_and_read_patterns_allow_cuts() {
        let cuts = |lstrip: bool| {
            let file = json!({
                "added_tokens": [{"content": "<end>", "lstrip": lstrip}],
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
                "model": {"type": "BPE"},
            });
            Cuts::of(&Pipeline::read(&file.to_string()).unwrap(), Some("<end>"))
        };
        assert!(cuts(false).any() && cuts(false).turn_end.is_some());
        assert!(!cuts(true).any());
    }
}
