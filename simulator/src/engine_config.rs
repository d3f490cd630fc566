//! How a simulated engine is set up.

use std::ops::Range;

use warmpath_core::count::real;
use warmpath_core::ids::TokenId;
use warmpath_core::units::BlockSize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::blocks::{PoolConfig, Reuse};
use super::cache::Profile;
use super::clock::Ms;
use super::naming::Scheme;
use super::tiers::Tiers;
use super::timing::{StepLoad, Timing};

/// Blocks that one engine may have for requests: about 0.5 GB of bookkeeping.
pub const MAX_BLOCKS: u32 = 1 << 24;

/// How an engine is set up. The fields are named as vLLM's options are.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Whose cache it has.
    pub profile: Profile,
    /// Tokens in a block, or in a page of SGLang's cache.
    pub block_size: BlockSize,
    /// Blocks in the cache, the null block included; requests get 1 to [`MAX_BLOCKS`].
    pub blocks: u32,
    /// Whether block 0 is set aside, as vLLM does.
    pub null_block: bool,
    /// Whether blocks are cached for later requests.
    pub prefix_caching: bool,
    /// What stays reusable, in vLLM's cache.
    pub reuse: Reuse,
    /// Requests that run at once.
    pub max_num_seqs: usize,
    /// Tokens computed in one step.
    pub max_num_batched_tokens: usize,
    /// Whether a prompt may be computed in several steps.
    pub chunked_prefill: bool,
    /// Tokens of one prompt computed in one step; 0 means as many as fit.
    pub long_prefill_token_threshold: usize,
    /// Tokens that one request may reach, prompt and output; none means as many as the cache holds.
    pub max_model_len: Option<usize>,
    /// Generated tokens come from this range.
    pub vocabulary: Range<TokenId>,
    /// How long a step lasts.
    pub timing: Timing,
    /// How many times as long every step lasts as the timing says, loading aside.
    pub slowness: f64,
    /// What a real engine does, and an ablation may leave out.
    pub realism: Realism,
    /// The engine's own seed of block names, and of its chances.
    pub seed: u64,
    /// Whose names its blocks have; none are quick ones, with the engine's seed. nano-vllm has its own.
    pub names: Option<Scheme>,
    /// What lies below the cache; none by default.
    pub tiers: Option<Tiers>,
}

/// What a real engine does. Each can be switched off, to see what it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Realism {
    /// A running request that needs a block where there is none takes another's; if not, it goes on without.
    pub preemption: bool,
    /// Computing a prompt costs attention to what was found in the cache.
    pub hit_attention: bool,
    /// Prompts and decodes of one step cost time one after the other; if not, the step lasts as long as the longer of both.
    pub chunk_interference: bool,
    /// By how much steps last longer or shorter by chance: the deviation of the logarithm of a factor that is normal and
    /// on average 1. 0, the default, is not at all.
    pub jitter: f64,
}

impl Default for Realism {
    fn default() -> Self {
        Self { preemption: true, hit_attention: true, chunk_interference: true, jitter: 0.0 }
    }
}

impl Default for EngineConfig {
    /// vLLM's API server with an 8B model on one H100.
    fn default() -> Self {
        Self {
            profile: Profile::Vllm,
            block_size: BlockSize::new(16).expect("16 is not 0"),
            blocks: 24_000,
            null_block: true,
            prefix_caching: true,
            reuse: Reuse::default(),
            max_num_seqs: 1024,
            max_num_batched_tokens: 8192,
            chunked_prefill: true,
            long_prefill_token_threshold: 0,
            max_model_len: None,
            vocabulary: 0..32_000,
            timing: Timing::default(),
            slowness: 1.0,
            realism: Realism::default(),
            seed: 0,
            names: None,
            tiers: None,
        }
    }
}

/// Why an engine cannot be set up so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No block is left for requests, or there are too many to keep in memory.
    #[error("an engine has 1 to {MAX_BLOCKS} blocks for requests, got {usable}")]
    Blocks {
        /// Blocks that requests could use.
        usable: u32,
    },
    /// A limit that would stop everything.
    #[error("`{field}` must be at least 1")]
    Zero {
        /// The limit's name.
        field: &'static str,
    },
    /// The tiers below have no place, or too many to keep in memory.
    #[error(
        "a tier has at most {MAX_BLOCKS} pages and the host at least 1, got {host} in the host and {shared} shared"
    )]
    Tiers {
        /// Pages of the host.
        host: u32,
        /// Pages of shared storage.
        shared: u32,
    },
    /// nano-vllm's cache has no tiers below it.
    #[error("the profile `nano` has no tiers below its cache")]
    NanoTiers,
    /// There is no token to generate.
    #[error("the vocabulary is empty")]
    NoVocabulary,
}

