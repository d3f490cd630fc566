//! How a model's prompts become tokens.

use metrics::Label;
use warmpath_core::count::real;

use super::{ModelMetrics, TOKEN_BYTES, TOKEN_CHECKS, TOKEN_CUTS, TOKEN_FAST, TOKEN_HITS, TOKENIZED};

/// What a tokenizer tells of itself at one moment. Counts are totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenizerFigures {
    /// Bytes of texts of requests that were known as a whole.
    pub repeated_bytes: u64,
    /// Bytes of parts of texts that were known.
    pub found_bytes: u64,
    /// Bytes that were encoded.
    pub encoded_bytes: u64,
    /// The share of the first two in the last five minutes.
    pub known_share: f64,
    /// Memory for what was seen before, of all models together.
    pub cache_bytes: usize,
    /// Comparisons with the reference: equal, different, skipped.
    pub comparisons: [u64; 3],
    /// Whether the fast tokenizer is in use; none where no tokenizer was loaded here.
    pub fast: Option<bool>,
    /// Whether texts are cut; none where no tokenizer was loaded here.
    pub cuts: Option<bool>,
}

impl ModelMetrics {
    /// Brings what is told of its tokenizer up to date.
    pub fn tokenizer(&self, figures: &TokenizerFigures) {
        let registry = &self.metrics.registry;
        let labels = |name: &'static str, value: &'static str| {
            vec![Label::new("model", self.model.clone()), Label::new(name, value)]
        };
        for (source, bytes) in
            [("repeated", figures.repeated_bytes), ("found", figures.found_bytes), ("encoded", figures.encoded_bytes)]
        {
            registry.counter(&TOKENIZED, labels("source", source)).absolute(bytes);
        }
        for (result, count) in ["equal", "differs", "skipped"].into_iter().zip(figures.comparisons) {
            registry.counter(&TOKEN_CHECKS, labels("result", result)).absolute(count);
        }
        let gauge = |definition| registry.gauge(definition, vec![Label::new("model", self.model.clone())]);
        gauge(&TOKEN_HITS).set(figures.known_share);
        for (definition, state) in [(&TOKEN_FAST, figures.fast), (&TOKEN_CUTS, figures.cuts)] {
            state.into_iter().for_each(|state| gauge(definition).set(f64::from(u8::from(state))));
        }
        let bytes = u64::try_from(figures.cache_bytes).unwrap_or(u64::MAX);
        registry.gauge(&TOKEN_BYTES, Vec::new()).set(real(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn figures_become_metrics_of_the_model() {
        let metrics = Metrics::new("w");
        let figures = TokenizerFigures {
            repeated_bytes: 1,
            found_bytes: 2,
            encoded_bytes: 3,
            known_share: 0.5,
            cache_bytes: 7,
            comparisons: [4, 5, 6],
            fast: Some(true),
            cuts: Some(false),
        };
        metrics.model(0, "m").tokenizer(&figures);
        let text = metrics.render();
        for line in [
            "w_tokenized_bytes_total{model=\"m\",source=\"found\"} 2",
            "w_tokenized_bytes_total{model=\"m\",source=\"encoded\"} 3",
            "w_tokenizer_checks_total{model=\"m\",result=\"differs\"} 5",
            "w_token_cache_hit_ratio{model=\"m\"} 0.5",
            "w_token_cache_bytes 7",
            "w_tokenizer_fast{model=\"m\"} 1",
            "w_tokenizer_cuts{model=\"m\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.model(1, "asks-its-engines").tokenizer(&TokenizerFigures::default());
        let text = metrics.render();
        let said = |name: &str| text.contains(&format!("w_{name}{{model=\"asks-its-engines\"}}"));
        assert!(said("token_cache_hit_ratio") && !said("tokenizer_fast") && !said("tokenizer_cuts"), "{text}");
    }
}
