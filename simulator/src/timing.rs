//! How long a step of the engine lasts.

use std::fmt;
use std::str::FromStr;

use warmpath_core::count::real_len;

use super::clock::Ms;

mod fit;
mod per_token;
mod roofline;

pub use fit::{DecodePoint, FitError, PrefillPoint};
pub use per_token::PerToken;
pub use roofline::Roofline;

/// Some tokens of one prompt, computed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens computed in this step.
    pub tokens: usize,
    /// Tokens before them, cached or computed earlier.
    pub context: usize,
}

/// What one step has to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// How many steps the engine has begun before.
    pub number: u64,
    /// The prompts that are being computed.
    pub chunks: Vec<Chunk>,
    /// Context of each request that computes one generated token, that token included.
    pub decodes: Vec<usize>,
    /// Requests admitted in this step.
    pub admitted: usize,
    /// Tokens that these found in the cache.
    pub cached_tokens: usize,
    /// Requests running in this step.
    pub running: usize,
    /// How many may run at once.
    pub max_running: usize,
    /// Requests that emit a token at the end of this step, the first or a later one.
    pub emitting: usize,
    /// Σ context of these ÷ (blocks × block size), shared tokens counted for each, at most 1.
    pub kv_use: f64,
}

impl StepLoad {
    /// Prompt tokens that the step computes.
    pub fn prefill_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens).sum()
    }
}

/// A model of how long steps last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timing {
    /// Flops and bytes against what the hardware does; the default.
    Roofline(Roofline),
    /// The polynomial that is built into Dynamo's mocker.
    Polynomial,
    /// The constants of llm-d-inference-sim. Its prefill is several times slower than good engines reach, which makes
    /// cache hits look more valuable than they are.
    PerToken(PerToken),
    /// So much a token. Cached tokens are charged separately, and a wholly cached prompt computes nothing, unlike in a
    /// real engine, which always computes the last token.
    Linear {
        /// For each computed token, prompt or output.
        computed: Ms,
        /// For each token that was found in the cache.
        cached: Ms,
    },
}

/// Prefill rates that were published for whole machines, as `linear`: Qwen3-Coder at 10 000 tokens a second, and DeepSeek
/// at 32 200.
const MEASURED: [(&str, Ms); 2] = [("linear:qwen3-coder", Ms(0.1)), ("linear:deepseek", Ms(1.0 / 32.2))];

impl Default for Timing {
    fn default() -> Self {
        Self::Roofline(Roofline::PRESETS[0])
    }
}

impl Timing {
    /// How long a step with this load lasts.
    pub fn step(&self, load: &StepLoad) -> Ms {
        match self {
            Self::Roofline(hardware) => hardware.step(load),
            Self::Polynomial => polynomial(load),
            Self::PerToken(constants) => constants.step(load),
            Self::Linear { computed, cached } => {
                let tokens = load.prefill_tokens() + load.decodes.len();
                Ms(computed.0 * real_len(tokens) + cached.0 * real_len(load.cached_tokens))
            }
        }
    }

    /// Every name that can be parsed, the default first.
    pub fn known() -> String {
        let mut names: Vec<_> = Self::named().map(|timing| timing.to_string()).collect();
        names.extend(MEASURED.map(|(name, _)| name.to_owned()));
        names.push("linear:MS_PER_COMPUTED_TOKEN,MS_PER_CACHED_TOKEN".to_owned());
        names.join(", ")
    }

    /// All that have a name and no numbers of their own.
    fn named() -> impl Iterator<Item = Self> {
        let roofline = Roofline::PRESETS.into_iter().map(Self::Roofline);
        roofline.chain([Self::Polynomial]).chain(PerToken::PRESETS.into_iter().map(Self::PerToken))
    }
}

