//! `warmpath bridge`.

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing::Level;
use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::{Rank, WorkerId};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::misuse::{OrMisuse, misuse};
use super::{name, nats_url, network};
use crate::bridge::{BlockSet, Bridge, BridgeSettings, RankFeed, RankView};
use crate::config::{BaseUrl, LogFormat, MetricNames, ZmqEndpoint, subject_prefix};
use crate::door::Listener;
use crate::events::nats::{Credentials, NatsSettings, Tls};
use crate::events::source::source;
use crate::events::zmq::{ReplaySettings, ZmqBus, ZmqEngine, ZmqSettings, ZmqWorker};
use crate::events::{Abilities, Source};
use crate::link::TlsFiles;
use crate::shutdown::{Interrupts, Tasks};
use crate::telemetry;
use crate::telemetry::metrics::Metrics;

/// Stands beside one real engine and brings it onto the event bus: its KV-cache events, unchanged, numbered and in order;
/// its load; its blocks, for routers that missed something; its address, for as long as it is healthy.
///
/// The engine needs nothing but its own event flags: vLLM
/// `--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`.
/// With a replay endpoint nothing is lost when either side restarts. ZMQ knows no passwords: keep it on loopback or in a
/// private network. The server may be away for a while: some 16 000 batches wait for it; what finds no room is dropped, and
/// routers see the gap.
#[derive(Debug, Args)]
pub struct BridgeArgs {
    /// Where the engine answers; its /health and /metrics are asked twice a second.
    #[arg(long, value_name = "URL", env = "WARMPATH_BRIDGE_ENGINE")]
    engine: String,
    /// A file with the authorities (PEM) that are trusted where the engine's address is https, in place of the system's.
    #[arg(long = "ca", value_name = "FILE", env = "WARMPATH_BRIDGE_CA")]
    engine_ca: Option<PathBuf>,
    /// Our own certificate (PEM), where the engine asks for one.
    #[arg(long = "cert", value_name = "FILE", requires = "engine_key", env = "WARMPATH_BRIDGE_CERT")]
    engine_cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long = "key", value_name = "FILE", requires = "engine_cert", env = "WARMPATH_BRIDGE_KEY")]
    engine_key: Option<PathBuf>,
    /// Where routers reach the engine, if that is another address.
    #[arg(long, value_name = "URL", env = "WARMPATH_BRIDGE_ADVERTISE")]
    advertise: Option<String>,
    /// The worker's id, as routers are to know it.
    #[arg(long, value_name = "ID", env = "WARMPATH_BRIDGE_WORKER", value_parser = name)]
    worker: String,
    /// The model's name, as in the routers' configuration.
    #[arg(long, value_name = "NAME", env = "WARMPATH_BRIDGE_MODEL", value_parser = name)]
    model: String,
    /// Where the engine publishes events, such as tcp://127.0.0.1:5557; of further ranks, the ports that follow.
    #[arg(long, value_name = "ENDPOINT", env = "WARMPATH_BRIDGE_ZMQ")]
    zmq: ZmqEndpoint,
    /// Where it replays them, such as tcp://127.0.0.1:5657.
    #[arg(long, value_name = "ENDPOINT", env = "WARMPATH_BRIDGE_ZMQ_REPLAY")]
    zmq_replay: Option<ZmqEndpoint>,
    /// Data-parallel ranks of the engine.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), env = "WARMPATH_BRIDGE_DP_RANKS")]
    dp_ranks: u16,
    /// Tokens in a block; unset is what the engine's metrics say, and then routers get no snapshots from here.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536), env = "WARMPATH_BRIDGE_BLOCK_SIZE")]
    block_size: Option<u32>,
    /// The routers' `index.seed`, for snapshots.
    #[arg(long, default_value_t = DEFAULT_ROOT_SEED, env = "WARMPATH_BRIDGE_INDEX_SEED")]
    index_seed: u64,
    /// Requests that the engine computes at once, to be told to routers.
    #[arg(long, env = "WARMPATH_BRIDGE_MAX_NUM_SEQS")]
    max_num_seqs: Option<NonZeroU32>,
    /// A YAML file with a list in the form of the configuration's `engines.presets`: the names that the engine's metrics
    /// have, if they are not those of vLLM and SGLang.
    #[arg(long, value_name = "FILE", env = "WARMPATH_BRIDGE_METRIC_NAMES")]
    metric_names: Option<PathBuf>,
    /// Do not enter the engine into the bucket of registrations: the routers' configurations name it.
    #[arg(long, env = "WARMPATH_BRIDGE_NO_REGISTER")]
    no_register: bool,
    #[command(flatten)]
    nats: NatsArgs,
    /// Count at this address under /metrics, for Prometheus, such as 127.0.0.1:9464: batches heard, published, refused and
    /// lost, snapshots served, whether the server is connected. Nobody is asked who he is: keep it on loopback or in a
    /// private network. Unset: nowhere.
    #[arg(long, value_name = "ADDRESS", env = "WARMPATH_BRIDGE_METRICS")]
    metrics: Option<SocketAddr>,
    /// How log lines are written.
    #[arg(long, value_enum, default_value = "text", env = "WARMPATH_BRIDGE_LOG")]
    log: Log,
    /// How long waiting batches may take to be published after SIGTERM, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, env = "WARMPATH_BRIDGE_GRACE")]
    grace: u64,
}

