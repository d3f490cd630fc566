//! So much a token, more under load: the constants of llm-d-inference-sim.

use warmpath_core::count::real_len;

use super::{Ms, StepLoad};

/// Its constants. There, each request sleeps for itself; here requests share steps, so prompt tokens of one step add up,
/// and a lone request takes exactly `overhead + uncached·prefill` to its first token and `decode` to each later one. The
/// transfer of KV between a prefill and a decode engine has no part in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerToken {
    /// Its name, behind `per_token:`.
    pub name: &'static str,
    /// Of every step that admits a request.
    pub overhead: Ms,
    /// Of each prompt token computed.
    pub prefill: Ms,
    /// Of a step in which requests compute generated tokens.
    pub decode: Ms,
    /// By how much all of this is longer with as many requests as may run; grows linearly from 1 with one request.
    pub time_factor: f64,
}

impl PerToken {
    /// The published ones, the default first.
    pub const PRESETS: [Self; 2] = [
        Self { name: "8b-h100", overhead: Ms(30.0), prefill: Ms(0.25), decode: Ms(12.0), time_factor: 2.0 },
        Self { name: "70b-h100x8", overhead: Ms(80.0), prefill: Ms(0.5), decode: Ms(25.0), time_factor: 3.0 },
    ];

    /// How long a step lasts.
    pub fn step(&self, load: &StepLoad) -> Ms {
        let mut time = self.prefill.0 * real_len(load.prefill_tokens());
        if load.admitted > 0 {
            time += self.overhead.0;
        }
        if !load.decodes.is_empty() {
            time += self.decode.0;
        }
        Ms(time * self.load_factor(load))
    }

    fn load_factor(&self, load: &StepLoad) -> f64 {
        let (others, most) = (load.running.saturating_sub(1), load.max_running.saturating_sub(1));
        if most == 0 { 1.0 } else { 1.0 + (self.time_factor - 1.0) * real_len(others) / real_len(most) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chunk;
    use super::*;

    #[test]
    fn a_lone_request_pays_for_its_uncached_tokens_once_and_for_each_later_one() {
        let [small, large] = PerToken::PRESETS;
        let first = StepLoad {
            chunks: vec![Chunk { tokens: 1000, context: 24 }],
            admitted: 1,
            running: 1,
            max_running: 5,
            emitting: 1,
            ..StepLoad::default()
        };
        assert_eq!((small.step(&first), large.step(&first)), (Ms(280.0), Ms(580.0)));
        let later = StepLoad { decodes: vec![1025], running: 1, max_running: 5, emitting: 1, ..StepLoad::default() };
        assert_eq!((small.step(&later), large.step(&later)), (Ms(12.0), Ms(25.0)));
    }

    #[test]
    fn load_makes_everything_longer_up_to_the_factor() {
        let [small, large] = PerToken::PRESETS;
        let load = |running| StepLoad { decodes: vec![9; running], running, max_running: 5, ..StepLoad::default() };
        assert_eq!([1, 3, 5].map(|running| small.step(&load(running)).0), [12.0, 18.0, 24.0]);
        assert_eq!(large.step(&load(5)), Ms(75.0));
        assert_eq!(small.step(&StepLoad { max_running: 1, ..load(1) }), Ms(12.0), "one at a time has no load");
    }
}
