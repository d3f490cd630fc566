//! Where one word of a text ends and the next begins, found 64 bytes at a time.
//!
//! These are places where a text may be cut, as [`cuts`](super::cuts) explains, but many: so many that what is between them
//! occurs again and again. For the patterns that were read ([`Words`]) one word ends and the next begins
//!
//! - **between an ASCII letter, digit or sign and a space**: no alternative goes on from any of them to a space;
//! - **between an ASCII letter or digit and a line feed**; after a sign it would belong to the sign's word;
//! - **between a line feed and an ASCII character that is no white space** ([`Words::Lines`]; a slash only where the pattern
//!   does not take slashes along);
//! - **between an ASCII letter or digit and an ASCII sign**, but for the apostrophe: no alternative goes on from a letter
//!   or digit to a sign, except for the contractions (`'s`) that o200k's words end with.
//!
//! Composition crosses none of them: nothing composes with what stands before a space, a line feed or an ASCII sign. What an
//! added token has inside is no end of a word.

use super::pipeline::{Pipeline, Words};
use crate::stride::{STRIDE, Stride, place};

// What may begin a word, by what stands before it.
const BEHIND_WORD: u8 = 1;
const BEHIND_LINE: u8 = 2;

/// The ends of words that are safe for one tokenizer.
#[derive(Clone, Debug)]
pub(super) struct WordEnds {
    before_space: bool,
    before_line: bool,
    /// Of each byte that is not white space, what it may stand behind.
    behind: [u8; 256],
}

/// What the byte in front of a stride is: the last bit of each.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    word: u64,
    graphic: u64,
    line: u64,
}

impl WordEnds {
    /// `None` if words are not told apart by a pattern that was read.
    pub(super) fn of(pipeline: &Pipeline) -> Option<Self> {
        let words = pipeline.words().filter(|words| *words != Words::Unknown && pipeline.adds_plainly())?;
        let added = pipeline.added_tokens.iter().map(|token| token.content.as_bytes());
        Some(added.fold(Self::by(words), |mut ends, token| {
            ends.leave_whole(token);
            ends
        }))
    }

    fn by(words: Words) -> Self {
        let lines = matches!(words, Words::Lines | Words::LinesOrSlash);
        let mut behind = [0; 256];
        for byte in b'!'..=b'~' {
            let sign = byte.is_ascii_punctuation() && byte != b'\'';
            let text = lines && !(byte == b'/' && words == Words::LinesOrSlash);
            let rule = |holds: bool, rule: u8| if holds { rule } else { 0 };
            behind[usize::from(byte)] = rule(sign, BEHIND_WORD) | rule(text, BEHIND_LINE);
        }
        Self { before_space: true, before_line: true, behind }
    }

    /// Finds no end inside of `token` any more.
    fn leave_whole(&mut self, token: &[u8]) {
        for pair in token.windows(2) {
            match (pair[0], pair[1]) {
                (before, b' ') if before.is_ascii_graphic() => self.before_space = false,
                (before, b'\n') if before.is_ascii_alphanumeric() => self.before_line = false,
                (b'\n', behind) => self.behind[usize::from(behind)] &= !BEHIND_LINE,
                (before, behind) if before.is_ascii_alphanumeric() => self.behind[usize::from(behind)] &= !BEHIND_WORD,
                _ => {}
            }
        }
    }

