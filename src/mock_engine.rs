//! The simulated engine behind a socket: OpenAI's HTTP and SGLang's own, vLLM's events and metrics.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use warmpath_indexer::codec::encode::{self, HashForm};
use warmpath_simulator::{Engine, EngineConfig, Profile};

use crate::door::{Door, DoorLimits, Listener};
use crate::error::BoxError;
use crate::events::publish::faults::EventFaults;
use crate::events::publish::{Bus, Publisher};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::DoorMetrics;
use driver::Driver;
use exposition::{Exposition, Names, Subject};
use ranks::{Ranks, Seat};
use voice::Voice;
use wire::{Wire, WireSettings};

mod answer;
mod api;
mod driver;
mod exposition;
mod native;
mod ranks;
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
    /// Where events go, of each data-parallel rank: one at least. Each rank has a cache and a scheduler of its own.
    pub ranks: Vec<Bus>,
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
    ranks: Ranks,
    exposition: Arc<Exposition>,
    requests: AtomicU64,
    /// The share of requests that are answered with an error.
    errors: Mutex<f64>,
}

impl MockSettings {
    /// Starts one rank.
    fn seat(&self, rank: u32, bus: Bus, exposition: &Arc<Exposition>, tasks: &Tasks) -> Result<Seat, BoxError> {
        let seed = self.engine.seed.wrapping_add(rank.into());
        let config = EngineConfig { seed, ..self.engine.clone() };
        let wire = WireSettings {
            form: self.form,
            hashes: self.hashes,
            block_size: config.block_size,
            faults: self.faults,
            seed,
            rank,
        };
        let engine = Engine::new(config.clone())?;
        let (wire, delaying) = Wire::new(Publisher::new(bus, &self.model, &self.worker, rank), wire);
        tasks.spawn(delaying);
        let (commands, queue) = driver::commands();
        tasks.spawn(Driver::new((engine, config), queue, wire, (Arc::clone(exposition), rank), self.speedup).run());
        Ok(Seat::new(commands))
    }
}

impl MockEngine {
    /// Binds and serves.
    ///
    /// # Errors
    /// When the port is taken, or the engine's settings make no sense.
    pub async fn start(settings: MockSettings, tasks: &Tasks) -> Result<Self, BoxError> {
        let at = settings.listen;
        let listener = Listener::bind(at).map_err(|error| format!("cannot listen on {at}: {error}"))?;
        let address = listener.address();
        let first = settings.ranks.first().ok_or("an engine has one rank at least")?;
        // All ranks publish to one server.
        first.each_nats(&mut |bus| {
            let bus = bus.clone();
            tasks.spawn(async move { bus.prepare().await });
        });
        let names = if settings.engine.profile == Profile::SglangRadix { Names::Sglang } else { Names::Vllm };
        let subject = Subject {
            model: settings.model.clone(),
            names,
            ranks: u32::try_from(settings.ranks.len())?,
            block_size: settings.engine.block_size.get(),
            blocks: settings.engine.blocks,
        };
        let exposition = Arc::new(Exposition::new(subject));
        let seat = |(rank, bus): (u32, &Bus)| settings.seat(rank, bus.clone(), &exposition, tasks);
        let seats = (0..).zip(&settings.ranks).map(seat).collect::<Result<Vec<_>, _>>()?;
        let shared = Shared {
            longest: settings.engine.longest(),
            voice: Voice::load(settings.tokenizer.as_deref())?,
            ranks: Ranks::new(seats),
            model: settings.model,
            exposition,
            requests: AtomicU64::new(0),
            errors: Mutex::default(),
        };
        let router = api::routes(Arc::new(shared));
        Door::open(listener, router, (DoorLimits::default(), None), DoorMetrics::default(), tasks);
        Ok(Self { address })
    }
}
