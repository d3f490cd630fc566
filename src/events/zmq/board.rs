//! How the connections are, for health and readiness.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::shown;
use crate::config::ZmqEndpoint;
use crate::events::course::{Course, MEANWHILE, Way};
use crate::events::zmtp::LinkError;

/// Troubles that are told by name; of the rest, the number.
const NAMED: usize = 3;

/// Topics that are told by name.
const TOPICS_MAX: usize = 8;

/// How long a topic that names nobody is complained of after it was heard last.
const COMPLAINED_OF: Duration = Duration::from_secs(60);

/// Every connection's state. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Ascending: those that entered first are named first.
    places: BTreeMap<u64, State>,
    entered: u64,
    strangers: Vec<Stranger>,
    unmatched: u64,
}

/// A topic that names no worker.
#[derive(Debug)]
struct Stranger {
    /// As it is shown; of those beyond [`TOPICS_MAX`] together, none.
    topic: Option<String>,
    messages: u64,
    heard: Instant,
}

#[derive(Debug)]
struct State {
    name: String,
    endpoint: String,
    down: Option<String>,
    replay: Option<String>,
}

/// One (worker, rank)'s, or one gate's, line on the board, which is wiped out with the last clone.
#[derive(Clone, Debug)]
pub(super) struct Place {
    line: Arc<BoardLine>,
    name: Arc<str>,
    course: Arc<Course>,
}

#[derive(Debug)]
struct BoardLine {
    board: Board,
    at: u64,
}

impl Drop for BoardLine {
    fn drop(&mut self) {
        self.board.change(|inner| inner.places.remove(&self.at));
    }
}

impl Board {
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A new line, for something that is not connected yet. `course` hears what is written on it.
    pub(super) fn enter(&self, name: &str, endpoint: &ZmqEndpoint, course: Arc<Course>) -> Place {
        course.comes(Way::Zmq, &endpoint.to_string());
        let down = Some("not connected yet".to_owned());
        let state = State { name: name.to_owned(), endpoint: endpoint.to_string(), down, replay: None };
        let at = self.change(|inner| {
            inner.entered += 1;
            inner.places.insert(inner.entered, state);
            inner.entered
        });
        Place { line: Arc::new(BoardLine { board: self.clone(), at }), name: name.into(), course }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.change(|inner| {
            let down: Vec<_> = inner.places.values().filter_map(|state| Some((state, state.down.as_ref()?))).collect();
            let told =
                down.iter().take(NAMED).map(|(state, why)| format!("{} at {}: {why}", state.name, state.endpoint));
            let told = told.collect::<Vec<_>>().join("; ");
            match down.len() {
                0 => None,
                count if count > NAMED => Some(format!("{told}; and {} more", count - NAMED)),
                _ => Some(told),
            }
        })
    }

    /// Whether there are connections to be made, and none is.
    pub(super) fn is_cut_off(&self) -> bool {
        self.change(|inner| !inner.places.is_empty() && inner.places.values().all(|state| state.down.is_some()))
    }

    /// What does not work at `now`, a sentence for each that is told by name.
    pub(super) fn complaints(&self, now: Instant) -> Vec<String> {
        self.change(|inner| {
            let down: Vec<_> = inner.places.values().filter_map(|state| Some((state, state.down.as_ref()?))).collect();
            let lost = down.iter().take(NAMED).map(|(State { name, endpoint, .. }, why)| {
                format!("events of {name} are not connected ({endpoint}: {why}): {MEANWHILE}")
            });
            let more = down.len().saturating_sub(NAMED);
            let more = (more > 0).then(|| format!("events of {more} more are not connected: {MEANWHILE}"));
            let replays = inner.places.values().filter_map(|state| Some((state, state.replay.as_ref()?))).take(NAMED);
            let replays = replays.map(|(state, why)| format!("events of {} cannot be replayed ({why})", state.name));
            let mut complaints: Vec<_> = lost.chain(more).chain(replays).collect();
            inner.strangers.retain(|stranger| stranger.is_present(now));
            complaints.extend(complaint_of(&inner.strangers));
            complaints
        })
    }

