//! A roofline's constants from two points that were measured on a real engine.

use std::str::FromStr;

use super::roofline::Work;
use super::{Chunk, Ms, Roofline, StepLoad};

/// A cold prompt that one step computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillPoint {
    /// Its tokens.
    pub tokens: usize,
    /// How long that took.
    pub time: Ms,
}

/// A step that computed one token of each of several requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePoint {
    /// Requests.
    pub batch: usize,
    /// Tokens of each one's context, the new one included.
    pub context: usize,
    /// How long the step took.
    pub time: Ms,
}

/// Why two points give no constants.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// A text is no point.
    #[error("`{text}` is no point: {form}, all above 0")]
    Point {
        /// The text.
        text: String,
        /// How a point is written.
        form: &'static str,
    },
    /// A step cannot be shorter than what it costs in any case.
    #[error("the {what} took {time}, and a step takes {fixed} of overhead: give a smaller --overhead")]
    BelowOverhead {
        /// Which point.
        what: &'static str,
        /// How long it took.
        time: Ms,
        /// What the preset takes for a step.
        fixed: Ms,
    },
    /// The prefill says nothing about computing.
    #[error("the prefill of {tokens} tokens is bound by memory: measure a longer one")]
    PrefillBoundByMemory {
        /// Its tokens.
        tokens: usize,
    },
    /// The decode says nothing about memory.
    #[error("the decode of {batch} requests is bound by computing: measure fewer")]
    DecodeBoundByCompute {
        /// Its requests.
        batch: usize,
    },
}

impl PrefillPoint {
    fn load(&self) -> StepLoad {
        StepLoad { chunks: vec![Chunk { tokens: self.tokens, context: 0 }], ..StepLoad::default() }
    }
}

impl DecodePoint {
    fn load(&self) -> StepLoad {
        StepLoad { decodes: vec![self.context; self.batch], ..StepLoad::default() }
    }
}

impl Roofline {
    /// The same model on the same hardware with the shares of it that two measured points show; `overhead` is kept.
    ///
    /// # Errors
    /// [`FitError`] if the points show none.
    pub fn fitted(self, prefill: &PrefillPoint, decode: &DecodePoint) -> Result<Self, FitError> {
        let rest = |what, time: Ms| {
            let seconds = (time.0 - self.fixed().0) / 1e3;
            let fault = FitError::BelowOverhead { what, time, fixed: self.fixed() };
            if seconds > 0.0 { Ok(seconds) } else { Err(fault) }
        };
        let (computing, reading) = (self.work(&prefill.load()), self.work(&decode.load()));
        let mfu = computing.flops / (self.flops_at_most() * rest("prefill", prefill.time)?);
        let mbu = reading.bytes / (self.bytes_at_most() * rest("decode", decode.time)?);
        let fitted = Self { mfu, mbu, ..self };
        if fitted.is_bound_by_memory(computing) {
            return Err(FitError::PrefillBoundByMemory { tokens: prefill.tokens });
        }
        if !fitted.is_bound_by_memory(reading) {
            return Err(FitError::DecodeBoundByCompute { batch: decode.batch });
        }
        Ok(fitted)
    }

    fn is_bound_by_memory(&self, Work { flops, bytes }: Work) -> bool {
        bytes / (self.bytes_at_most() * self.mbu) > flops / (self.flops_at_most() * self.mfu)
    }
}

/// The most tokens or requests of a point.
const MOST: usize = 1 << 24;

fn count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| (1..=MOST).contains(count))
}

fn time(text: &str) -> Option<Ms> {
    text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0).map(Ms)
}

fn fault(text: &str, form: &'static str) -> FitError {
    FitError::Point { text: text.chars().take(64).collect(), form }
}

impl FromStr for PrefillPoint {
    type Err = FitError;

    fn from_str(text: &str) -> Result<Self, FitError> {
        let point = || {
            let (tokens, ms) = text.split_once(':')?;
            Some(Self { tokens: count(tokens)?, time: time(ms)? })
        };
        point().ok_or_else(|| fault(text, "TOKENS:MS"))
    }
}

impl FromStr for DecodePoint {
    type Err = FitError;

    fn from_str(text: &str) -> Result<Self, FitError> {
        let point = || {
            let (load, ms) = text.split_once(':')?;
            let (batch, context) = load.split_once('x')?;
            Some(Self { batch: count(batch)?, context: count(context)?, time: time(ms)? })
        };
        point().ok_or_else(|| fault(text, "BATCHxCONTEXT:MS"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &Roofline) -> (PrefillPoint, DecodePoint) {
        let mut prefill = PrefillPoint { tokens: 2048, time: Ms::ZERO };
        let mut decode = DecodePoint { batch: 8, context: 1024, time: Ms::ZERO };
        (prefill.time, decode.time) = (of.step(&prefill.load()), of.step(&decode.load()));
        (prefill, decode)
    }

    #[test]
    fn points_that_a_preset_makes_give_its_constants_back() {
        for preset in Roofline::PRESETS {
            let real = Roofline { mfu: 0.37, mbu: 0.81, ..preset };
            for engine in [preset, real] {
                let (prefill, decode) = points(&engine);
                let fitted = preset.fitted(&prefill, &decode).unwrap();
                assert!((fitted.mfu - engine.mfu).abs() < 1e-12, "{fitted}");
                assert!((fitted.mbu - engine.mbu).abs() < 1e-12, "{fitted}");
            }
        }
    }

    #[test]
    fn the_published_table_gives_the_first_presets_constants_to_its_two_digits() {
        let fitted = Roofline::PRESETS[0].fitted(&"2048:70.74".parse().unwrap(), &"1x1024:8.45".parse().unwrap());
        let fitted = fitted.unwrap();
        assert_eq!(((fitted.mfu * 1e2).round(), (fitted.mbu * 1e2).round()), (50.0, 75.0));
    }

    #[test]
    fn points_that_show_nothing_are_refused() {
        let preset = Roofline::PRESETS[0];
        let (prefill, decode) = points(&preset);
        let fault =
            |prefill: &PrefillPoint, decode: &DecodePoint| preset.fitted(prefill, decode).unwrap_err().to_string();
        let quick = PrefillPoint { time: Ms(2.0), ..prefill };
        let expected = "the prefill took 2 ms, and a step takes 2 ms of overhead: give a smaller --overhead";
        assert_eq!(fault(&quick, &decode), expected);
        let short = PrefillPoint { tokens: 8, time: Ms(3.0) };
        assert_eq!(fault(&short, &decode), "the prefill of 8 tokens is bound by memory: measure a longer one");
        let broad = DecodePoint { batch: 4096, context: 1, time: Ms(10.0) };
        assert_eq!(fault(&prefill, &broad), "the decode of 4096 requests is bound by computing: measure fewer");
    }

    #[test]
    fn points_are_read_as_counts_and_times() {
        assert_eq!("8x1024:9.5".parse(), Ok(DecodePoint { batch: 8, context: 1024, time: Ms(9.5) }));
        for bad in ["", "1", "0:1", "1:0", "1:-2", "x:1", "1:inf", "99999999:1"] {
            assert!(bad.parse::<PrefillPoint>().is_err(), "{bad}");
        }
        for bad in ["1:1", "1x0:1", "1x1", "0x1:1"] {
            assert!(bad.parse::<DecodePoint>().is_err(), "{bad}");
        }
    }
}
