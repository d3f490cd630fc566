//! Simulated fleets and the loads on them: the same options for every command that tries policies in virtual time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Args;
use warmpath_core::count::real_len;
use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::cache::Profile;
use warmpath_simulator::fleet::{Conditions, EventWay, Failure, Reports, Scenario, ScenarioError};
use warmpath_simulator::{EngineConfig, Ms, Realism, Timing};

use super::cache::CacheArgs;
use super::misuse::{OrMisuse, misuse};
use super::{number, remark};
use crate::config::{Config, ConfigError};
use crate::replay::report::Row;

/// Fleets of simulated engines, and how requests arrive at them.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Numbers of workers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Vec<u16>,
    /// How much faster than recorded requests arrive.
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1", value_parser = number::above_zero)]
    pub(super) speed: Vec<f64>,
    /// Seed of every chance.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Blocks in each engine's cache.
    #[arg(long, value_name = "BLOCKS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cache_blocks: u32,
    /// The share of the GPUs' memory that engines take; what weights and activations leave of it are the blocks in each
    /// engine's cache. For `roofline` timing.
    #[arg(long, value_name = "SHARE", conflicts_with = "cache_blocks", value_parser = number::share)]
    gpu_memory_utilization: Option<f64>,
    #[command(flatten)]
    cache: CacheArgs,
    /// How long a step of an engine lasts.
    #[arg(long, value_name = "MODEL", default_value_t, help = format!("How long a step of an engine lasts: {}", Timing::known()))]
    pub(super) timing: Timing,
    /// Requests that an engine runs at once.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_num_seqs: u32,
    /// Tokens that an engine computes in one step.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    max_num_batched_tokens: u32,
    /// Take the weights of the policies from this configuration.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Time from the end of an engine's step until its events reach the router, in ms.
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = number::not_negative)]
    event_delay: f64,
    /// Time between two readings of the engines' metrics, in ms; 0: never. As configured, if it is not given.
    #[arg(long, value_name = "MS", value_parser = number::interval)]
    scrape_interval: Option<f64>,
    /// How many times as long the first worker's steps take as the others'.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = number::slowness)]
    slow: f64,
    /// The first worker dies half-way between the first arrival and the last, and comes back empty so many seconds later.
    /// What had no first token there goes elsewhere; what had one has failed, and counts in no time.
    #[arg(long, value_name = "SECONDS", value_parser = number::absence)]
    pub(super) restart: Option<f64>,
    /// Routers before the fleet, to which requests go in turn. All of them hear the same events and read the same metrics; of
    /// what the others have sent they know only by these.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    routers: u16,
    /// Do not tell the router how many tokens a request will generate. Of the policies, only `preble` asks.
    #[arg(long)]
    output_unknown: bool,
    /// By how much steps last longer or shorter by chance: the deviation of the logarithm of a factor whose mean is 1.
    #[arg(long, value_name = "DEVIATION", default_value_t = 0.0, value_parser = number::deviation)]
    jitter: f64,
    /// For each prompt token, the time for which its KV travels before the first token, in µs, as where prompts and
    /// answers are computed by different engines; llm-d-inference-sim has 3 for 8B on an H100 and 8 for 70B on eight.
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = number::travel)]
    kv_transfer: f64,
    /// The share of prompts that the router takes for other tokens than engines do, from some block on.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = number::share)]
    misread: f64,
    /// Requests in flight at most; the next is sent when one has ended. Without it, all are sent when they arrive.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// The share of the requests at the beginning that warms the caches and counts in no figure.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = number::part)]
    pub(super) warm_up: f64,
    /// Simulations that run at once; as many as there are cores, if it is not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