/// Prefill plus decode as in Dynamo's mocker; a part that does not occur in the step takes no time.
fn polynomial(load: &StepLoad) -> Ms {
    let mut duration = Ms::ZERO;
    let tokens = load.prefill_tokens();
    if tokens > 0 {
        let t = real_len(tokens);
        duration += Ms(4.209989e-7 * t * t + 1.518344e-2 * t + 16.50142);
    }
    if load.emitting > 0 {
        let a = load.kv_use;
        duration += Ms((-25.74 * a * a + 54.01 * a + 5.74).max(1.0));
    }
    duration
}

/// Why a text names no timing model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The name is not known.
    #[error("unknown timing model `{name}` (known: {})", Timing::known())]
    Unknown {
        /// The text.
        name: String,
    },
    /// What stands behind `roofline:` is no preset with its constants.
    #[error(
        "`roofline:{text}` is no preset ({}) or gives something else than mfu and mbu from 0.000001 to 1000000 and \
         overhead from 0 to 1000000000, in ms (example: roofline:8b-h100,mfu=0.4,mbu=0.8,overhead=3)",
        Roofline::PRESETS.map(|preset| preset.name).join(", ")
    )]
    Roofline {
        /// What stands behind the colon.
        text: String,
    },
    /// The two numbers of `linear` are not two numbers.
    #[error("`linear:{numbers}` does not give two times in milliseconds, from 0 to 1000000 (example: linear:0.1,0.01)")]
    Linear {
        /// What stands behind the colon.
        numbers: String,
    },
}

impl FromStr for Timing {
    type Err = TimingError;

    fn from_str(text: &str) -> Result<Self, TimingError> {
        if let Some((_, ms_per_token)) = MEASURED.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Linear { computed: *ms_per_token, cached: Ms::ZERO });
        }
        if let Some(numbers) = text.strip_prefix("linear:") {
            return linear(numbers).ok_or_else(|| TimingError::Linear { numbers: excerpt(numbers) });
        }
        if let Some(spec) = text.strip_prefix("roofline:") {
            let roofline = Roofline::parse(spec).map(Self::Roofline);
            return roofline.ok_or_else(|| TimingError::Roofline { text: excerpt(spec) });
        }
        Self::named()
            .find(|timing| timing.to_string() == text)
            .ok_or_else(|| TimingError::Unknown { name: excerpt(text) })
    }
}

/// As much of a faulty text as an error message needs.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

