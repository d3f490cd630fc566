//! How long answers take that come in one piece, of which nothing is seen but their ends.

use super::mean::Mean;
use super::{BELIEF, OFF_MAX};

/// Answers that are remembered, about.
const ANSWERS: f64 = 200.0;

/// Tokens that an answer is believed to have: the first says that it has any number of them.
const TOKENS: f64 = 200.0;

/// What the fleet takes for a token of such answers: all but the time for their prompts, over all their tokens, old ones
/// counting less. Times are in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    ms: f64,
    tokens: f64,
    /// Tokens of one answer.
    each: Mean,
}

impl Default for Answers {
    fn default() -> Self {
        Self { ms: 0.0, tokens: 0.0, each: Mean::believed(TOKENS, BELIEF, 1.0 / ANSWERS) }
    }
}

impl Answers {
    /// An answer to a prompt that should take `prompt_ms` came after `ms`, with so many tokens, by what its worker says: too
    /// many count as so many times the usual, none say nothing. Returns what should have been expected; none for the first, and
    /// where that is nothing.
    pub(super) fn add(&mut self, ms: f64, prompt_ms: f64, tokens: f64) -> Option<f64> {
        if tokens <= 0.0 {
            return None;
        }
        let tokens = tokens.min(self.each.get() * OFF_MAX);
        self.each.add(tokens);
        let expected = (self.tokens > 0.0).then(|| prompt_ms + self.ms / self.tokens * tokens);
        let expected = expected.filter(|expected| *expected > 0.0);
        let ms = expected.map_or(ms, |expected| ms.min(expected * OFF_MAX));
        let keep = 1.0 - 1.0 / ANSWERS;
        self.ms = self.ms * keep + (ms - prompt_ms).max(0.0);
        self.tokens = self.tokens * keep + tokens;
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_take_what_those_before_took_for_their_tokens() {
        let mut answers = Answers::default();
        assert_eq!(answers.add(1_100.0, 100.0, 50.0), None);
        assert_eq!(answers.add(2_200.0, 200.0, 100.0), Some(2_200.0));
        assert_eq!(answers.add(60_000.0, 0.0, 1.0), Some(20.0));
        // A hang counts as sixteen such.
        let expected = answers.add(20.0, 0.0, 1.0).unwrap();
        assert!((20.0..22.5).contains(&expected), "{expected}");
    }

    /// A worker is judged by what it claims itself.
    #[test]
    fn an_answer_counts_as_so_many_usual_ones_however_many_tokens_it_claims() {
        let honest = |answers: &mut Answers| answers.add(550.0, 50.0, 50.0).unwrap_or(550.0);
        let mut answers = Answers::default();
        (0..300).for_each(|_| _ = honest(&mut answers));
        let claimed = answers.add(550.0, 50.0, f64::from(u32::MAX)).unwrap();
        assert!((8_050.0..8_500.0).contains(&claimed), "{claimed}");
        let expected = honest(&mut answers);
        assert!((500.0..550.0).contains(&expected), "{expected}");
        // The first one, too.
        let mut answers = Answers::default();
        answers.add(550.0, 50.0, f64::from(u32::MAX));
        (0..600).for_each(|_| _ = honest(&mut answers));
        let expected = honest(&mut answers);
        assert!((500.0..550.0).contains(&expected), "{expected}");
    }

    #[test]
    fn where_answers_are_long_they_soon_count_as_long_as_they_are() {
        let mut answers = Answers::default();
        let long = |answers: &mut Answers| answers.add(200_000.0, 0.0, 20_000.0);
        (0..20).for_each(|_| _ = long(&mut answers));
        let expected = long(&mut answers).unwrap();
        assert!((200_000.0..210_000.0).contains(&expected), "{expected}");
    }

    #[test]
    fn an_answer_without_tokens_says_nothing() {
        let mut answers = Answers::default();
        answers.add(550.0, 50.0, 50.0);
        assert_eq!([answers.add(900.0, 0.0, 0.0), answers.add(0.0, 0.0, 0.0)], [None; 2]);
        assert_eq!(answers.add(550.0, 50.0, 50.0), Some(550.0));
    }

    /// Nothing is so many times nothing.
    #[test]
    fn where_nothing_is_expected_nothing_can_take_longer() {
        let mut answers = Answers::default();
        assert_eq!([0.0, 0.0, 20.0].map(|ms| answers.add(ms, 0.0, 1.0)), [None; 3]);
        let expected = answers.add(20.0, 0.0, 1.0).unwrap();
        assert!((6.0..7.0).contains(&expected), "{expected}");
    }
}
