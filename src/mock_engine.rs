//! The simulated engine behind a socket: OpenAI's HTTP, vLLM's events and metrics.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use warmpath_indexer::codec::encode::{self, HashForm};

use crate::door::{Door, DoorLimits, Listener};
use crate::error::BoxError;
use crate::events::publish::faults::EventFaults;
use crate::events::publish::{Bus, Publisher};
use crate::shutdown::Tasks;
use crate::sim::{Engine, EngineConfig};
use crate::telemetry::metrics::DoorMetrics;
use driver::Driver;
use exposition::Exposition;
use voice::Voice;
use wire::{Wire, WireSettings};

mod answer;
mod api;
mod driver;
mod exposition;
mod voice;
mod wire;

/// A vocabulary whose tokens are letters where a token is a byte: what such an engine says can be read, and asked again.
pub const LETTERS: Range<u32> = 97..123;

/// How a simulated engine is set up.
#[derive(Clone, Debug)]
pub struct MockSettings {
    /// Where it listens; port 0 is any.
    pub listen: SocketAddr,
    /// Its id on the bus.
    pub worker: String,
    /// The model that it serves.
    pub model: String,
    /// The engine.
    pub engine: EngineConfig,
    /// Where its events go.
    pub bus: Bus,
    /// How they are written.
    pub form: encode::Form,
    /// How the engine's names for blocks are written.
    pub hashes: HashForm,
    /// What goes wrong with them on their way.
    pub faults: EventFaults,
    /// How much faster than the timing model it runs.
    pub speedup: f64,
    /// A `tokenizer.json`; without it each byte is a token.
    pub tokenizer: Option<PathBuf>,
}

/// A running simulated engine. It ends with its tasks.
#[derive(Clone, Copy, Debug)]
pub struct MockEngine {
    /// Where it listens.
    pub address: SocketAddr,
}

/// What its handlers share.
struct Shared {
    model: String,
    longest: usize,
    voice: Voice,
    commands: driver::Commands,
    exposition: Arc<Exposition>,
    requests: AtomicU64,
}

impl MockEngine {
    /// Binds and serves.
    ///
    /// # Errors
    /// When the port is taken, or the engine's settings make no sense.
    pub async fn start(settings: MockSettings, tasks: &Tasks) -> Result<Self, BoxError> {
        let listener = Listener::bind(settings.listen)?;
        let address = listener.address();
        settings.bus.each_nats(&mut |bus| {
            let bus = bus.clone();
            tasks.spawn(async move { bus.prepare().await });
        });
        let longest = settings.engine.longest();
        let (block_size, blocks) = (settings.engine.block_size, settings.engine.blocks);
        let wire = WireSettings {
            form: settings.form,
            hashes: settings.hashes,
            block_size,
            faults: settings.faults,
            seed: settings.engine.seed,
        };
        let engine = Engine::new(settings.engine.clone())?;
        let exposition = Arc::new(Exposition::new(&settings.model, block_size.get(), blocks));
        let publisher = Publisher::new(settings.bus, &settings.model, &settings.worker, 0);
        let (wire, delaying) = Wire::new(publisher, wire);
        tasks.spawn(delaying);
        let (commands, queue) = driver::commands();
        tasks.spawn(
            Driver::new((engine, settings.engine), queue, wire, Arc::clone(&exposition), settings.speedup).run(),
        );
        let shared = Shared {
            model: settings.model,
            longest,
            voice: Voice::load(settings.tokenizer.as_deref())?,
            commands,
            exposition,
            requests: AtomicU64::new(0),
        };
        let router = api::routes(Arc::new(shared));
        Door::open(listener, router, (DoorLimits::default(), None), DoorMetrics::default(), tasks);
        Ok(Self { address })
    }
}