fn linear(numbers: &str) -> Option<Timing> {
    let time = |text: &str| text.trim().parse().ok().filter(|ms: &f64| (0.0..=1e6).contains(ms)).map(Ms);
    let (computed, cached) = numbers.split_once(',')?;
    Some(Timing::Linear { computed: time(computed)?, cached: time(cached)? })
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Roofline(hardware) => write!(f, "roofline:{hardware}"),
            Self::Polynomial => f.write_str("polynomial"),
            Self::PerToken(constants) if *constants == PerToken::PRESETS[0] => f.write_str("per_token"),
            Self::PerToken(constants) => write!(f, "per_token:{}", constants.name),
            Self::Linear { computed, cached } => write!(f, "linear:{},{}", computed.0, cached.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(tokens: usize) -> StepLoad {
        StepLoad { chunks: vec![Chunk { tokens, context: 0 }], ..StepLoad::default() }
    }

    /// To four digits behind the point, as the reference values are given.
    fn four(Ms(ms): Ms) -> f64 {
        (ms * 1e4).round() / 1e4
    }

    #[test]
    fn the_polynomial_prefills_as_dynamos_mocker_does() {
        let golden = [(256, 20.4160), (500, 24.1984), (1024, 32.4907), (2048, 49.3629), (8192, 169.1369)];
        for (tokens, ms) in golden {
            assert_eq!(four(Timing::Polynomial.step(&prefill(tokens))), ms, "{tokens} tokens");
        }
    }

    #[test]
    fn the_polynomial_decodes_as_dynamos_mocker_does() {
        let golden = [(0.0, 5.74), (0.25, 17.6337), (0.5, 26.31), (0.75, 31.7688), (1.0, 34.01)];
        for (kv_use, ms) in golden {
            let load = StepLoad { decodes: vec![1], emitting: 1, kv_use, ..StepLoad::default() };
            // 31.76875 at 0.75: its fifth digit is a 5, which rounding may take either way.
            assert!((Timing::Polynomial.step(&load).0 - ms).abs() < 0.000_051, "use {kv_use}");
        }
    }

    #[test]
    fn a_polynomial_step_that_does_both_lasts_as_long_as_both() {
        let load = StepLoad { emitting: 1, kv_use: 0.0, ..prefill(256) };
        assert_eq!(four(Timing::Polynomial.step(&load)), 26.156);
        assert_eq!(Timing::Polynomial.step(&StepLoad::default()), Ms::ZERO);
    }

    #[test]
    fn linear_charges_cached_tokens_separately() {
        let timing: Timing = "linear:0.1,0.01".parse().unwrap();
        for (tokens, cold, warm) in [(500, 50.0, 5.0), (2000, 200.0, 20.0), (8000, 800.0, 80.0)] {
            assert_eq!(timing.step(&prefill(tokens)), Ms(cold));
            assert_eq!(timing.step(&StepLoad { cached_tokens: tokens, ..StepLoad::default() }), Ms(warm));
        }
    }

    #[test]
    fn every_name_is_parsed_and_printed_alike() {
        let names = [
            "roofline:8b-h100",
            "roofline:70b-h100x4",
            "roofline:70b-h100x8",
            "roofline:70b-h100x8,mfu=0.4,mbu=0.81,overhead=3.5",
            "polynomial",
            "per_token",
            "per_token:70b-h100x8",
            "linear:0.1,0.01",
            "linear:0,25",
        ];
        for name in names {
            assert_eq!(name.parse::<Timing>().unwrap().to_string(), name);
        }
        assert_eq!(Timing::default().to_string(), "roofline:8b-h100");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "rooflin:9b".parse::<Timing>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown timing model `rooflin:9b` (known: roofline:8b-h100, roofline:70b-h100x4, roofline:70b-h100x8, \
             polynomial, per_token, per_token:70b-h100x8, linear:qwen3-coder, linear:deepseek, linear:MS_PER_COMPUTED_TOKEN,MS_PER_CACHED_TOKEN)"
        );
    }

    #[test]
    fn a_preset_takes_other_constants_and_nothing_else() {
        let timing: Timing = "roofline:8b-h100,mfu=0.4,overhead=3".parse().unwrap();
        let expected = Roofline { mfu: 0.4, overhead: Ms(3.0), ..Roofline::PRESETS[0] };
        assert_eq!(timing, Timing::Roofline(expected));
        let bad = [
            "9b",
            "8b-h100,",
            "8b-h100,mfu",
            "8b-h100,mfu=0",
            "8b-h100,mbu=inf",
            "8b-h100,overhead=-1",
            "8b-h100,layers=3",
        ];
        for text in bad {
            let error = format!("roofline:{text}").parse::<Timing>().unwrap_err();
            assert_eq!(error, TimingError::Roofline { text: text.to_owned() });
        }
    }

    #[test]
    fn published_rates_are_linear_in_computed_tokens() {
        let us = |name: &str| (name.parse::<Timing>().unwrap().step(&prefill(1)).0 * 1e3).round();
        assert_eq!((us("linear:qwen3-coder"), us("linear:deepseek")), (100.0, 31.0));
    }

    #[test]
    fn linear_wants_two_times() {
        for numbers in ["", "1", "1,2,3", "1,-2", "nan,1", "1,inf", "a,b"] {
            let error = format!("linear:{numbers}").parse::<Timing>().unwrap_err();
            assert_eq!(error, TimingError::Linear { numbers: numbers.to_owned() });
        }
    }
}
