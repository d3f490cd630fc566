//! A place to which engines connect. Their topics, `kv@<host:port>@<model>` or `kv@<worker>@<model>`, say who they are;
//! who cannot be told is counted and shown, and never guessed. The data-parallel ranks of an engine connect one by one
//! under one topic; which of them speaks, its batches say.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;
use warmpath_core::ids::Rank;
use warmpath_indexer::codec;

use super::board::Place;
use super::replay::Replays;
use super::{Beat, Ear, FIRST_PAUSE, Pulse, ZmqBus, ZmqWorker, shown, split};
use crate::config::ZmqEndpoint;
use crate::events::course::{Course, Standing};
use crate::events::source::{Heard, Line};
use crate::events::zmtp::{Arrival, Kind, Link, LinkError, Listener};
use crate::shutdown::Tasks;

/// Connections at once; more are turned away, so that strangers cannot take all of the process's files.
const PEERS_MAX: usize = 4096;

/// Where engines connect to, and whom it knows.
pub struct Gate {
    bus: ZmqBus,
    endpoint: ZmqEndpoint,
    place: Place,
    course: Arc<Course>,
    guests: RwLock<Guests>,
    /// How often the guests have changed.
    changes: AtomicU64,
}

/// Those who are expected, by who a topic names and its model.
type Guests = HashMap<(String, String), Ranks>;

/// Those who listen to one worker, by rank. Never empty.
#[derive(Clone)]
struct Ranks(Vec<(Rank, Arc<Ear>)>);

/// Who the last message of a connection was from.
struct Speaker {
    topic: Bytes,
    ranks: Ranks,
    /// Holds while the guests have not changed since.
    change: u64,
}

impl Ranks {
    /// Whose batch this is, if `heard` are those who were heard over its connection before. One that names no rank is the
    /// first's. O(batch), but not where there is one rank and it was heard.
    fn of(&self, payload: &[u8], heard: &[Arc<Ear>]) -> Whose<'_> {
        let [(_, first), others @ ..] = &*self.0 else { unreachable!("it is never empty") };
        if others.is_empty() && is_among(heard, first) {
            return Whose::Of(first);
        }
        let Some(named) = codec::rank_of(payload) else { return Whose::Of(first) };
        let found = self.0.iter().find(|(rank, _)| named == rank.0);
        found.map_or(Whose::Nobodys(first), |(_, ear)| Whose::Of(ear))
    }
}