/// The server, and who we are to it: at most one of user, token, nkey and creds.
#[derive(Debug, Args)]
struct NatsArgs {
    /// The NATS server: nats://host:4222, or tls://host:4222.
    #[arg(long = "nats", value_name = "URL", env = "WARMPATH_NATS_URL")]
    url: String,
    /// First token of the subjects.
    #[arg(long, default_value = "warmpath", env = "WARMPATH_NATS_PREFIX", value_parser = subject_prefix)]
    prefix: String,
    /// A user's name.
    #[arg(long = "nats-user", value_name = "NAME", env = "WARMPATH_NATS_USER", conflicts_with_all = ["token_file", "nkey", "creds"])]
    user: Option<String>,
    /// The file with its password; or give the password itself in WARMPATH_NATS_PASSWORD.
    #[arg(long = "nats-password-file", value_name = "FILE", requires = "user", env = "WARMPATH_NATS_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// A file with a token.
    #[arg(long = "nats-token-file", value_name = "FILE", conflicts_with_all = ["nkey", "creds"], env = "WARMPATH_NATS_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// A file with the seed of an nkey.
    #[arg(long = "nats-nkey", value_name = "FILE", conflicts_with = "creds", env = "WARMPATH_NATS_NKEY")]
    nkey: Option<PathBuf>,
    /// A .creds file: a JWT and its seed.
    #[arg(long = "nats-creds", value_name = "FILE", env = "WARMPATH_NATS_CREDS")]
    creds: Option<PathBuf>,
    /// A file of certificates (PEM) that are trusted beside the system's.
    #[arg(long = "nats-ca", value_name = "FILE", env = "WARMPATH_NATS_CA")]
    authorities: Option<PathBuf>,
    /// Our own certificate (PEM), for servers that ask for one.
    #[arg(long = "nats-cert", value_name = "FILE", requires = "key", env = "WARMPATH_NATS_CERT")]
    certificate: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long = "nats-key", value_name = "FILE", requires = "certificate", env = "WARMPATH_NATS_KEY")]
    key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    Text,
    Json,
}

