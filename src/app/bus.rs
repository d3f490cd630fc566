//! How events come in, for people: the connections, each worker's source, and the other routers.

use std::sync::Arc;
use std::time::Instant;

use super::readiness::Ready;
use super::replicas::{Replicas as Others, Said};
use super::sources::Sources;
use crate::events::course::{Standing, State, Way};
use crate::events::nats::NatsBus;
use crate::fleet::Fleet;
use crate::http::admin::bus::{BusReport, BusState, Replicas, SourceState};
use crate::http::admin::settings::Settings;
use crate::shutdown::Tasks;

/// Begins to hear other routers, where there is a bus to hear them over. Returns what tells all of it.
pub(super) fn start(
    (fleet, sources): (&Arc<Fleet>, &Arc<Sources>),
    (settings, port): (&Arc<impl Settings + 'static>, u16),
    ready: Ready,
    background: &Tasks,
) -> Box<dyn Fn() -> BusReport + Send + Sync> {
    let others = sources.nats().map(|_| Arc::new(Others::new(port)));
    if let (Some(bus), Some(others)) = (sources.nats(), &others) {
        let (fleet, settings) = (Arc::clone(fleet), Arc::clone(settings));
        let say =
            move || Said { config: settings.show().hash.clone(), ready: ready().is_ok(), in_flight: in_flight(&fleet) };
        others.start(bus, say, background);
    }
    let (fleet, sources, settings) = (Arc::clone(fleet), Arc::clone(sources), Arc::clone(settings));
    Box::new(move || {
        let now = Instant::now();
        BusReport {
            buses: buses(&sources, now),
            sources: rows(&fleet, &sources, now),
            replicas: replicas(&fleet, others.as_deref(), &settings.show().hash, now),
        }
    })
}

/// Requests that were sent to workers and have not ended.
pub(super) fn in_flight(fleet: &Fleet) -> u32 {
    fleet.roster().table().iter().map(|target| target.account.read().requests).sum()
}

fn buses(sources: &Sources, now: Instant) -> Vec<BusState> {
    let nats = sources.nats().map(NatsBus::standing).map(|bus| BusState {
        kind: "nats",
        at: bus.at,
        up: bus.up,
        for_s: now.saturating_duration_since(bus.since).as_secs_f64(),
        losses: bus.losses,
        dropped: bus.drops,
        error: bus.error,
    });
    let gate = sources.gate().map(|(gate, unmatched)| BusState {
        kind: "zmq_gate",
        up: gate.state == State::Connected,
        for_s: gate.for_s,
        losses: 0,
        dropped: unmatched,
        error: gate.last_error.filter(|_| gate.state != State::Connected),
        at: gate.at,
    });
    nats.into_iter().chain(gate).collect()
}

fn rows(fleet: &Fleet, sources: &Sources, now: Instant) -> Vec<SourceState> {
    let roster = fleet.roster();
    let trouble = sources.nats().and_then(|bus| bus.standing().error.filter(|_| !bus.is_up()));
    let rows = roster.table().iter().filter_map(|target| {
        let worker = roster.worker(target.slot)?;
        let standing = sources.course(worker)?.read(now);
        Some(SourceState {
            worker: worker.id.as_str().to_owned(),
            rank: target.rank.0,
            standing: overshadowed(standing, trouble.as_ref()),
        })
    });
    rows.collect()
}

/// A source that never was connected does not know why; its bus does.
fn overshadowed(standing: Standing, trouble: Option<&String>) -> Standing {
    let over_nats = matches!(standing.way, Way::Nats | Way::JetStream);
    match trouble {
        Some(trouble) if over_nats && standing.state == State::Waiting => {
            Standing { state: State::Down, last_error: Some(trouble.clone()), last_error_age_s: Some(0.0), ..standing }
        }
        _ => standing,
    }
}

fn replicas(fleet: &Fleet, others: Option<&Others>, config: &str, now: Instant) -> Replicas {
    let heard = others.map(|others| others.rows(now, config)).unwrap_or_default();
    let roster = fleet.roster();
    let beyond = roster.table().iter().filter_map(|target| {
        let (_, said) = roster.worker(target.slot)?.engine.last()?;
        let there = said.running.unwrap_or(0).saturating_add(said.waiting.unwrap_or(0));
        Some(u64::from(there.saturating_sub(target.account.read().sequences)))
    });
    Replicas {
        told_as: others.map(|others| others.name().to_owned()),
        in_flight: heard.iter().map(|replica| u64::from(replica.in_flight)).sum(),
        other_sequences: beyond.sum(),
        heard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::course::Course;

    #[test]
    fn a_source_that_never_was_connected_is_down_with_its_bus() {
        let (now, trouble) = (Instant::now(), "refused".to_owned());
        let course = Course::new(now);
        course.comes(Way::Nats, "warmpath.kv.m.w.0");
        let told = overshadowed(course.read(now), Some(&trouble));
        assert_eq!((told.state, told.last_error.as_deref()), (State::Down, Some("refused")));
        assert_eq!(overshadowed(course.read(now), None).state, State::Waiting);
        course.down(now, "the connection was lost");
        let told = overshadowed(course.read(now), Some(&trouble));
        assert_eq!((told.state, told.last_error.as_deref()), (State::Down, Some("the connection was lost")));
        course.comes(Way::Zmq, "tcp://h:1");
        course.excused(now);
        assert_eq!(overshadowed(course.read(now), Some(&trouble)).state, State::Waiting);
    }
}
