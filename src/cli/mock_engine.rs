//! `warmpath mock-engine`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing::Level;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode::{self, HashForm};
use warmpath_simulator::{ConfigError, EngineConfig, Scheme, Timing};

use super::cache::CacheArgs;
use super::misuse::{OrMisuse, misuse};
use super::{name, nats_url, network, number, remark};
use crate::config::{LogFormat, ZmqEndpoint, subject_prefix};
use crate::events::nats::{NatsBus, NatsSettings};
use crate::events::publish::Bus;
use crate::events::publish::faults::EventFaults;
use crate::events::publish::zmq::{Envelope, ZmqOutlet, ZmqPublisher};
use crate::mock_engine::{LETTERS, MockEngine, MockSettings};
use crate::shutdown::{Interrupts, Tasks};
use crate::telemetry;

/// A simulated engine: an engine's cache and vLLM's scheduler in scaled real time, behind OpenAI's HTTP and with vLLM's events and
/// metrics. It answers with made-up tokens.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct MockEngineArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// The worker's id, as the router's configuration has it.
    #[arg(long, default_value = "engine-1", value_parser = name)]
    worker: String,
    /// The model's name.
    #[arg(long, default_value = "demo", value_parser = name)]
    model: String,
    /// Publish cache events over this NATS server.
    #[arg(long, value_name = "NATS-URL")]
    bus: Option<String>,
    /// First token of the bus's subjects.
    #[arg(long, default_value = "warmpath", value_parser = subject_prefix)]
    prefix: String,
    /// How events are written: as maps (vLLM from 0.24) or arrays (before).
    #[arg(long, value_enum, default_value = "map")]
    encoding: Encoding,
    /// How the engine's names for blocks are written: as numbers, or as digests of 32 bytes.
    #[arg(long, value_enum, default_value = "int")]
    hashes: Hashes,
    /// What the engine calls blocks: `quick` names with the seed, those of vLLM (`sha256_cbor` with PYTHONHASHSEED=0) or of
    /// SGLang, which are the same in every engine.
    #[arg(long, value_enum, default_value = "quick")]
    block_names: BlockNames,
    #[command(flatten)]
    zmq: ZmqArgs,
    #[command(flatten)]
    faults: FaultArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Data-parallel ranks behind the address, each with a cache and a scheduler of its own. Requests name one by the header
    /// X-data-parallel-rank, or go where the fewest are. Over ZeroMQ each speaks from a port of its own: that of the rank
    /// before and one more, so keep the ports of events and replays further apart than this.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    dp_ranks: u16,
    /// Tokens in a block, or in a page of SGLang's cache.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_size: u32,
    /// Blocks of the cache.
    #[arg(long, default_value_t = 24_000)]
    blocks: u32,
    /// Requests that run at once.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Tokens computed in one step.
    #[arg(long, default_value_t = 8192)]
    max_num_batched_tokens: usize,
    /// Tokens that one request may reach; unset is what the cache holds.
    #[arg(long)]
    max_model_len: Option<usize>,
    /// How long steps last: `roofline:8b-h100`, `polynomial`, `per_token`, `linear:0.1,0.01`, …
    #[arg(long, default_value = "roofline:8b-h100")]
    timing: Timing,
    /// How much faster than the timing model.
    #[arg(long, default_value_t = 1.0, value_parser = number::above_zero)]
    speedup: f64,
    /// A `tokenizer.json` for text prompts; without it each byte is a token.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Seed of the engine's names for blocks.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