impl EngineConfig {
    /// Tokens that one request may reach: more could never be computed.
    pub fn longest(&self) -> usize {
        let blocks = usize::try_from(self.usable_blocks()).unwrap_or(usize::MAX);
        let mut longest = blocks.saturating_mul(self.block_size.len());
        if !self.chunked_prefill {
            longest = longest.min(self.max_num_batched_tokens);
        }
        self.max_model_len.map_or(longest, |limit| longest.min(limit))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_BLOCKS).contains(&self.usable_blocks()) {
            return Err(ConfigError::Blocks { usable: self.usable_blocks() });
        }
        let limits = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
        ];
        if let Some((field, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            return Err(ConfigError::Zero { field });
        }
        if let Some(tiers) = &self.tiers {
            let (host, shared) = (tiers.host_pages, tiers.own_shared_pages);
            if host == 0 || host.max(shared) > MAX_BLOCKS {
                return Err(ConfigError::Tiers { host, shared });
            }
            if self.profile == Profile::Nano {
                return Err(ConfigError::NanoTiers);
            }
        }
        if self.vocabulary.is_empty() { Err(ConfigError::NoVocabulary) } else { Ok(()) }
    }

    /// Whose names its blocks have.
    pub(super) fn scheme(&self) -> Scheme {
        self.names.unwrap_or(Scheme::Seeded(self.seed))
    }

    pub(super) fn pool(&self) -> PoolConfig {
        PoolConfig {
            block_size: self.block_size,
            blocks: self.blocks,
            null_block: self.null_block,
            prefix_caching: self.prefix_caching,
            names: self.scheme(),
            reuse: self.reuse,
        }
    }

    /// How many of `want` tokens of one request are computed in one step at most.
    pub(super) fn chunk(&self, want: usize) -> usize {
        match self.long_prefill_token_threshold {
            0 => want,
            threshold => want.min(threshold),
        }
    }

    /// How long a step with this load lasts.
    pub(super) fn duration(&self, load: &StepLoad) -> Ms {
        Ms(self.computation(load).0 * lognormal(self.realism.jitter, self.seed, load.number))
    }

    fn computation(&self, load: &StepLoad) -> Ms {
        if self.realism.chunk_interference || load.chunks.is_empty() || load.decodes.is_empty() {
            return self.step(load);
        }
        let emitting = load.emitting.saturating_sub(load.decodes.len());
        let prompts = StepLoad { decodes: Vec::new(), emitting, ..load.clone() };
        let decodes = StepLoad { chunks: Vec::new(), admitted: 0, cached_tokens: 0, ..load.clone() };
        let (prompts, decodes) = (self.step(&prompts), self.step(&decodes));
        if prompts > decodes { prompts } else { decodes }
    }

    fn step(&self, load: &StepLoad) -> Ms {
        Ms(self.timing.step(load).0 * self.slowness)
    }

    /// Blocks that requests can use.
    pub fn usable_blocks(&self) -> u32 {
        self.blocks.saturating_sub(u32::from(self.null_block))
    }
}

/// A factor by chance: its logarithm is normal with this deviation, its mean is 1. Made of sums and products only, so that it
/// is the same on every machine: the normal of twelve even chances, the exponential function of a power.
fn lognormal(deviation: f64, seed: u64, number: u64) -> f64 {
    if deviation <= 0.0 {
        return 1.0;
    }
    let chance = |draw: u64| {
        let hash = xxh3_64_with_seed(&[number.to_le_bytes(), draw.to_le_bytes()].concat(), seed);
        real(hash >> 11) / real(1 << 53)
    };
    let normal = (0..12).map(chance).sum::<f64>() - 6.0;
    let small = (deviation * normal - deviation * deviation / 2.0) / f64::from(1 << EXP_SQUARINGS);
    let exp = 1.0 + small * (1.0 + small / 2.0 * (1.0 + small / 3.0));
    (0..EXP_SQUARINGS).fold(exp, |power, _| power * power)
}

/// Of the exponential function of a small number, until it is that of the number meant.
const EXP_SQUARINGS: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_never_run_is_refused() {
        let fault = |change: fn(&mut EngineConfig)| {
            let mut config = EngineConfig::default();
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(fault(|_| ()), Ok(()));
        let blocks = "an engine has 1 to 16777216 blocks for requests, got ".to_owned();
        assert_eq!(fault(|config| config.blocks = 1), Err(blocks.clone() + "0"), "the null block alone");
        assert_eq!(fault(|config| config.blocks = 0), Err(blocks.clone() + "0"));
        assert_eq!(fault(|config| config.blocks = MAX_BLOCKS + 2), Err(blocks + "16777217"));
        assert_eq!(fault(|config| config.max_num_seqs = 0), Err("`max_num_seqs` must be at least 1".to_owned()));
        assert_eq!(
            fault(|config| config.max_model_len = Some(0)),
            Err("`max_model_len` must be at least 1".to_owned())
        );
        assert_eq!(fault(|config| config.vocabulary = 5..5), Err("the vocabulary is empty".to_owned()));
    }

    #[test]
    fn jitter_is_on_average_nothing_and_as_wide_as_was_said() {
        let factors: Vec<f64> = (0..40_000).map(|number| lognormal(0.3, 7, number)).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / 40_000.0;
        let logs: Vec<f64> = factors.iter().map(|factor| factor.ln()).collect();
        let spread = mean(&logs.iter().map(|log| (log - mean(&logs)).powi(2)).collect::<Vec<_>>()).sqrt();
        assert!((mean(&factors) - 1.0).abs() < 0.01 && (spread - 0.3).abs() < 0.005, "{} {spread}", mean(&factors));
        assert_eq!((lognormal(0.3, 7, 5), lognormal(0.0, 7, 5)), (factors[5], 1.0));
        assert_ne!(lognormal(0.3, 8, 5), factors[5]);
    }

    #[test]
    fn a_request_can_reach_what_the_tightest_limit_allows() {
        let mut config = EngineConfig { blocks: 101, ..EngineConfig::default() };
        assert_eq!(config.longest(), 1600);
        config.max_num_batched_tokens = 1000;
        assert_eq!(config.longest(), 1600);
        config.chunked_prefill = false;
        assert_eq!(config.longest(), 1000);
        config.max_model_len = Some(900);
        assert_eq!(config.longest(), 900);
    }
}
