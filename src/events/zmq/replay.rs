//! What was missed, asked of an engine's ROUTER socket. Engines before vLLM 0.26 answer `["", number, payload]`, later
//! ones and SGLang `["", topic, number, payload]`, until a number of all ones.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::board::Place;
use super::{END, numbered};
use crate::config::ZmqEndpoint;
use crate::events::source::{Ask, AskId, Heard, Line, Message, ReplayEnd, Room};
use crate::events::zmtp::{Kind, Link, LinkError, Traffic};

/// Bounds on a replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySettings {
    /// On making the connection.
    pub connect_timeout: Duration,
    /// On the wait for each next batch. vLLM looks for requests every 100 ms, or between two batches.
    pub idle_timeout: Duration,
    /// On all of it.
    pub timeout: Duration,
}

type Running = Pin<Box<dyn Future<Output = Result<u64, LinkError>> + Send>>;

/// Answers what is asked for, one thing at a time. Each ask is told to have ended once.
pub(super) struct Replays {
    line: Line,
    endpoint: Option<ZmqEndpoint>,
    settings: ReplaySettings,
    place: Place,
    /// Whether it is of use to ask.
    pub(super) connected: bool,
    running: Option<(AskId, Running)>,
    owed: Vec<Heard>,
}

impl Replays {
    pub(super) fn new(line: Line, endpoint: Option<ZmqEndpoint>, settings: ReplaySettings, place: Place) -> Self {
        Self { line, endpoint, settings, place, connected: false, running: None, owed: Vec::new() }
    }

    /// Ends what is running: its answers would have a hole, since the engine may be another one now.
    pub(super) fn disconnect(&mut self) {
        self.connected = false;
        self.end(ReplayEnd::CutShort);
    }

    fn end(&mut self, end: ReplayEnd) {
        if let Some((id, _)) = self.running.take() {
            self.owed.push(Heard::ReplayEnded(id, end));
        }
    }

    /// Works on what is asked for, and ends when nobody listens any more. May be dropped and called again.
    pub(super) async fn work(&mut self) {
        loop {
            while let Some(heard) = self.owed.first() {
                let Ok(room) = self.line.tell.reserve().await else { return };
                room.send(heard.clone());
                self.owed.remove(0);
            }
            let running = async {
                match &mut self.running {
                    Some((_, running)) => running.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = running => {
                    self.place.replayed(result.as_ref().copied());
                    self.end(if result.is_ok() { ReplayEnd::Whole } else { ReplayEnd::CutShort });
                }
                ask = self.line.asked.recv() => match ask {
                    Some(ask) => self.begin(ask),
                    None => return self.line.tell.closed().await,
                },
                () = self.line.tell.closed() => return,
            }
        }
    }

    fn begin(&mut self, ask: Ask) {
        match (ask, &self.endpoint) {
            (Ask::Snapshot { id }, _) => self.owed.push(Heard::SnapshotEnded(id)),
            (Ask::Replay { id, from }, Some(endpoint)) if self.connected => {
                let to = (self.line.tell.clone(), self.line.room.clone());
                let replay = replay(endpoint.clone(), (id, from), self.settings, to);
                self.end(ReplayEnd::CutShort);
                self.running = Some((id, Box::pin(replay)));
            }
            (Ask::Replay { id, .. }, _) => {
                self.end(ReplayEnd::CutShort);
                self.owed.push(Heard::ReplayEnded(id, ReplayEnd::CutShort));
            }
        }
    }
}

/// Hands on all batches from `from` on that the engine still has; returns how many.
async fn replay(
    endpoint: ZmqEndpoint,
    (id, from): (AskId, u64),
    settings: ReplaySettings,
    (tell, room): (mpsc::Sender<Heard>, Room),
) -> Result<u64, LinkError> {
    let replaying = async {
        let mut link = Link::connect(&endpoint, Kind::Dealer, settings.connect_timeout).await?;
        link.writer.send(&[b"", &from.to_be_bytes()]).await?;
        let mut batches = 0;
        loop {
            let next = tokio::time::timeout(settings.idle_timeout, link.reader.next()).await;
            let frames = match next.map_err(|_| LinkError::Silent(settings.idle_timeout))?? {
                Traffic::Message(frames) => frames,
                Traffic::Command(command) => {
                    link.writer.answer(&command).await?;
                    continue;
                }
            };
            let Some(message) = answer(frames) else {
                return Err(LinkError::Stranger("no replay socket of an engine: its answers differ".to_owned()));
            };
            if message.seq == Some(END) || tell.send(Heard::Replayed(id, room.take(message).await)).await.is_err() {
                return Ok(batches);
            }
            batches += 1;
        }
    };
    tokio::time::timeout(settings.timeout, replaying).await.map_err(|_| LinkError::Silent(settings.timeout))?
}

/// Number and payload of an answer: the last two of two or three frames after the delimiter.
fn answer(mut frames: Vec<Bytes>) -> Option<Message> {
    if !(3..=4).contains(&frames.len()) || !frames[0].is_empty() {
        return None;
    }
    let payload = frames.pop()?;
    numbered(&frames.pop()?, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_told_apart_by_their_count() {
        let read = |frames: &[&'static [u8]]| {
            let message = answer(frames.iter().map(|frame| Bytes::from_static(frame)).collect())?;
            Some((message.seq?, message.payload))
        };
        let seq = &[0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(read(&[b"", seq, b"p"]), Some((7, Bytes::from_static(b"p"))));
        assert_eq!(read(&[b"", b"kv@a@m", seq, b"p"]), Some((7, Bytes::from_static(b"p"))));
        assert_eq!(read(&[b"", &[0xff; 8], b""]), Some((END, Bytes::new())));
        assert_eq!(read(&[b"", b"", &[0xff; 8], b""]), Some((END, Bytes::new())));
        for wrong in [&[&b""[..], seq][..], &[b"x", seq, b"p"], &[b"", b"7", b"p"], &[b"", b"", b"", seq, b"p"]] {
            assert_eq!(read(wrong), None);
        }
    }
}