impl BridgeArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let format = match self.log {
            Log::Text => LogFormat::Text,
            Log::Json => LogFormat::Json,
        };
        telemetry::log_to_stderr(format, Level::INFO);
        let settings = self.settings()?;
        let grace = Duration::from_secs(self.grace);
        network(async {
            let mut interrupts = Interrupts::new();
            let metrics = match self.metrics {
                Some(address) => Some(Listener::bind(address).with_context(|| format!("--metrics {address}"))?),
                None => None,
            };
            let bridge = Bridge::start(settings, self.feeds()?).await.map_err(anyhow::Error::from_boxed);
            let bridge = bridge.context("the settings cannot be used")?;
            if self.block_size.is_none() {
                let remedy = "with --block-size, routers that have missed events are given the blocks again";
                tracing::info!(remedy, "no snapshots are served");
            }
            if let Some(listener) = metrics {
                bridge.serve_metrics(listener);
            }
            interrupts.next().await;
            tracing::info!("draining");
            let counts = bridge.counts();
            let is_done = bridge.stop(grace).await;
            tracing::info!(?counts, is_done, "stopped");
            Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        })
    }

    fn settings(&self) -> anyhow::Result<BridgeSettings> {
        let engine = self.engine_url()?;
        let advertised = self.advertise.as_deref().map(base_url).transpose().context("--advertise")?;
        Ok(BridgeSettings {
            advertised: advertised.unwrap_or_else(|| engine.clone()),
            engine,
            engine_tls: TlsFiles {
                authorities: self.engine_ca.clone(),
                identity: self.engine_cert.clone().zip(self.engine_key.clone()),
            },
            worker: self.worker.clone(),
            model: self.model.clone(),
            block_size: self.block_size.and_then(BlockSize::new),
            max_num_seqs: self.max_num_seqs,
            presets: self.presets()?,
            nats: self.nats.settings()?,
            register: !self.no_register,
        })
    }

    fn engine_url(&self) -> anyhow::Result<BaseUrl> {
        base_url(&self.engine).context("--engine")
    }

    fn presets(&self) -> anyhow::Result<Vec<MetricNames>> {
        let Some(path) = &self.metric_names else { return Ok(MetricNames::known().to_vec()) };
        let named = || format!("--metric-names {}", path.display());
        MetricNames::listed(&fs::read_to_string(path).with_context(named).or_misuse()?)
            .map_err(anyhow::Error::msg)
            .with_context(named)
    }

    fn feeds(&self) -> anyhow::Result<Vec<RankFeed>> {
        (0..u32::from(self.dp_ranks))
            .map(|rank| Ok(RankFeed { rank, source: self.open(rank)?, blocks: self.blocks(rank) }))
            .collect()
    }

    fn blocks(&self, rank: u32) -> Option<Box<dyn BlockSet>> {
        let pool = Namespace::plain(self.model.as_str(), BlockSize::new(self.block_size?)?);
        let settings = ViewSettings { pool, seed: self.index_seed, blocks: 0 };
        Some(Box::new(RankView::new(&self.worker, rank, &settings)))
    }

    /// Opens the events of a rank: the one place that knows that they come over ZMQ.
    fn open(&self, rank: u32) -> anyhow::Result<Source> {
        let of_rank = |endpoint: &ZmqEndpoint| {
            if matches!(endpoint, ZmqEndpoint::Tcp { host, .. } if host == "*") {
                return Err(misuse("`*` is for listening: name the engine's own host, such as 127.0.0.1"));
            }
            endpoint.for_rank(rank).ok_or_else(|| misuse(format!("{endpoint} has no port for rank {rank}")))
        };
        let events = of_rank(&self.zmq).context("--zmq")?;
        let replay = self.zmq_replay.as_ref().map(of_rank).transpose().context("--zmq-replay")?;
        let abilities = Abilities { patience: Patience::NONE, replays: replay.is_some(), snapshots: false };
        let (source, line) = source(abilities, QUEUE);
        let follow = ZmqBus::new(zmq_settings()).follow(&self.engine_worker(rank)?, ZmqEngine { events, replay }, line);
        // It ends with the bridge, which drops the source.
        Tasks::new().spawn(follow);
        Ok(source)
    }

    /// The engine as the event source knows it.
    fn engine_worker(&self, rank: u32) -> anyhow::Result<ZmqWorker> {
        Ok(ZmqWorker {
            id: WorkerId::from(self.worker.as_str()),
            rank: Some(Rank(rank)).filter(|_| self.dp_ranks > 1),
            model: self.model.as_str().into(),
            authority: self.engine_url()?.authority().parse().context("--engine")?,
            metrics: Metrics::new("warmpath").worker(&self.worker, Some(Rank(rank))),
        })
    }
}

/// Read here and not with the arguments, for what cannot be read is repeated there, and may have a password in it.
fn base_url(text: &str) -> anyhow::Result<BaseUrl> {
    BaseUrl::try_from(text.to_owned()).map_err(anyhow::Error::msg).or_misuse()
}

/// Messages that wait while the bridge is busy.
const QUEUE: usize = 16_384;

fn zmq_settings() -> ZmqSettings {
    let second = Duration::from_secs(1);
    ZmqSettings {
        topic: String::new(),
        connect_timeout: 2 * second,
        reconnect_delay_max: second / 4,
        heartbeat: 5 * second,
        replay: ReplaySettings { connect_timeout: 2 * second, idle_timeout: 5 * second, timeout: 30 * second },
    }
}

impl NatsArgs {
    fn settings(&self) -> anyhow::Result<NatsSettings> {
        let mut settings = NatsSettings::publisher(nats_url("--nats", &self.url)?, self.prefix.clone());
        settings.credentials = self.credentials()?;
        let identity = self.certificate.clone().zip(self.key.clone());
        settings.tls = Tls { authorities: self.authorities.clone(), identity };
        Ok(settings)
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        let text = |file: &Path| -> anyhow::Result<String> {
            let text =
                fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display())).or_misuse()?;
            Ok(text.trim().to_owned())
        };
        Ok(match (&self.user, &self.token_file, &self.nkey, &self.creds) {
            (Some(user), ..) => {
                let password = match &self.password_file {
                    Some(file) => text(file)?,
                    None => std::env::var("WARMPATH_NATS_PASSWORD")
                        .context("--nats-user without --nats-password-file or WARMPATH_NATS_PASSWORD")
                        .or_misuse()?,
                };
                Credentials::User { user: user.clone(), password }
            }
            (_, Some(file), ..) => Credentials::Token(text(file)?),
            (_, _, Some(file), _) => Credentials::Nkey(text(file)?),
            (.., Some(file)) => Credentials::Creds(text(file)?),
            _ => Credentials::Anonymous,
        })
    }
}