    pub(super) fn unmatched(&self) -> u64 {
        self.change(|inner| inner.unmatched)
    }

    /// Counts a message whose topic names nobody at `now`; true if its topic is new.
    pub(super) fn note_unmatched(&self, topic: &[u8], now: Instant) -> bool {
        self.change(|inner| {
            inner.unmatched += 1;
            let strangers = &mut inner.strangers;
            strangers.retain(|stranger| stranger.is_present(now));
            let topic = Some(shown(topic));
            let named = strangers.iter().filter(|stranger| stranger.topic.is_some()).count();
            let is_known = strangers.iter().any(|stranger| stranger.topic == topic);
            let topic = if is_known || named < TOPICS_MAX { topic } else { None };
            let new = !is_known && topic.is_some();
            match strangers.iter_mut().find(|stranger| stranger.topic == topic) {
                Some(stranger) => (stranger.messages, stranger.heard) = (stranger.messages + 1, now),
                None => strangers.push(Stranger { topic, messages: 1, heard: now }),
            }
            new
        })
    }

    /// These topics name a worker from now on.
    pub(super) fn recognise(&self, topics: &[String]) {
        let topics: Vec<String> = topics.iter().map(|topic| shown(topic.as_bytes())).collect();
        self.change(|inner| {
            inner.strangers.retain(|stranger| stranger.topic.as_ref().is_none_or(|topic| !topics.contains(topic)));
        });
    }
}

impl Stranger {
    fn is_present(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) < COMPLAINED_OF
    }
}

fn complaint_of(strangers: &[Stranger]) -> Option<String> {
    let messages = match strangers.iter().map(|stranger| stranger.messages).sum::<u64>() {
        0 => return None,
        1 => "1 event message names".to_owned(),
        count => format!("{count} event messages name"),
    };
    let topics: Vec<String> =
        strangers.iter().filter_map(|stranger| Some(format!("`{}`", stranger.topic.as_ref()?))).collect();
    let topics = if topics.is_empty() { String::new() } else { format!(": topic {}", topics.join(", ")) };
    Some(format!("{messages} no worker{topics}"))
}