    /// A bit for each byte of `bytes`, at most a stride, that a word begins with. `before` goes on from one to the next.
    #[inline]
    pub(super) fn within(&self, before: &mut Before, bytes: &[u8]) -> u64 {
        let stride = Stride::padded(bytes);
        let (word, graphic, space, line) =
            (stride.is_alphanumeric(), stride.is_graphic(), stride.is(b' '), stride.is(b'\n'));
        let behind = |bits: u64, last: &mut u64| bits << 1 | std::mem::replace(last, bits >> (STRIDE - 1));
        let behind_word = behind(word, &mut before.word);
        let behind_line = behind(line, &mut before.line);
        let behind_graphic = behind(graphic, &mut before.graphic);
        let on = |rule: bool| if rule { u64::MAX } else { 0 };
        let mut ends = behind_graphic & space & on(self.before_space) | behind_word & line & on(self.before_line);
        let mut perhaps = behind_word & graphic & !word | behind_line & graphic;
        while perhaps != 0 {
            let lowest = perhaps & perhaps.wrapping_neg();
            perhaps ^= lowest;
            let rule = if behind_line & lowest == 0 { BEHIND_WORD } else { BEHIND_LINE };
            if bytes.get(place(lowest)).is_some_and(|byte| self.behind[usize::from(*byte)] & rule != 0) {
                ends |= lowest;
            }
        }
        // Behind the end there are spaces.
        ends & 1_u64.checked_shl(u32::try_from(bytes.len()).unwrap_or(u32::MAX)).map_or(u64::MAX, |end| end - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

    use super::super::awkward::PIECES;
    use super::super::pipeline::PATTERNS;
    use super::*;

    /// Where words begin, but for the first.
    fn begins(ends: &WordEnds, text: &str) -> Vec<usize> {
        let mut before = Before::default();
        let mut begins = Vec::new();
        for (number, stride) in text.as_bytes().chunks(STRIDE).enumerate() {
            let found = ends.within(&mut before, stride);
            let places = (0..stride.len()).filter(|place| found >> place & 1 == 1);
            begins.extend(places.map(|place| number * STRIDE + place));
        }
        begins
    }

    fn words<'a>(ends: &WordEnds, text: &'a str) -> Vec<&'a str> {
        let mut from = 0;
        let ends: Vec<usize> = begins(ends, text).into_iter().chain([text.len()]).collect();
        ends.into_iter().map(|to| &text[std::mem::replace(&mut from, to)..to]).collect()
    }

    fn ends(kind: Words, added: &[&str]) -> WordEnds {
        let mut ends = WordEnds::by(kind);
        added.iter().for_each(|token| ends.leave_whole(token.as_bytes()));
        ends
    }

    #[test]
    fn each_rule_finds_what_is_proven_and_nothing_else() {
        let lines = ends(Words::Lines, &[]);
        assert_eq!(words(&lines, "ab  c1, (d) e"), ["ab", "  c1", ",", " (d", ")", " e"]);
        assert_eq!(words(&lines, "it's x's!\n\n y\nz"), ["it's", " x's", "!\n\n y", "\n", "z"]);
        assert_eq!(words(&lines, "\n/a\n'b\n字"), ["\n", "/a", "\n", "'b", "\n字"]);
        assert_eq!(words(&lines, "é. 字,a\tb\u{7f} "), ["é.", " 字,a\tb\u{7f} "]);
        assert_eq!(words(&ends(Words::LinesOrSlash, &[]), "a\n/b\nc/d"), ["a", "\n/b", "\n", "c", "/d"]);
        assert_eq!(words(&ends(Words::Gpt2, &[]), "a\nb c-d"), ["a", "\nb", " c", "-d"]);
    }

    #[test]
    fn no_end_is_found_inside_of_an_added_token() {
        assert_eq!(words(&ends(Words::Lines, &["<|im_end|>", "<b>"]), "a_b|c>d<e"), ["a_b|c>d", "<e"]);
        assert_eq!(words(&ends(Words::Lines, &["<a b>"]), "a b\nc"), ["a b", "\n", "c"]);
        assert_eq!(words(&ends(Words::Lines, &["a\n"]), "a b\nc"), ["a", " b\n", "c"]);
        assert_eq!(words(&ends(Words::Lines, &["\nc"]), "a b\nc\nd"), ["a", " b", "\nc", "\n", "d"]);
    }

    #[test]
    fn strides_do_not_matter() {
        let lines = ends(Words::Lines, &[]);
        for before in 1..2 * STRIDE {
            let text = format!("{} a,\nb", "-".repeat(before));
            assert_eq!(words(&lines, &text)[1..], [" a", ",\n", "b"], "{before}");
        }
    }

    /// Where the pattern's own words begin, says the reference's library.
    fn split(pattern: &str, text: &str) -> Vec<usize> {
        let split = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(split, SplitDelimiterBehavior::Isolated, false).unwrap();
        let mut words = PreTokenizedString::from(text);
        split.pre_tokenize(&mut words).unwrap();
        let words = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        words.into_iter().map(|(_, (from, _), _)| from).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn every_end_is_an_end_of_a_word_of_the_pattern(
            (pattern, kind) in select(PATTERNS.to_vec()),
            pieces in prop::collection::vec(select(PIECES.to_vec()), 0..60),
        ) {
            let text = pieces.concat();
            let true_ones = split(pattern, &text);
            for begin in begins(&WordEnds::by(kind), &text) {
                prop_assert!(true_ones.contains(&begin), "{:?} | {:?}", &text[..begin], &text[begin..]);
            }
        }
    }
}
