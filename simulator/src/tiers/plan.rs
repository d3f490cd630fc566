//! What an engine's lower tiers are, and by which rules they are used.

use std::fmt;
use std::str::FromStr;

use warmpath_core::count::real_len;

use super::eviction::Eviction;
use super::link::LinkSpec;
use crate::clock::Ms;

/// When a page is copied from the GPU to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// As soon as it is cached.
    WriteThrough,
    /// Once it was used so many times; that it was stored counts as one.
    Selective {
        /// Uses.
        uses: u32,
    },
    /// When the GPU evicts it.
    WriteBack,
}

/// How long a request waits for what is being fetched for it from shared storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefetchPolicy {
    /// Not at all: whatever whole pages have come when it could run are used.
    BestEffort,
    /// Until all has come.
    WaitComplete,
    /// Until all has come or the time is over.
    Timeout {
        /// For any prefetch.
        base: Ms,
        /// For each 1024 tokens of it.
        per_ki: Ms,
    },
}

impl PrefetchPolicy {
    /// How long a prefetch of so many tokens may take; none means without limit.
    pub fn limit(&self, tokens: usize) -> Option<Ms> {
        match self {
            Self::BestEffort => Some(Ms::ZERO),
            Self::WaitComplete => None,
            Self::Timeout { base, per_ki } => Some(Ms(base.0 + per_ki.0 * real_len(tokens) / 1024.0)),
        }
    }
}

/// An engine's lower tiers, as SGLang's HiCache has them: host memory below the GPU, below it storage that is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiers {
    /// Pages of the host's memory. SGLang has at least twice the GPU's.
    pub host_pages: u32,
    /// Pages of shared storage that this engine has for itself; 0 where it has none, or the fleet's is given to it.
    pub own_shared_pages: u32,
    /// When pages are copied to the host. What is copied there is copied on to shared storage, if it is not there yet.
    pub write: WritePolicy,
    /// Whether pages with generated tokens are copied down too, before a prompt repeats them. Off by default, as offloading
    /// from decode engines is.
    pub write_output: bool,
    /// How long requests wait for shared storage.
    pub prefetch: PrefetchPolicy,
    /// Tokens that shared storage must have for a prefetch to be worth it.
    pub prefetch_min: usize,
    /// Bytes of KV a token, over all layers and GPUs.
    pub kv_bytes: f64,
    /// Layers, which are loaded one after the other while those before are computed.
    pub layers: u32,
    /// Between GPU and host, in each direction.
    pub bus: LinkSpec,
    /// Between host and shared storage, in each direction, for all ranks together.
    pub network: LinkSpec,
    /// Ranks of the engine, each of which fetches its share of every page over its share of the network; at least 1.
    pub ranks: u32,
    /// How many times as long the last rank's share takes as the others'.
    pub slow_rank: f64,
    /// Which pages of the host make room for others.
    pub eviction: Eviction,
}

impl Default for Tiers {
    /// An 8B model on one H100 with twice the GPU's memory below it, and no shared storage.
    fn default() -> Self {
        Self {
            host_pages: 48_000,
            own_shared_pages: 0,
            write: WritePolicy::WriteThrough,
            write_output: false,
            prefetch: PrefetchPolicy::BestEffort,
            prefetch_min: 256,
            kv_bytes: 131_072.0,
            layers: 32,
            bus: LinkSpec::PRESETS[0].1,
            network: LinkSpec::PRESETS[2].1,
            ranks: 1,
            slow_rank: 1.0,
            eviction: Eviction::Lru,
        }
    }
}