impl Place {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let BoardLine { board, at } = &*self.line;
        board.change(|inner| change(inner.places.get_mut(at).expect("a line stays while somebody holds its place")))
    }

    /// It may come when it likes: until it has been here, nobody misses it.
    pub(super) fn excuse(&self) {
        self.change(|state| state.down = None);
        self.course.excused(Instant::now());
    }

    /// It is connected.
    pub(super) fn up(&self) {
        self.course.up(Instant::now());
        let endpoint = self.change(|state| {
            state.down = None;
            state.endpoint.clone()
        });
        tracing::info!(worker = self.name(), endpoint, "events connected");
    }

    /// It is not, for this reason. The same reason again is not logged again.
    pub(super) fn down(&self, why: &LinkError) {
        self.lower(why.to_string());
    }

    /// See [`Place::down`].
    pub(super) fn lower(&self, why: String) {
        if self.is_news(&why) {
            tracing::warn!(worker = self.name(), why, "events not connected; trying again");
        }
    }

    /// It is not, for this reason, and it is not for us to connect again.
    pub(super) fn left(&self, why: &LinkError) {
        let why = why.to_string();
        if self.is_news(&why) {
            tracing::warn!(worker = self.name(), why, "events not connected; waiting for the engine to come again");
        }
    }

    /// Notes why it is not connected; returns whether that is another reason than before.
    fn is_news(&self, why: &str) -> bool {
        self.course.down(Instant::now(), why);
        self.change(|state| {
            let known = state.down.as_deref() == Some(why);
            state.down = Some(why.to_owned());
            !known
        })
    }

    /// How the last replay went.
    pub(super) fn replayed(&self, result: Result<u64, &LinkError>) {
        let why = result.as_ref().err().map(ToString::to_string);
        if let Some(why) = &why {
            self.course.trouble(Instant::now(), &format!("replay failed: {why}"));
        }
        let known = self.change(|state| std::mem::replace(&mut state.replay, why.clone()) == why);
        match (result, why) {
            (Ok(batches), _) => tracing::info!(worker = self.name(), batches, "events replayed"),
            (_, Some(why)) if !known => tracing::warn!(worker = self.name(), why, "replay failed"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Arc<Course> {
        Arc::new(Course::new(Instant::now()))
    }

    #[test]
    fn trouble_is_told_by_name_and_number() {
        let board = Board::default();
        assert_eq!(board.trouble(), None);
        let at = "tcp://h:1".parse().unwrap();
        let places: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|name| board.enter(name, &at, course())).collect();
        places[1].down(&LinkError::Closed);
        places[2].up();
        let told = "a at tcp://h:1: not connected yet; b at tcp://h:1: the peer closed the connection; \
            d at tcp://h:1: not connected yet; and 1 more";
        assert_eq!(board.trouble().as_deref(), Some(told));
        let complaints = board.complaints(Instant::now());
        let second = "events of b are not connected (tcp://h:1: the peer closed the connection): routed to by load and by \
            what was known before";
        assert_eq!((complaints[1].as_str(), complaints.len()), (second, 4));
        assert_eq!(complaints[3], "events of 1 more are not connected: routed to by load and by what was known before");
        assert!(!board.is_cut_off(), "one is connected");
        places[2].down(&LinkError::Closed);
        assert!(board.is_cut_off());
        drop(places);
        assert_eq!((board.trouble(), board.complaints(Instant::now()), board.is_cut_off()), (None, Vec::new(), false));
    }

    #[test]
    fn complaints_are_bounded_and_withdrawn() {
        let board = Board::default();
        let place = board.enter("a", &"tcp://h:1".parse().unwrap(), course());
        place.up();
        assert_eq!(board.trouble(), None);
        place.replayed(Err(&LinkError::Closed));
        assert_eq!(
            board.complaints(Instant::now()),
            ["events of a cannot be replayed (the peer closed the connection)"]
        );
        place.replayed(Ok(3));
        assert_eq!(board.complaints(Instant::now()), Vec::<String>::new());
        for number in 0..100 {
            board.note_unmatched(format!("t{}", number % 20).as_bytes(), Instant::now());
        }
        assert_eq!(
            board.complaints(Instant::now()),
            ["100 event messages name no worker: topic `t0`, `t1`, `t2`, `t3`, `t4`, `t5`, `t6`, `t7`"]
        );
    }

    #[test]
    fn a_topic_that_names_nobody_is_complained_of_while_it_is_heard() {
        let (board, begun) = (Board::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(board.note_unmatched(b"kv@w@m", begun));
        assert_eq!(board.complaints(begun), ["1 event message names no worker: topic `kv@w@m`"]);
        assert!(!board.note_unmatched(b"kv@w@m", at(30)) && board.note_unmatched(b"kv@other@m", at(50)));
        let both = "3 event messages name no worker: topic `kv@w@m`, `kv@other@m`";
        assert_eq!(board.complaints(at(89)), [both]);
        assert_eq!(board.complaints(at(90)), ["1 event message names no worker: topic `kv@other@m`"]);
        assert_eq!((board.complaints(at(110)), board.unmatched()), (Vec::new(), 3));
        // It comes again, and then its worker joins.
        assert!(board.note_unmatched(b"kv@w@m", at(200)));
        board.recognise(&["kv@w@m".to_owned()]);
        assert_eq!((board.complaints(at(200)), board.unmatched()), (Vec::new(), 4));
        // Those that found no room among the named ones stay when these go.
        for number in 0..=TOPICS_MAX {
            board.note_unmatched(format!("t{number}").as_bytes(), at(300 + u64::try_from(number).unwrap()));
        }
        assert_eq!(board.complaints(at(367)), ["1 event message names no worker"]);
    }
}
