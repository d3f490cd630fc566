//! What those bring of whom nothing was heard yet.

use super::OFF_MAX;
use super::mean::Mean;

/// What requests bring whose first tokens have not come: a fleet that has just begun would know of nothing but what is believed
/// until the first prompt is computed, and all come as if each next one were short.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coming {
    /// Tokens and pairs, as in [`Work`](super::Work).
    tokens: f64,
    pairs: f64,
    count: u32,
}

impl Coming {
    /// One was sent.
    pub(super) fn add(&mut self, (tokens, pairs): (f64, f64)) {
        let Self { tokens: all_tokens, pairs: all_pairs, count } = *self;
        *self = Self { tokens: all_tokens + tokens, pairs: all_pairs + pairs, count: count.saturating_add(1) };
    }

    /// Its first token came, or it ended without one.
    pub(super) fn remove(&mut self, (tokens, pairs): (f64, f64)) {
        let Self { tokens: all_tokens, pairs: all_pairs, count } = *self;
        let count = count.saturating_sub(1);
        // What rounding left goes with the last.
        *self = if count == 0 {
            Self::default()
        } else {
            Self { tokens: all_tokens - tokens, pairs: all_pairs - pairs, count }
        };
    }

    /// The means of what requests bring, by those that were heard of and these together: none of these counts as more than a
    /// dozen usual ones.
    pub(super) fn join(&self, tokens: &Mean, pairs: &Mean) -> (f64, f64) {
        let Self { tokens: all_tokens, pairs: all_pairs, count } = *self;
        (tokens.joined_by((all_tokens, count), OFF_MAX), pairs.joined_by((all_pairs, count), OFF_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_heard_of_is_not_coming_any_more() {
        let (tokens, pairs) = (Mean::believed(2.0, 2.0, 0.005), Mean::believed(1.0, 2.0, 0.005));
        let mut coming = Coming::default();
        coming.add((8.0, 32.0));
        coming.add((4.0, 8.0));
        let (both, _) = coming.join(&tokens, &pairs);
        coming.remove((4.0, 8.0));
        let (one, one_pairs) = coming.join(&tokens, &pairs);
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value}, not {expected}");
        close(both, (4.0 + 6.0 * 1.98) / 3.98);
        close(one, (4.0 + 8.0 * 0.99) / 2.99);
        // As no more than sixteen usual ones.
        close(one_pairs, (2.0 + 16.0 * 0.99) / 2.99);
        coming.remove((8.0, 32.0));
        coming.remove((8.0, 32.0));
        assert_eq!(coming.join(&tokens, &pairs), (2.0, 1.0));
    }
}
