//! What a bridge beside a simulated engine is given.

use std::net::SocketAddr;

use warmpath::bridge::{BridgeSettings, RankFeed, RankView};
use warmpath::config::{BaseUrl, MetricNames};
use warmpath::events::local::LocalBus;
use warmpath::events::nats::NatsSettings;
use warmpath::events::source::{Line, source};
use warmpath::events::{Abilities, Ask, Heard, Message, ReplayEnd};
use warmpath::link::TlsFiles;
use warmpath::shutdown::Tasks;
use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

/// Of an engine that replays.
pub(crate) const ABILITIES: Abilities = Abilities { patience: Patience::NONE, replays: true, snapshots: false };

/// The settings of a bridge beside the engine at `address`.
pub(crate) fn bridge_settings(address: SocketAddr, model: &str, worker: &str, nats: &str) -> BridgeSettings {
    let engine = BaseUrl::try_from(format!("http://{address}")).unwrap();
    BridgeSettings {
        advertised: engine.clone(),
        engine,
        engine_tls: TlsFiles::default(),
        worker: worker.to_owned(),
        model: model.to_owned(),
        block_size: BlockSize::new(4),
        max_num_seqs: None,
        presets: MetricNames::known().to_vec(),
        nats: NatsSettings::publisher(nats.to_owned(), "warmpath".to_owned()),
        register: true,
    }
}

/// The events of a simulated engine as they come from a real one: numbered, without an epoch, and again if asked for.
pub(crate) fn engine_source(bus: &LocalBus, model: &str, worker: &str) -> RankFeed {
    let (source, Line { tell, asked, .. }) = source(ABILITIES, 64);
    let mut events = bus.subscribe(worker, 0);
    // It outlives the engine's own tasks, which a restart ends.
    Tasks::new().spawn(async move {
        let (mut kept, mut life) = (Vec::<Message>::new(), None);
        let _ = tell.send(Heard::Connected).await;
        loop {
            tokio::select! {
                Some(message) = events.recv() => {
                    if std::mem::replace(&mut life, message.epoch) != message.epoch && !kept.is_empty() {
                        kept.clear();
                        let _ = tell.send(Heard::Connected).await;
                    }
                    let message = Message { epoch: None, ..message };
                    kept.push(message.clone());
                    let _ = tell.send(Heard::Live(message)).await;
                }
                Some(Ask::Replay { id, from }) = asked.recv() => {
                    for message in kept.iter().filter(|message| message.seq >= Some(from)) {
                        let _ = tell.send(Heard::Replayed(id, message.clone())).await;
                    }
                    let _ = tell.send(Heard::ReplayEnded(id, ReplayEnd::Whole)).await;
                }
                else => return,
            }
        }
    });
    let pool = Namespace::plain(model, BlockSize::new(4).unwrap());
    let view = RankView::new(worker, 0, &ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 });
    RankFeed { rank: 0, source, blocks: Some(Box::new(view)) }
}