impl FleetArgs {
    /// Whether the options go together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Some(share) = self.gpu_memory_utilization else { return Ok(()) };
        let Timing::Roofline(model) = self.timing else {
            return Err(misuse("--gpu-memory-utilization needs a model that it knows: --timing roofline:…"));
        };
        let has_room = BlockSize::new(1).is_some_and(|token| model.blocks(share, token) > 0);
        let none = || misuse(format!("the weights leave no room for a cache in {share} of the memory"));
        has_room.then_some(()).ok_or_else(none)
    }

    /// The configuration whose weights are taken, or the defaults.
    pub(super) fn configuration(&self) -> Result<Config, ConfigError> {
        self.config.as_deref().map(Config::load_policies).transpose().map(Option::unwrap_or_default)
    }

    /// A fleet of so many workers behind this policy, at this speed.
    pub(super) fn scenario(
        &self,
        (policy, workers, speed): (PolicyName, u16, f64),
        config: &Config,
        block_size: BlockSize,
    ) -> Scenario {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let null_block = self.cache.profile() == Profile::Vllm;
        let engine = EngineConfig {
            profile: self.cache.profile(),
            tiers: self.cache.tiers(&self.timing, 0),
            block_size,
            blocks: self.blocks(block_size).saturating_add(u32::from(null_block)),
            null_block,
            max_num_seqs: count(self.max_num_seqs),
            max_num_batched_tokens: count(self.max_num_batched_tokens),
            timing: self.timing,
            realism: Realism { jitter: self.jitter, ..Realism::default() },
            ..EngineConfig::default()
        };
        let conditions = Conditions {
            clients: self.clients.map(count),
            kv_transfer: Ms(self.kv_transfer / 1e3),
            misread: self.misread,
            routers: self.routers,
            output_known: !self.output_unknown,
            restart: self.restart.map(|seconds| Ms(seconds * 1e3)),
            ..Conditions::default()
        };
        let configured = config.engines.metrics_interval.get().as_secs_f64() * 1e3;
        let interval = self.scrape_interval.unwrap_or(configured);
        Scenario {
            router: config.simulated(policy),
            workers,
            engine,
            shared_pages: self.cache.storage_blocks,
            slow: self.slow,
            speed,
            seed: self.seed,
            events: EventWay::AfterStep(Ms(self.event_delay)),
            reports: if interval > 0.0 { Reports::Every(Ms(interval)) } else { Reports::Never },
            conditions,
            wire: false,
            check: false,
            explained: Vec::new(),
        }
    }

    /// Blocks in each engine's cache.
    fn blocks(&self, block_size: BlockSize) -> u32 {
        match (self.gpu_memory_utilization, self.timing) {
            (Some(share), Timing::Roofline(model)) => model.blocks(share, block_size).max(1),
            _ => self.cache_blocks,
        }
    }

    /// Simulations that run at once.
    pub(super) fn threads(&self) -> usize {
        self.jobs.map_or_else(|| available_parallelism().map_or(1, std::num::NonZero::get), usize::from)
    }
}

/// What a simulation came to. Where its engines cannot be set up as they were asked for, that is wrong use.
pub(super) fn simulated<T>(tried: Result<T, ScenarioError>) -> anyhow::Result<T> {
    match tried {
        Err(error @ ScenarioError::Wire(_)) => Err(error.into()),
        tried => tried.or_misuse(),
    }
}

/// Why simulated engines do not complete a request.
pub(super) const REFUSED: &str = "engines take no prompt that is empty or longer than their cache, and end an \
    answer where prompt and answer fill it (--cache-blocks)";

/// What a command exits with that shows these rows. Of those in which not all requests were answered whole it says how many
/// were, and why not the others.
pub(super) fn completeness<'a>(rows: impl IntoIterator<Item = &'a Row>) -> ExitCode {
    let incomplete = rows.into_iter().filter(|row| row.completed < row.requests);
    let said: BTreeSet<String> = incomplete.map(incompleteness).collect();
    said.iter().for_each(|said| remark(format_args!("warmpath: {said}\n")));
    if said.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn incompleteness(row: &Row) -> String {
    let failures: Vec<String> = row.failures.iter().map(|(why, count)| format!("{count} {why}")).collect();
    let is_of_cache = |failure: Failure| row.failures.contains_key(&failure.to_string());
    let of_cache = [Failure::Refused, Failure::CutShort].into_iter().any(is_of_cache);
    let remedy = if of_cache { format!(": {REFUSED}") } else { String::new() };
    format!("{} of {} requests completed: {}{remedy}", row.completed, row.requests, failures.join(", "))
}

/// So many of `len`, rounded down.
pub(super) fn share(len: usize, share: f64) -> usize {
    (1..=len).take_while(|count| real_len(*count) <= real_len(len) * share).count()
}

/// What `--policy` says of itself where it takes several.
pub(super) fn policies() -> String {
    format!("Policies, one or several with commas between: {}", PolicyName::ALL.map(PolicyName::as_str).join(", "))
}

pub(super) fn policy(name: &str) -> Result<PolicyName, String> {
    let known = || PolicyName::ALL.map(PolicyName::as_str).join(", ");
    let found = PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name);
    found.ok_or_else(|| format!("unknown policy (known: {})", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_requests_is_rounded_down() {
        assert_eq!([0.0, 0.1, 0.7, 0.99].map(|part| share(10, part)), [0, 1, 7, 9]);
        assert_eq!((share(0, 0.5), share(3, 0.34)), (0, 1));
    }
}
