//! How the connection to the server is, and what was lost on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::Event;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::events::Heard;

/// How often drops are told of at most: a burst has thousands, and each telling begins a repair.
const DROPS_APART: Duration = Duration::from_millis(100);

/// How the connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) up: bool,
    /// How often it was lost: what was received across a change of this may have holes.
    pub(super) losses: u64,
    /// How often the client had no room for a message of some subscription and dropped it. It tells of each burst at least
    /// once, and nobody else does.
    pub(super) drops: u64,
    /// Why it is down, as far as anybody said.
    pub(super) trouble: Option<String>,
    /// Why there is no way to the server, once that was found out.
    pub(super) cause: Option<String>,
    /// Since when it is up, or down: at first, since it was wanted.
    pub(super) since: Instant,
    /// What the client complained of last.
    pub(super) complaint: Option<String>,
    /// Subscriptions to the fleet's subjects that the server refused since it is up, and how often.
    pub(super) refused: BTreeMap<String, u64>,
    /// What the fleet's subjects begin with.
    ours: String,
}

/// What the client says where it found no way to the server; it keeps the cause to itself.
const UNREACHED: &str = "client error: nats: IO error";

/// How long the cause is looked for, once for each time that the way is lost: what the client tells meanwhile waits.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// Why there is no way to the server at this host and port, where that is what `event` tells.
pub(super) async fn cause(event: &Event, at: (&str, u16)) -> Option<String> {
    if event.to_string() != UNREACHED {
        return None;
    }
    Some(match timeout(CAUSE_WITHIN, TcpStream::connect(at)).await {
        Ok(Ok(_)) => "something listens there and ends the connection: its log says why; with TLS, see the authorities and our certificate".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "nothing answers there".to_owned(),
    })
}

/// What the server calls it when we may not subscribe to something, which follows in quotes.
const REFUSED: &str = "Permissions Violation for Subscription to \"";

/// The subject of the subscription that the server refuses by these words.
fn refused_subject(said: &str) -> Option<&str> {
    let (_, subject) = said.split_once(REFUSED)?;
    subject.split('"').next()
}

impl Link {
    /// Not connected yet; the fleet's subjects begin with `prefix`.
    pub(super) fn new(now: Instant, prefix: &str) -> Self {
        Self {
            up: false,
            losses: 0,
            drops: 0,
            trouble: None,
            cause: None,
            since: now,
            complaint: None,
            refused: BTreeMap::new(),
            ours: format!("{prefix}."),
        }
    }

    /// How often the server refused a subscription since the connection is up.
    pub(super) fn refusals(&self, subject: &str) -> u64 {
        self.refused.get(subject).copied().unwrap_or(0)
    }

    /// Takes note of what the client tells, and of its cause where that was looked for.
    pub(super) fn note(&mut self, event: Event, cause: Option<String>) {
        self.cause = cause.or(self.cause.take());
        match event {
            Event::Connected => {
                tracing::info!("event bus connected");
                (self.up, self.trouble, self.cause, self.complaint) = (true, None, None, None);
                self.refused.clear();
                self.since = Instant::now();
            }
            Event::Disconnected => {
                tracing::warn!("event bus lost; connecting again");
                self.lose();
            }
            // We have hung up ourselves, and do not come back.
            Event::Closed => {
                tracing::info!("event bus closed");
                self.lose();
            }
            Event::SlowConsumer(_) => {
                if self.drops == 0 {
                    tracing::warn!("events arrive faster than they are taken; some were dropped");
                }
                self.drops += 1;
            }
            other => {
                let trouble = match other.to_string() {
                    said if said == UNREACHED => {
                        self.cause.clone().unwrap_or_else(|| "it cannot be reached".to_owned())
                    }
                    said => said,
                };
                let again = self.note_refusal(&trouble);
                // The same fault comes with every attempt; it is told once.
                if !again && self.complaint.as_ref() != Some(&trouble) {
                    tracing::warn!(event = trouble, "event bus");
                }
                self.trouble = Some(trouble.clone()).filter(|_| !self.up);
                self.complaint = Some(trouble);
            }
        }
    }