impl Tiers {
    /// How long a step lasts that computes for `compute` and loads for `load`: a layer's computation begins when its KV is
    /// there, and the next layer is loaded meanwhile.
    pub fn overlapped(&self, compute: Ms, load: Ms) -> Ms {
        let layers = f64::from(self.layers.max(1));
        let (c, l) = (compute.0 / layers, load.0 / layers);
        Ms(l + c + (layers - 1.0) * l.max(c))
    }
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{text}` (known: {known})")]
pub struct PolicyError {
    text: String,
    known: &'static str,
}

impl PolicyError {
    pub(super) fn of(text: &str, known: &'static str) -> Self {
        Self { text: text.chars().take(64).collect(), known }
    }
}

impl FromStr for WritePolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "write_through" => Ok(Self::WriteThrough),
            "write_through_selective" => Ok(Self::Selective { uses: 2 }),
            "write_back" => Ok(Self::WriteBack),
            _ => Err(PolicyError::of(text, "write_through, write_through_selective, write_back")),
        }
    }
}

impl FromStr for PrefetchPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let seconds = |text: &str| text.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0).map(|s| Ms(1e3 * s));
        let timeout = || {
            let (base, per_ki) = text.strip_prefix("timeout:")?.split_once(',')?;
            Some(Self::Timeout { base: seconds(base)?, per_ki: seconds(per_ki)? })
        };
        match text {
            "best_effort" => Ok(Self::BestEffort),
            "wait_complete" => Ok(Self::WaitComplete),
            "timeout" => Ok(Self::Timeout { base: Ms(500.0), per_ki: Ms(250.0) }),
            _ => timeout().ok_or_else(|| {
                PolicyError::of(text, "best_effort, wait_complete, timeout, timeout:SECONDS,SECONDS_PER_1024_TOKENS")
            }),
        }
    }
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteThrough => "write_through",
            Self::Selective { .. } => "write_through_selective",
            Self::WriteBack => "write_back",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_overlaps_with_computing_layer_by_layer() {
        let tiers = Tiers::default();
        let rounded = |ms: Ms| (ms.0 * 1e6).round() / 1e6;
        assert_eq!(rounded(tiers.overlapped(Ms(32.0 * 0.2), Ms(32.0 * 0.1))), 6.5, "serial it would be 9.6");
        assert_eq!(rounded(tiers.overlapped(Ms(32.0 * 0.1), Ms(32.0 * 0.2))), 6.5);
        assert_eq!(rounded(tiers.overlapped(Ms(8.0), Ms::ZERO)), 8.0);
    }

    #[test]
    fn a_prefetch_may_take_a_base_and_a_share_for_its_tokens() {
        let timeout: PrefetchPolicy = "timeout:1,0.25".parse().unwrap();
        assert_eq!(timeout.limit(4096), Some(Ms(2000.0)));
        assert_eq!("timeout".parse::<PrefetchPolicy>().unwrap().limit(2048), Some(Ms(1000.0)));
        assert_eq!(PrefetchPolicy::BestEffort.limit(4096), Some(Ms::ZERO));
        assert_eq!(PrefetchPolicy::WaitComplete.limit(4096), None);
        for bad in ["", "timeout:1", "timeout:-1,2", "timeout:nan,1", "never"] {
            assert!(bad.parse::<PrefetchPolicy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_write_policy_is_parsed_and_printed_alike() {
        for name in ["write_through", "write_through_selective", "write_back"] {
            assert_eq!(name.parse::<WritePolicy>().unwrap().to_string(), name);
        }
        let error = "write".parse::<WritePolicy>().unwrap_err().to_string();
        assert_eq!(error, "unknown policy `write` (known: write_through, write_through_selective, write_back)");
    }

    #[test]
    fn beyond_some_length_loading_beats_computing() {
        let roofline = crate::timing::Roofline::PRESETS[0];
        let network = LinkSpec { bytes_per_second: 20e9, latency: Ms(30.0) };
        let prefill = |tokens| {
            let chunks = vec![crate::timing::Chunk { tokens, context: 0 }];
            roofline.step(&crate::timing::StepLoad { chunks, ..Default::default() })
        };
        let load = |tokens| network.time(real_len(tokens) * 131_072.0);
        let per_token = (load(1001).0 - load(1000).0) * 1e3;
        assert_eq!((per_token * 1e4).round() / 1e4, 6.5536, "microseconds a token");
        let crossover = (1..4096).find(|tokens| load(*tokens) < prefill(*tokens)).unwrap();
        assert_eq!(crossover, 1058, "28 ms more of fixed costs, of which each token wins 26 microseconds back");
        assert!((1058..4096).all(|tokens| load(tokens) < prefill(tokens)));
    }
}
