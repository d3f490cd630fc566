//! Whose cache a simulated engine has, and what lies below it: the same options wherever engines are simulated.

use clap::{Args, ValueEnum};

use warmpath_simulator::{Eviction, LinkSpec, PrefetchPolicy, Profile, Tiers, Timing, WritePolicy};

use super::number;

/// A simulated engine's cache.
#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    /// Whose cache engines have.
    #[arg(long, value_enum, default_value = "vllm")]
    profile: ProfileName,
    /// Blocks of the host's memory below an engine's cache; 0 is none.
    #[arg(long, value_name = "BLOCKS", default_value_t = 0)]
    host_blocks: u32,
    /// Blocks of storage below the host's memory, which all engines of a simulated fleet share and a mock engine has for
    /// itself; 0 is none.
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, requires = "host_blocks")]
    pub(super) storage_blocks: u32,
    /// When blocks are copied to the host: `write_through`, `write_through_selective` or `write_back`.
    #[arg(long, requires = "host_blocks", value_name = "WHEN", default_value = "write_through")]
    write_policy: WritePolicy,
    /// Copy blocks of generated tokens too.
    #[arg(long, requires = "host_blocks")]
    write_output: bool,
    /// How long requests wait for storage: `best_effort`, `wait_complete`, `timeout` or `timeout:0.5,0.25` (seconds, and
    /// for each 1024 tokens).
    #[arg(long, requires = "host_blocks", value_name = "HOW", default_value = "best_effort")]
    prefetch: PrefetchPolicy,
    /// Between GPU and host: GB/s, or `pcie5x16`.
    #[arg(long, requires = "host_blocks", value_name = "LINK", default_value = "pcie5x16")]
    bus_link: LinkSpec,
    /// Between host and storage: GB/s, or `100gbe`, `egs`, `lingjun-storage`, `ndr`, `3fs-node`, …
    #[arg(long, requires = "storage_blocks", value_name = "LINK", default_value = "egs")]
    storage_link: LinkSpec,
    /// GPUs of an engine, each of which fetches its share of what storage has; what all of them have counts.
    #[arg(long, requires = "storage_blocks", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    storage_ranks: u32,
    /// How many times as long the last of these takes as the others.
    #[arg(long, requires = "storage_blocks", value_name = "FACTOR", default_value_t = 1.0, value_parser = number::factor)]
    slow_rank: f64,
    /// Which blocks make room in host and storage: `lru`, `lfu` or `random_lru`.
    #[arg(long, requires = "host_blocks", value_name = "WHICH", default_value_t)]
    tier_eviction: Eviction,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProfileName {
    Vllm,
    Nano,
    SglangRadix,
}

impl CacheArgs {
    pub(super) fn profile(&self) -> Profile {
        match self.profile {
            ProfileName::Vllm => Profile::Vllm,
            ProfileName::Nano => Profile::Nano,
            ProfileName::SglangRadix => Profile::SglangRadix,
        }
    }

    /// What lies below the cache, with `own` blocks of storage for each engine by itself.
    pub(super) fn tiers(&self, timing: &Timing, own: u32) -> Option<Tiers> {
        let usual = Tiers::default();
        let kv_bytes = if let Timing::Roofline(model) = timing { model.kv_bytes } else { usual.kv_bytes };
        (self.host_blocks > 0).then_some(Tiers {
            host_pages: self.host_blocks,
            own_shared_pages: own,
            write: self.write_policy,
            write_output: self.write_output,
            prefetch: self.prefetch,
            kv_bytes,
            bus: self.bus_link,
            network: self.storage_link,
            ranks: self.storage_ranks,
            slow_rank: self.slow_rank,
            eviction: self.tier_eviction,
            ..usual
        })
    }
}
