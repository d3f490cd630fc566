//! What a task hears of one (worker, rank), and what it can ask for: the same for every bus.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
pub use warmpath_indexer::repair::{Abilities, Ask, AskId, ReplayEnd};

use super::course::Course;

/// One batch as it came off a bus.
#[derive(Clone, Debug)]
pub struct Message {
    /// What the engine sent, unchanged.
    pub payload: Bytes,
    /// The batch's number, where the bus tells it.
    pub seq: Option<u64>,
    /// Which life of the engine's process it is from, where the bus tells it.
    pub epoch: Option<u64>,
}

impl Message {
    /// Whether the bus tells where it stands, restarts or not.
    pub fn is_numbered(&self) -> bool {
        self.seq.is_some() && self.epoch.is_some()
    }
}

/// Something that a source tells.
#[derive(Clone, Debug)]
pub enum Heard {
    /// The path was made, or made again: what was sent in the meantime may be missing.
    Connected,
    /// Whether the bus as it is now keeps what was sent, so that it can be asked for. Until this is told, it is as the
    /// source's abilities say.
    History(bool),
    /// So many batches found no room, of those that came before this is told.
    Dropped(u64),
    /// A batch, as the engine sends it.
    Live(Message),
    /// A batch that was asked for by this question.
    Replayed(AskId, Message),
    /// Nothing more comes of this replay.
    ReplayEnded(AskId, ReplayEnd),
    /// A part of the snapshot that was asked for by this question.
    SnapshotChunk(AskId, Bytes),
    /// Nothing more comes of it.
    SnapshotEnded(AskId),
}

/// Where the batches of one (worker, rank) come from.
#[derive(Debug)]
pub struct Source {
    /// What it tells; closed when it is gone for good.
    pub heard: mpsc::Receiver<Heard>,
    /// Takes what it is asked for.
    pub asks: mpsc::Sender<Ask>,
    /// What it can do.
    pub abilities: Abilities,
    /// How it goes, as both ends tell it.
    pub course: Arc<Course>,
}

/// Requests that wait for a source; more than one or two are a fault of the asker.
const ASKS: usize = 8;

/// Both ends of a source: the task has the first, the bus has the second.
pub fn source(abilities: Abilities, heard_max: usize) -> (Source, Line) {
    let (tell, heard) = mpsc::channel(heard_max);
    let (asks, asked) = mpsc::channel(ASKS);
    let course = Arc::new(Course::new(Instant::now()));
    let asked = Asked(Arc::new(Mutex::new(asked)));
    let line = Line { tell, room: Room::default(), asked, course: Arc::clone(&course) };
    (Source { heard, asks, abilities, course }, line)
}

/// The bus's end of a [`Source`]. Clones are the same end: whoever takes over from a task that panicked has one.
#[derive(Clone, Debug)]
pub struct Line {
    /// Takes what is told.
    pub tell: mpsc::Sender<Heard>,
    /// What batches take that were told and not read yet.
    pub room: Room,
    /// What is asked for.
    pub asked: Asked,
    /// How it goes.
    pub course: Arc<Course>,
}

/// Bytes of batches that wait for their task, however few they are: as many as are held back in a reordering, and twice what
/// the largest batch has beside.
const ROOM_BYTES: usize = 80 << 20;

/// Room for the batches that wait.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM_BYTES)))
    }
}

/// The bytes of a batch, and the room that they take as long as any of them are kept.
struct Placed {
    payload: Bytes,
    _taken: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// One that is larger than all has to come alone.
fn room_of(payload: &Bytes) -> u32 {
    u32::try_from(payload.len().min(ROOM_BYTES)).unwrap_or(u32::MAX)
}

impl Room {
    /// Waits for room for a batch, which gives it back with its last byte. Cancelling it gives up the batch.
    pub async fn take(&self, message: Message) -> Message {
        let Message { payload, seq, epoch } = message;
        let bytes = room_of(&payload);
        // It is never closed.
        let taken = Arc::clone(&self.0).acquire_many_owned(bytes).await.ok();
        Message { payload: Bytes::from_owner(Placed { payload, _taken: taken }), seq, epoch }
    }

    /// The same where there is room now.
    pub fn try_take(&self, message: Message) -> Option<Message> {
        let Message { payload, seq, epoch } = message;
        let taken = Some(Arc::clone(&self.0).try_acquire_many_owned(room_of(&payload)).ok()?);
        Some(Message { payload: Bytes::from_owner(Placed { payload, _taken: taken }), seq, epoch })
    }
}

/// What a [`Source`] is asked for.
#[derive(Clone, Debug)]
pub struct Asked(Arc<Mutex<mpsc::Receiver<Ask>>>);

impl Asked {
    /// The next one; none once nobody asks any more. Cancelling it loses nothing.
    pub async fn recv(&self) -> Option<Ask> {
        self.0.lock().await.recv().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn batch(bytes: usize) -> Message {
        Message { payload: vec![7; bytes].into(), seq: Some(1), epoch: None }
    }

    #[test]
    fn batches_wait_for_room_until_others_were_read() {
        let room = Room::default();
        let take = |bytes| room.take(batch(bytes)).now_or_never();
        let (first, second) = (take(ROOM_BYTES / 2).unwrap(), take(ROOM_BYTES / 2).unwrap());
        assert_eq!((first.payload.len(), first.seq), (ROOM_BYTES / 2, Some(1)));
        assert!(take(0).is_some() && take(1).is_none());
        let kept = first.payload.slice(..1);
        drop(first);
        assert!(take(1).is_none(), "a byte is kept");
        drop((kept, second));
        // One that is larger than all has to come alone.
        let all = take(ROOM_BYTES + 1).unwrap();
        assert!(take(1).is_none());
        drop(all);
        assert!(take(1).is_some());
    }
}
