//! What hits are worth: prefill that is not computed, in GPU seconds and GPUs, and how much KV a service makes.

use serde::Serialize;
use warmpath_core::count::real;

/// What the cache saves of prefill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Savings {
    /// GPU seconds that hits save: saved tokens × time a token.
    pub saved_gpu_s: f64,
    /// GPUs that prefill would keep busy without a cache, on average.
    pub gpus_without: f64,
    /// GPUs that it keeps busy with it.
    pub gpus: f64,
}

impl Savings {
    /// Of `hits` among `tokens` in `span_s` seconds, at `us_per_token` of one GPU.
    pub fn of(tokens: u64, hits: u64, us_per_token: f64, span_s: f64) -> Self {
        let gpu_s = |tokens: u64| real(tokens) * us_per_token / 1e6;
        let gpus = |tokens: u64| if span_s > 0.0 { gpu_s(tokens) / span_s } else { 0.0 };
        Self { saved_gpu_s: gpu_s(hits), gpus_without: gpus(tokens), gpus: gpus(tokens.saturating_sub(hits)) }
    }
}

/// KV that a service makes and would keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KvVolume {
    /// GB (10⁹ bytes) a second.
    pub gb_per_s: f64,
    /// PB (10¹⁵ bytes) a day.
    pub pb_per_day: f64,
}

impl KvVolume {
    /// Of `tokens_per_s` at `bytes_per_token`: what is kept grows linearly with the time for which it is kept.
    pub fn of(tokens_per_s: f64, bytes_per_token: f64) -> Self {
        let bytes = tokens_per_s * bytes_per_token;
        Self { gb_per_s: bytes / 1e9, pb_per_day: bytes * 86_400.0 / 1e15 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_7b_model_at_a_thousand_requests_a_second_makes_five_petabytes_a_day() {
        // 28 layers × 4 KV heads × 128 × 2 (K and V) × 2 bytes = 57 344 bytes a token.
        let volume = KvVolume::of(1_000.0 * 1_000.0, 57_344.0);
        assert!((volume.gb_per_s - 57.344).abs() < 1e-9, "{volume:?}");
        assert!((volume.pb_per_day - 4.954_521_6).abs() < 1e-9, "{volume:?}");
    }

    #[test]
    fn saved_tokens_are_gpu_seconds_and_gpus() {
        let savings = Savings::of(2_000_000, 500_000, 100.0, 10.0);
        assert_eq!(savings, Savings { saved_gpu_s: 50.0, gpus_without: 20.0, gpus: 15.0 });
        assert!(Savings::of(1, 1, 1.0, 0.0).gpus.abs() < 1e-12);
    }
}