/// Whose a batch is.
enum Whose<'a> {
    Of(&'a Arc<Ear>),
    /// It names a rank that is not expected. This one is told of it, who counts what is wrong, and does not hear by it.
    Nobodys(&'a Arc<Ear>),
}

fn is_among(heard: &[Arc<Ear>], ear: &Arc<Ear>) -> bool {
    heard.iter().any(|guest| Arc::ptr_eq(guest, ear))
}

/// A worker's invitation: once this is dropped it is not expected any more.
struct Invitation {
    gate: Arc<Gate>,
    ear: Arc<Ear>,
}

impl Drop for Invitation {
    fn drop(&mut self) {
        self.gate.change(|guests| {
            guests.retain(|_, ranks| {
                ranks.0.retain(|(_, ear)| !Arc::ptr_eq(ear, &self.ear));
                !ranks.0.is_empty()
            });
        });
    }
}

impl Gate {
    /// A gate at `endpoint` that knows nobody.
    pub fn new(bus: &ZmqBus, endpoint: ZmqEndpoint) -> Self {
        let course = Arc::new(Course::new(Instant::now()));
        let place = bus.board.enter("engines at the gate", &endpoint, Arc::clone(&course));
        Self { bus: bus.clone(), endpoint, place, course, guests: RwLock::default(), changes: AtomicU64::new(0) }
    }

    /// Expects `worker`, of whom topics may speak by its id or its address, and of its model by any of `models`. The
    /// future answers what is asked for; it is expected until that is dropped.
    pub fn expect(
        self: &Arc<Self>,
        worker: &ZmqWorker,
        models: &[&str],
        replay: Option<ZmqEndpoint>,
        line: Line,
    ) -> impl Future<Output = ()> + use<> {
        let place = self.bus.board.enter(&worker.place(), &self.endpoint, Arc::clone(&line.course));
        let ear = Arc::new(Ear::new(worker, &line, place.clone()));
        place.excuse();
        let rank = worker.rank.unwrap_or_default();
        self.change(|guests| {
            for name in [worker.id.as_str(), worker.authority.as_str()] {
                for model in models {
                    let ranks = guests.entry((name.to_owned(), (*model).to_owned())).or_insert(Ranks(Vec::new()));
                    ranks.0.retain(|(other, _)| *other != rank);
                    ranks.0.push((rank, Arc::clone(&ear)));
                    ranks.0.sort_by_key(|(rank, _)| *rank);
                }
            }
        });
        self.bus.board.recognise(&names_of(worker, models));
        let invitation = Invitation { gate: Arc::clone(self), ear };
        let mut replays = Replays::new(line, replay, self.bus.settings.replay, place);
        replays.connected = true;
        async move {
            replays.work().await;
            drop(invitation);
        }
    }

    /// How it is with the socket itself.
    pub fn standing(&self) -> Standing {
        self.course.read(Instant::now())
    }

    /// Takes connections for ever.
    pub async fn run(self: Arc<Self>, tasks: Tasks) {
        let gate = self;
        let peers = Arc::new(Semaphore::new(PEERS_MAX));
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match Listener::bind(&gate.endpoint).await {
                Ok(listener) => {
                    gate.place.up();
                    pause = FIRST_PAUSE;
                    loop {
                        match listener.accept().await {
                            Ok(arrival) => {
                                let Ok(seat) = Arc::clone(&peers).try_acquire_owned() else { continue };
                                let gate = Arc::clone(&gate);
                                tasks.spawn(async move {
                                    gate.admit(arrival).await;
                                    drop(seat);
                                });
                            }
                            Err(error) => break error,
                        }
                    }
                }
                Err(error) => error,
            };
            gate.place.lower(error.to_string());
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(gate.bus.settings.reconnect_delay_max);
        }
    }

    async fn admit(&self, arrival: Arrival) {
        let settings = &self.bus.settings;
        let greeted = arrival.greet(Kind::Sub, settings.connect_timeout).await;
        let mut known = Vec::new();
        let ended = match greeted {
            Ok(link) => self.listen(link, &mut known).await,
            Err(error) => error,
        };
        tracing::info!(why = %ended, "an engine's connection ended");
        for ear in known {
            // Whoever is not expected any more is not missed.
            if ear.links.fetch_sub(1, Ordering::Relaxed) == 1 && !ear.tell.is_closed() {
                ear.place.left(&ended);
            }
        }
    }

    async fn listen(&self, link: Link, known: &mut Vec<Arc<Ear>>) -> LinkError {
        let mut pulse = match Pulse::start(link, self.bus.settings.heartbeat).await {
            Ok(pulse) => pulse,
            Err(error) => return error,
        };
        let mut last: Option<Speaker> = None;
        loop {
            let frames = match pulse.next().await {
                Ok(Beat::Frames(frames)) => frames,
                Ok(Beat::Pong) => continue,
                Err(error) => return error,
            };
            let topic = frames.first().cloned().unwrap_or_default();
            let change = self.changes.load(Ordering::Acquire);
            let speaker = match last.take().filter(|last| last.topic == topic && last.change == change) {
                Some(speaker) => speaker,
                None => match self.find(&topic) {
                    Some(ranks) => Speaker { topic: Bytes::copy_from_slice(&topic), ranks, change },
                    None => {
                        if self.bus.board.note_unmatched(&topic, Instant::now()) {
                            tracing::warn!(topic = shown(&topic), "events whose topic names no worker");
                        }
                        continue;
                    }
                },
            };
            let whose = speaker.ranks.of(frames.last().map_or(&[], |payload| payload), known);
            let ear = match whose {
                Whose::Of(ear) => {
                    if !is_among(known, ear) && !meet(ear, known).await {
                        return LinkError::Closed;
                    }
                    ear
                }
                Whose::Nobodys(ear) => ear,
            };
            if !ear.hand_on(frames).await {
                return LinkError::Closed;
            }
            last = Some(speaker);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Guests)) {
        change(&mut self.guests.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn find(&self, topic: &[u8]) -> Option<Ranks> {
        let (who, model) = split(topic)?;
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        guests.get(&(who.to_owned(), model.to_owned())).cloned()
    }
}

/// All topics by which a worker of these models may speak.
fn names_of(worker: &ZmqWorker, models: &[&str]) -> Vec<String> {
    let of_model = |who: &str| models.iter().map(|model| format!("kv@{who}@{model}")).collect::<Vec<_>>();
    [worker.id.as_str(), worker.authority.as_str()].into_iter().flat_map(of_model).collect()
}

/// Takes note that this rank speaks over a connection for the first time: whatever was sent before the connection was made
/// may be missing. False when nobody is there.
async fn meet(ear: &Arc<Ear>, known: &mut Vec<Arc<Ear>>) -> bool {
    ear.links.fetch_add(1, Ordering::Relaxed);
    // Those who left and came again over the same connection.
    known.retain(|ear| !ear.tell.is_closed());
    known.push(Arc::clone(ear));
    let told = ear.tell.send(Heard::Connected).await.is_ok();
    if told {
        ear.place.up();
    }
    told
}