    /// Takes note of what the server refuses, if that is what it says; returns whether it has said so before.
    fn note_refusal(&mut self, said: &str) -> bool {
        let Some(subject) = refused_subject(said).filter(|subject| subject.starts_with(&self.ours)) else {
            return false;
        };
        let refused = self.refused.entry(subject.to_owned()).or_insert(0);
        *refused += 1;
        *refused > 1
    }

    fn lose(&mut self) {
        if std::mem::replace(&mut self.up, false) {
            self.since = Instant::now();
        }
        self.losses += 1;
    }
}

/// Tells of messages that found no room, in the client or behind it, seldom.
pub(super) struct Drops {
    link: watch::Receiver<Link>,
    told: u64,
    next: Instant,
    /// Those that found none behind the client and were not told of.
    own: u64,
}

impl Drops {
    /// Of those from now on.
    pub(super) fn new(link: &watch::Receiver<Link>) -> Self {
        let link = link.clone();
        let told = link.borrow().drops;
        Self { link, told, next: Instant::now(), own: 0 }
    }

    /// One more found no room behind the client.
    pub(super) fn add(&mut self) {
        self.own += 1;
    }

    /// Waits for drops that were not told of; returns what is to be told. Cancelling it loses none.
    pub(super) async fn more(&mut self) -> Heard {
        if Instant::now() < self.next {
            sleep_until(self.next).await;
        }
        let told = self.told;
        if self.own == 0 {
            match self.link.wait_for(|link| link.drops != told).await.map(|link| link.drops) {
                Ok(drops) => self.told = drops,
                Err(_) => std::future::pending().await,
            }
        }
        self.next = Instant::now() + DROPS_APART;
        match std::mem::take(&mut self.own) {
            // The client does not tell how many.
            0 => Heard::Connected,
            own => Heard::Dropped(own),
        }
    }
}

/// A subscription that is wanted and not made yet, counted.
pub(super) struct Missing(Arc<AtomicUsize>);

impl Missing {
    /// One more, until this is dropped.
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use async_nats::{ClientError, ServerError};

    use super::*;

    #[test]
    fn what_the_server_refuses_is_known_by_its_subject_until_the_connection_is_another() {
        let mut link = Link::new(Instant::now(), "warmpath");
        link.note(Event::Connected, None);
        for subject in ["warmpath.kv.m.w.0", "_INBOX.x.*", "warmpath.kv.m.w.0", "warmpath2.kv"] {
            let said = format!("Permissions Violation for Subscription to \"{subject}\" using queue \"q\"");
            link.note(Event::ServerError(ServerError::Other(said)), None);
        }
        assert_eq!((link.refused.len(), link.refusals("warmpath.kv.m.w.0"), link.refusals("_INBOX.x.*")), (1, 2, 0));
        link.note(Event::Connected, None);
        assert_eq!(link.refusals("warmpath.kv.m.w.0"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_was_is_down_since_it_was_wanted_and_says_why() {
        let begun = Instant::now();
        let mut link = Link::new(begun, "warmpath");
        tokio::time::advance(Duration::from_secs(5)).await;
        let unreached = || Event::ClientError(ClientError::Other("IO error".to_owned()));
        link.note(unreached(), Some("refused".to_owned()));
        link.note(unreached(), None);
        assert_eq!((link.up, link.since, link.trouble.as_deref()), (false, begun, Some("refused")));
        link.note(Event::Connected, None);
        assert_eq!((link.up, link.since - begun, &link.trouble), (true, Duration::from_secs(5), &None));
        tokio::time::advance(Duration::from_secs(1)).await;
        link.note(Event::Closed, None);
        assert_eq!((link.up, link.losses, link.since - begun), (false, 1, Duration::from_secs(6)));
    }
}
