//! Rules across what is said of ZeroMQ: every (worker, rank) needs sockets of its own.

use std::collections::HashMap;

use super::check::Rules;
use super::endpoint::ZmqEndpoint;
use super::fleet::{EventSource, Worker};
use super::place::{Place, Spanned};
use super::{Config, Zmq};

/// Who has which socket, and where that was written.
type Taken<'c> = HashMap<ZmqEndpoint, (&'c str, Place)>;

impl Rules<'_> {
    /// Appends what is wrong with the sockets of workers that are read over ZeroMQ.
    pub(super) fn zmq_workers(&mut self, config: &Config) {
        let mut taken = Taken::new();
        for worker in &config.workers {
            if config.event_source(worker) == EventSource::Zmq {
                self.zmq_worker(config, worker, &mut taken);
            } else {
                self.zmq_unused(worker);
            }
        }
    }

    pub(super) fn zmq_bind(&mut self, zmq: &Zmq) {
        if let Some(bind @ Spanned { value: ZmqEndpoint::Tcp { port: 0, .. }, .. }) = &zmq.bind {
            self.fault(self.place(bind), "engines cannot connect to a port that is not known before");
        }
    }

    fn zmq_unused(&mut self, worker: &Worker) {
        for endpoint in [&worker.zmq_endpoint, &worker.zmq_replay].into_iter().flatten() {
            self.fault(self.place(endpoint), "the worker's events do not come over ZeroMQ: set `events: zmq`");
        }
    }

    fn zmq_worker<'c>(&mut self, config: &'c Config, worker: &'c Worker, taken: &mut Taken<'c>) {
        let ranks = u32::from(worker.dp_ranks.get());
        let (events, replay) = (config.zmq_events(worker), config.zmq_replay(worker));
        let at = match (&worker.zmq_endpoint, &worker.events) {
            (Some(endpoint), _) => self.place(endpoint),
            (None, Some(source)) => self.place(source),
            (None, None) => self.place(&worker.id),
        };
        let connected = |endpoint: &Option<_>| matches!(endpoint, Some(ZmqEndpoint::Tcp { host, .. }) if host == "*");
        if connected(&events) || connected(&replay) {
            self.fault(at, "`*` is for listening: name the engine's own host");
        } else if events.is_none() && config.events.zmq.bind.is_none() {
            self.fault(at, "the host of its `url` is none for ZeroMQ: name its `zmq_endpoint`");
        } else if let Some(ports) = collision(events.as_ref(), replay.as_ref(), ranks) {
            let place = match (&worker.zmq_replay, &config.events.zmq.replay_port) {
                (Some(replay), _) => self.place(replay),
                (None, Some(port)) => self.place(port),
                (None, None) => at,
            };
            let id = worker.id.as_str();
            let message = format!(
                "{ports} collide, as rank r adds r to both and worker `{id}` has {ranks} of them: keep them {ranks} apart"
            );
            self.fault(place, &message);
        } else {
            for endpoint in [events, replay].into_iter().flatten() {
                self.zmq_ranks(&endpoint, (worker, &at), taken);
            }
        }
    }

    fn zmq_ranks<'c>(&mut self, endpoint: &ZmqEndpoint, (worker, at): (&'c Worker, &Place), taken: &mut Taken<'c>) {
        for rank in 0..u32::from(worker.dp_ranks.get()) {
            let Some(of_rank) = endpoint.for_rank(rank) else {
                return self.fault(at.clone(), &format!("{endpoint} leaves no place for rank {rank}"));
            };
            let earlier = taken.insert(of_rank.clone(), (worker.id.as_str(), at.clone()));
            if let Some((other, place)) = earlier {
                let place = place.seen_from(at);
                let message = format!(
                    "{of_rank} is already read for worker `{other}` at {place}: each needs a `zmq_endpoint` and `zmq_replay` of its own"
                );
                return self.fault(at.clone(), &message);
            }
        }
    }
}

/// The ports of events and replays, if so many ranks need the same one for both.
fn collision(events: Option<&ZmqEndpoint>, replay: Option<&ZmqEndpoint>, ranks: u32) -> Option<String> {
    let (Some(ZmqEndpoint::Tcp { host, port }), Some(ZmqEndpoint::Tcp { host: other, port: replay })) =
        (events, replay)
    else {
        return None;
    };
    let collide = host == other && u32::from(port.abs_diff(*replay)) < ranks;
    collide.then(|| format!("the ports {port} for events and {replay} for replays"))
}
