//! `warmpath mock-engine`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use tracing::Level;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode;

use super::runtime;
use crate::config::LogFormat;
use crate::events::nats::{NatsBus, NatsSettings};
use crate::events::publish::Bus;
use crate::mock_engine::{LETTERS, MockEngine, MockSettings};
use crate::shutdown::{Tasks, interrupted};
use crate::sim::{EngineConfig, Timing};
use crate::telemetry;

/// A simulated engine: vLLM's cache and scheduler in scaled real time, behind OpenAI's HTTP and with vLLM's events and
/// metrics. It answers with made-up tokens.
#[derive(Debug, Args)]
pub struct MockEngineArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// The worker's id, as the router's configuration has it.
    #[arg(long, default_value = "engine-1")]
    worker: String,
    /// The model's name.
    #[arg(long, default_value = "demo")]
    model: String,
    /// Publish cache events over this NATS server.
    #[arg(long, value_name = "NATS-URL")]
    bus: Option<String>,
    /// First token of the bus's subjects.
    #[arg(long, default_value = "warmpath")]
    prefix: String,
    /// How events are written: as maps (vLLM from 0.24) or arrays (before).
    #[arg(long, value_enum, default_value = "map")]
    encoding: Encoding,
    /// Tokens in a block.
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
    #[arg(long, default_value_t = 1.0)]
    speedup: f64,
    /// A `tokenizer.json` for text prompts; without it each byte is a token.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Seed of the engine's names for blocks.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoding {
    Map,
    Array,
}

impl MockEngineArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(self.speedup.is_finite() && self.speedup > 0.0, "--speedup must be a number above 0");
        telemetry::log_to_stderr(LogFormat::Text, Level::INFO);
        runtime()?.block_on(async {
            let tasks = Tasks::new();
            let settings = self.settings().await?;
            let engine = MockEngine::start(settings, &tasks).await.map_err(anyhow::Error::from_boxed);
            let engine = engine.context("the engine could not start")?;
            eprintln!("simulated engine on http://{}", engine.address);
            interrupted().await;
            tasks.drain(Duration::ZERO).await;
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn settings(self) -> anyhow::Result<MockSettings> {
        let block_size = BlockSize::new(self.block_size).context("--block-size must be at least 1")?;
        let bus = match self.bus {
            None => Bus::Silent,
            Some(url) => {
                let bus = NatsBus::connect(NatsSettings::publisher(url, self.prefix)).await;
                Bus::Nats(Box::new(bus.map_err(anyhow::Error::from_boxed)?))
            }
        };
        Ok(MockSettings {
            listen: self.listen,
            worker: self.worker,
            model: self.model,
            engine: EngineConfig {
                block_size,
                blocks: self.blocks,
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: self.max_num_batched_tokens,
                max_model_len: self.max_model_len,
                timing: self.timing,
                vocabulary: if self.tokenizer.is_none() { LETTERS } else { EngineConfig::default().vocabulary },
                seed: self.seed,
                ..EngineConfig::default()
            },
            bus,
            form: match self.encoding {
                Encoding::Map => encode::Form::Map,
                Encoding::Array => encode::Form::Array,
            },
            speedup: self.speedup,
            tokenizer: self.tokenizer,
        })
    }
}