const AFTER: &str = "\
It serves POST /v1/completions, /v1/chat/completions, /tokenize and SGLang's /generate, GET /v1/models, /health, /version and
/metrics. POST /reset_prefix_cache empties its cache, /restart has it begin anew, and /faults makes events, answers or
metrics go wrong: {\"drop\", \"duplicate\", \"reorder\", \"errors\": shares from 0 to 1, \"delay_ms\", \"stale_metrics\": true or
false, \"replay\": \"whole\", \"refused\" or \"missing_start\"}; what is left out goes right.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoding {
    Map,
    Array,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BlockNames {
    Quick,
    Vllm,
    Sglang,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Hashes {
    Int,
    Bytes,
}

/// How events leave over ZeroMQ, beside NATS or instead.
#[derive(Debug, Args)]
struct ZmqArgs {
    /// Publish cache events over ZeroMQ from here, e.g. tcp://*:5557, for routers that connect.
    #[arg(long, value_name = "ENDPOINT")]
    zmq: Option<ZmqEndpoint>,
    /// Connect to here instead, for routers that let engines connect; --topic must say who this is.
    #[arg(long, value_name = "ENDPOINT")]
    zmq_connect: Option<ZmqEndpoint>,
    /// Replay batches over ZeroMQ from here, e.g. tcp://*:5657.
    #[arg(long, value_name = "ENDPOINT")]
    zmq_replay: Option<ZmqEndpoint>,
    /// The topic of every batch: kv@HOST:PORT@MODEL or kv@WORKER@MODEL tell a router whose it is.
    #[arg(long, default_value = "")]
    topic: String,
    /// How replays are laid out: with the topic (vLLM from 0.26, SGLang) or plain (before).
    #[arg(long, value_enum, default_value = "topic")]
    replay_layout: Layout,
    /// Batches that can be replayed.
    #[arg(long, default_value_t = 10_000)]
    replay_buffer: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Layout {
    Topic,
    Plain,
}

/// What goes wrong with events, on purpose. POST /faults changes it while the engine runs, with a JSON object of drop,
/// duplicate, reorder, delay_ms and replay (whole, refused, missing_start), and with errors (the share of requests that fail)
/// and stale_metrics; POST /restart starts the engine anew, with an empty cache and batches from 0.
#[derive(Debug, Args)]
struct FaultArgs {
    /// Share of batches that are lost, 0 to 1; a replay still has them.
    #[arg(long, default_value_t = 0.0, value_parser = number::share)]
    drop_events: f64,
    /// Share of batches that are sent twice.
    #[arg(long, default_value_t = 0.0, value_parser = number::share)]
    duplicate_events: f64,
    /// Share of batches that are sent after up to eight later ones.
    #[arg(long, default_value_t = 0.0, value_parser = number::share)]
    reorder_events: f64,
    /// Milliseconds that each batch is on its way.
    #[arg(long, default_value_t = 0)]
    delay_events_ms: u64,
}

impl MockEngineArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.tokenizer {
            File::open(file).with_context(|| format!("cannot read {}", file.display())).or_misuse()?;
        }
        telemetry::log_to_stderr(LogFormat::Text, Level::INFO);
        network(async {
            let mut interrupts = Interrupts::new();
            let tasks = Tasks::new();
            let settings = self.settings(&tasks).await?;
            let engine =
                MockEngine::start(settings, &tasks).await.map_err(|error| match error.downcast::<ConfigError>() {
                    Ok(error) => misuse(error.to_string()),
                    Err(error) => anyhow::Error::from_boxed(error),
                });
            let engine = engine.context("the engine could not start")?;
            remark(format_args!("simulated engine on http://{}\n", engine.address));
            interrupts.next().await;
            tasks.drain(Duration::ZERO).await;
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn settings(self, tasks: &Tasks) -> anyhow::Result<MockSettings> {
        let block_size = BlockSize::new(self.block_size).context("--block-size must be at least 1")?;
        let mut ranks = vec![Vec::new(); usize::from(self.dp_ranks)];
        if let Some(url) = &self.bus {
            let bus = NatsBus::connect(NatsSettings::publisher(nats_url("--bus", url)?, self.prefix)).await;
            let bus = Bus::Nats(Box::new(bus.map_err(anyhow::Error::from_boxed)?));
            ranks.iter_mut().for_each(|buses| buses.push(bus.clone()));
        }
        if self.zmq.zmq.is_some() || self.zmq.zmq_connect.is_some() {
            if self.dp_ranks != 1 && self.zmq.zmq_connect.is_some() {
                return Err(misuse("--zmq-connect speaks for one rank alone"));
            }
            let publishers = self.zmq.start(ranks.len(), tasks).await?;
            ranks.iter_mut().zip(publishers).for_each(|(buses, publisher)| buses.push(Bus::Zmq(publisher)));
        } else if self.zmq.zmq_replay.is_some() {
            return Err(misuse("--zmq-replay needs --zmq or --zmq-connect"));
        }
        Ok(MockSettings {
            listen: self.listen,
            worker: self.worker,
            model: self.model,
            engine: EngineConfig {
                profile: self.cache.profile(),
                tiers: self.cache.tiers(&self.timing, self.cache.storage_blocks),
                block_size,
                blocks: self.blocks,
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: self.max_num_batched_tokens,
                max_model_len: self.max_model_len,
                timing: self.timing,
                vocabulary: if self.tokenizer.is_none() { LETTERS } else { EngineConfig::default().vocabulary },
                seed: self.seed,
                names: match self.block_names {
                    BlockNames::Quick => None,
                    BlockNames::Vllm => Some(Scheme::VllmSha256),
                    BlockNames::Sglang => Some(Scheme::SglangSha256),
                },
                ..EngineConfig::default()
            },
            ranks: ranks.into_iter().map(Bus::Several).collect(),
            hashes: match self.hashes {
                Hashes::Int => HashForm::Int,
                Hashes::Bytes => HashForm::Bytes,
            },
            faults: EventFaults {
                drop: self.faults.drop_events,
                duplicate: self.faults.duplicate_events,
                reorder: self.faults.reorder_events,
                delay: Duration::from_millis(self.faults.delay_events_ms),
            },
            form: match self.encoding {
                Encoding::Map => encode::Form::Map,
                Encoding::Array => encode::Form::Array,
            },
            speedup: self.speedup,
            tokenizer: self.tokenizer,
        })
    }
}

impl ZmqArgs {
    /// The sockets of each rank, at ports that follow those of the first.
    async fn start(self, ranks: usize, tasks: &Tasks) -> anyhow::Result<Vec<ZmqPublisher>> {
        let first = ZmqOutlet {
            bind: self.zmq,
            connect: self.zmq_connect,
            replay: self.zmq_replay,
            envelope: match self.replay_layout {
                Layout::Topic => Envelope::Topic,
                Layout::Plain => Envelope::Plain,
            },
            kept: self.replay_buffer,
            topic: self.topic,
        };
        let mut publishers: Vec<ZmqPublisher> = Vec::new();
        for rank in (0..).take(ranks) {
            let mut outlet = first.clone();
            if let Some(first) = publishers.first() {
                let next = |place: &Option<ZmqEndpoint>| {
                    let next = place.as_ref().map(|place| place.for_rank(rank).context("only ports can be counted on"));
                    next.transpose()
                };
                (outlet.bind, outlet.replay) = (next(&first.events)?, next(&first.replay)?);
            }
            let publisher = ZmqPublisher::start(outlet, tasks).await;
            let publisher =
                publisher.with_context(|| format!("the ZeroMQ sockets of rank {rank} could not be bound"))?;
            for (what, at) in [("events", &publisher.events), ("replays", &publisher.replay)] {
                if let Some(at) = at {
                    remark(format_args!("{what} over ZeroMQ from {at}\n"));
                }
            }
            publishers.push(publisher);
        }
        Ok(publishers)
    }
}
