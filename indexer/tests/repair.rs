//! A view over a path that loses, repeats, overtakes and cuts: whatever happens, the index ends as the engine's cache is,
//! or says that it does not know all, and never calls a view whole that is not.
//!
//! `WARMPATH_CHAOS_SEEDS` sets the number of seeds (100), `WARMPATH_CHAOS_FROM` the first (1).
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "repair/engine.rs"]
mod engine;
#[path = "repair/path.rs"]
mod path;

use std::time::Duration;

use path::{Faults, Kind, World};
use warmpath_core::trust::ViewState;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::repair::Abilities;

/// A path that keeps the order, and an engine that sends again what it said; no epochs.
const ZMQ: Kind = Kind {
    name: "zmq",
    abilities: Abilities { patience: Patience::NONE, replays: true, snapshots: false },
    epoch: false,
    ring: 10_000,
};
/// The same, of an engine that remembers little.
const ZMQ_SHORT: Kind = Kind { name: "zmq, short ring", ring: 20, ..ZMQ };
/// A path that reorders, and somebody who keeps the engine's blocks.
const BRIDGE: Kind = Kind {
    name: "bridge",
    abilities: Abilities { patience: Patience::NATS, replays: false, snapshots: true },
    epoch: true,
    ring: 10_000,
};
/// All that there can be, and a short memory.
const ALL: Kind = Kind {
    name: "replay and snapshot",
    abilities: Abilities { patience: Patience::NATS, replays: true, snapshots: true },
    epoch: true,
    ring: 20,
};
/// Nothing but the batches themselves.
const BARE: Kind = Kind {
    name: "bare",
    abilities: Abilities { patience: Patience::NATS, replays: false, snapshots: false },
    epoch: true,
    ring: 10_000,
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// One run: the view ends whole where everything could be had, and never says more than the engine holds.
fn live_through(kind: Kind, faults: Faults, seed: u64) -> World {
    let mut world = World::new(kind, faults, seed);
    world.live_through(300);
    world.quiesce();
    let view = world.repair.view();
    let whole = kind.abilities.snapshots || (kind.abilities.replays && kind.ring >= 10_000);
    assert!(!view.is_doubted(), "{world}");
    assert!(view == ViewState::Current || !whole, "{world}: {:?}", world.repair.cold());
    world.compare();
    world
}

/// Runs one sort of fault over every sort of path, and returns how often a view was doubted, and how often it ended cold.
fn chaos(faults: Faults) {
    let (from, seeds) = (number("WARMPATH_CHAOS_FROM", 1), number("WARMPATH_CHAOS_SEEDS", 100));
    for kind in [ZMQ, ZMQ_SHORT, BRIDGE, ALL, BARE] {
        let (mut cold, mut repairs, mut suspect, mut batches) = (0, 0, Duration::ZERO, 0);
        for seed in from..from + seeds {
            let world = live_through(kind, faults, seed);
            cold += u64::from(world.repair.view() == ViewState::Cold);
            (repairs, batches) = (repairs + world.repairs, batches + world.published);
            suspect += world.suspect;
        }
        println!(
            "{faults:?} over {}: {seeds} seeds, {batches} batches, {repairs} repairs, {cold} cold at the end, \
             suspect {:.1} s a run",
            kind.name,
            suspect.as_secs_f64() / f64::from(u32::try_from(seeds).unwrap()),
        );
    }
}

#[test]
fn a_faultless_path_is_followed() {
    chaos(Faults::default());
}

#[test]
fn r23_lost_batches_are_fetched_or_admitted() {
    chaos(Faults { loss: true, ..Faults::default() });
}

#[test]
fn r22_repeated_batches_change_nothing() {
    chaos(Faults { repeats: true, ..Faults::default() });
}

#[test]
fn r22_overtaken_batches_change_nothing() {
    chaos(Faults { reorder: true, repeats: true, ..Faults::default() });
}

#[test]
fn r22_a_whole_replay_beside_live_changes_nothing() {
    chaos(Faults { full_replay: true, ..Faults::default() });
}

#[test]
fn r24_a_process_that_is_gone_leaves_nothing_behind() {
    chaos(Faults { restart: true, ..Faults::default() });
}

#[test]
fn r23_a_cut_path_is_made_good() {
    chaos(Faults { cut: true, ..Faults::default() });
}

#[test]
fn stale_answers_change_nothing() {
    chaos(Faults { stale: true, loss: true, restart: true, ..Faults::default() });
}

const EVERYTHING: Faults =
    Faults { loss: true, repeats: true, reorder: true, full_replay: true, restart: true, cut: true, stale: true };

#[test]
fn all_faults_together() {
    chaos(EVERYTHING);
}

/// A snapshot of the next life comes while the last one's batches are held: their numbers are none of its.
#[test]
fn seed_611_a_snapshot_begins_another_life() {
    let world = live_through(ALL, EVERYTHING, 611);
    assert_eq!((world.repair.view(), world.repair.cold()), (ViewState::Current, None));
}

/// The first answer comes when it has been given up, mixed with the second: its end is not the end of the other.
#[test]
fn seed_465_two_answers_at_once_are_told_apart() {
    let world = live_through(ZMQ, EVERYTHING, 465);
    assert_eq!((world.repair.view(), world.repair.cold()), (ViewState::Current, None));
}
