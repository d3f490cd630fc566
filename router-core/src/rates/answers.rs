//! How long answers take that come in one piece, of which nothing is seen but their ends.

use super::OFF_MAX;

/// Answers that are remembered, about.
const ANSWERS: f64 = 200.0;

/// What the fleet takes for a token of such answers: all but the time for their prompts, over all their tokens, old ones
/// counting less. Times are in ms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answers {
    ms: f64,
    tokens: f64,
}

impl Answers {
    /// An answer of so many tokens to a prompt that should take `prompt_ms` came after `ms`. Returns what should have been
    /// expected; none for the first.
    pub(super) fn add(&mut self, ms: f64, prompt_ms: f64, tokens: f64) -> Option<f64> {
        let expected = (self.tokens > 0.0).then(|| prompt_ms + self.ms / self.tokens * tokens);
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
}
