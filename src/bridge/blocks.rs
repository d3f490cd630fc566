//! The blocks of each rank as the bridge knows them, and the snapshots that routers are reading.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::snapshot::NEWEST_VERSION;

use crate::events::nats::snapshots::{CHUNK_BYTES_MAX, SnapshotAnswer, SnapshotKeeper, SnapshotRequest};

/// Snapshots that are read at a time; one more ends the one that waits longest.
const OPEN_MAX: usize = 4;

/// How long a reader may take between two chunks.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The chunks of one snapshot, made as they are asked for.
pub type Chunks = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// Keeps the blocks of one rank and writes them down.
pub trait BlockSet: Send {
    /// Takes events in, in order.
    fn apply(&mut self, events: &[CacheEvent]);
    /// Empties the set, as after a restart or a loss.
    fn forget(&mut self);
    /// All blocks, in chunks of at most `chunk_bytes`, which say where the stream goes on and where the set began.
    fn chunks(&self, at: (Position, Began), chunk_bytes: usize) -> Chunks;
}

/// Every rank's blocks.
pub(super) struct Blocks {
    ranks: Vec<(u32, Mutex<Rank>)>,
    open: Mutex<Shelf>,
    served: AtomicU64,
}

struct Rank {
    set: Box<dyn BlockSet>,
    /// Where its stream goes on behind its blocks; without an epoch before there was any batch.
    position: Position,
    began: Began,
}

impl Rank {
    fn forget(&mut self, began: Began) {
        self.set.forget();
        self.began = began;
    }
}

#[derive(Default)]
struct Shelf {
    newest: u64,
    open: VecDeque<Open>,
}

/// A snapshot that somebody is reading.
struct Open {
    id: u64,
    rank: u32,
    /// The epoch, and the number of the batch that comes next.
    position: (u64, u64),
    chunks: Peekable<Chunks>,
    /// The last chunk that was handed out, for a reader who did not get it.
    last: Option<SnapshotAnswer>,
    used: Instant,
}

impl Blocks {
    /// Nothing known yet.
    pub(super) fn new(sets: impl IntoIterator<Item = (u32, Box<dyn BlockSet>)>) -> Self {
        let nothing = |set| Rank { set, position: Position::default(), began: Began::default() };
        let rank = |(rank, set)| (rank, Mutex::new(nothing(set)));
        Self { ranks: sets.into_iter().map(rank).collect(), open: Mutex::default(), served: AtomicU64::new(0) }
    }

    /// Takes a batch of a rank in; the stream goes on at `position`. Of one that cannot be read, which has no `events`, nobody
    /// knows what it removed: from then on nothing older is believed.
    pub(super) fn apply(&self, rank: u32, events: Option<&[CacheEvent]>, position: Position) {
        if let Some(mut rank) = self.rank(rank) {
            match events {
                Some(events) => rank.set.apply(events),
                None => rank.forget(Began::InTheMiddle),
            }
            rank.position = position;
        }
    }

    /// Snapshots that somebody began to read.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Nothing of a rank is known any more: what comes is all there is, or what follows a loss.
    pub(super) fn forget(&self, rank: u32, began: Began) {
        if let Some(mut rank) = self.rank(rank) {
            rank.forget(began);
        }
    }

    fn rank(&self, rank: u32) -> Option<MutexGuard<'_, Rank>> {
        let (_, kept) = self.ranks.iter().find(|(known, _)| *known == rank)?;
        Some(kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(
        &self,
        SnapshotRequest { rank, reads, .. }: SnapshotRequest,
        id: u64,
        now: Instant,
    ) -> Result<Open, String> {
        let kept = self.rank(rank).ok_or("no such rank")?;
        let position = (kept.position.epoch.ok_or("no events yet")?, kept.position.next);
        self.served.fetch_add(1, Ordering::Relaxed);
        // Who does not know that there is more to be known would refuse all of it, and ask for it again and again.
        let began = if reads >= NEWEST_VERSION { kept.began } else { Began::AtStart };
        let chunks = kept.set.chunks((kept.position, began), CHUNK_BYTES_MAX).peekable();
        Ok(Open { id, rank, position, chunks, last: None, used: now })
    }

    fn answer_at(&self, request: SnapshotRequest, now: Instant) -> Result<SnapshotAnswer, String> {
        let mut shelf = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.open.retain(|open| now.saturating_duration_since(open.used) < IDLE_MAX);
        let mut open = match request.id {
            Some(id) => {
                let at = shelf.open.iter().position(|open| open.id == id && open.rank == request.rank);
                at.and_then(|at| shelf.open.remove(at)).ok_or("the snapshot is gone")?
            }
            None => {
                shelf.newest += 1;
                self.begin(request, shelf.newest, now)?
            }
        };
        let answer = open.chunk(request.chunk);
        open.used = now;
        if shelf.open.len() >= OPEN_MAX {
            shelf.open.pop_front();
        }
        shelf.open.push_back(open);
        answer
    }
}

impl SnapshotKeeper for Blocks {
    fn answer(&self, request: SnapshotRequest) -> Result<SnapshotAnswer, String> {
        self.answer_at(request, Instant::now())
    }
}

impl Open {
    fn chunk(&mut self, number: u32) -> Result<SnapshotAnswer, String> {
        let due = self.last.as_ref().map_or(0, |last| last.chunk + 1);
        if let Some(last) = self.last.as_ref().filter(|last| last.chunk == number) {
            return Ok(last.clone());
        }
        if number != due {
            return Err("chunks are handed out in order".to_owned());
        }
        let bytes = self.chunks.next().ok_or("there are no more chunks")?;
        if bytes.len() > CHUNK_BYTES_MAX {
            return Err("a chunk is too large to be sent".to_owned());
        }
        let last = self.chunks.peek().is_none();
        let answer = SnapshotAnswer { id: self.id, chunk: number, last, position: self.position, bytes: bytes.into() };
        Ok(self.last.insert(answer).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes down how many events it was given, a chunk each, and with another whether any were lost before.
    #[derive(Default)]
    struct Counting(u8);

    const LOST: u8 = 99;

    impl BlockSet for Counting {
        fn apply(&mut self, events: &[CacheEvent]) {
            self.0 += u8::try_from(events.len()).unwrap();
        }

        fn forget(&mut self) {
            self.0 = 0;
        }

        fn chunks(&self, (_, began): (Position, Began), _: usize) -> Chunks {
            let lost = (began == Began::InTheMiddle).then_some(LOST);
            Box::new((0..=self.0).chain(lost).map(|number| vec![number]))
        }
    }

    fn blocks() -> Blocks {
        let set: Box<dyn BlockSet> = Box::<Counting>::default();
        Blocks::new([(3, set)])
    }

    /// Where the stream goes on: at this number.
    fn at(next: u64) -> Position {
        Position { epoch: Some(7), next, newest: Some(1.0) }
    }

    fn ask(id: Option<u64>, chunk: u32) -> SnapshotRequest {
        SnapshotRequest { rank: 3, id, chunk, reads: NEWEST_VERSION }
    }

    /// All that a new snapshot says.
    fn said(blocks: &Blocks, reads: u16) -> Vec<u8> {
        let begun = blocks.begin(SnapshotRequest { reads, ..ask(None, 0) }, 9, Instant::now()).unwrap();
        begun.chunks.flatten().collect()
    }

    #[test]
    fn a_snapshot_is_handed_out_chunk_by_chunk_and_stays_what_it_was() {
        let (blocks, now) = (blocks(), Instant::now());
        assert_eq!(blocks.answer_at(ask(None, 0), now), Err("no events yet".to_owned()));
        blocks.apply(3, Some(&[CacheEvent::Cleared]), at(5));
        let answer = |id, chunk| blocks.answer_at(ask(id, chunk), now);
        let expected = |chunk: u8, last| SnapshotAnswer {
            id: 2,
            chunk: chunk.into(),
            last,
            position: (7, 5),
            bytes: vec![chunk].into(),
        };
        assert_eq!(answer(None, 0), Ok(expected(0, false)));
        blocks.apply(3, Some(&[CacheEvent::Cleared]), at(6));
        // The first answer was lost.
        assert_eq!(answer(Some(2), 0), Ok(expected(0, false)));
        assert_eq!(answer(Some(2), 1), Ok(expected(1, true)));
        assert_eq!(answer(Some(2), 1), Ok(expected(1, true)));
        assert_eq!(answer(Some(2), 2), Err("there are no more chunks".to_owned()));
        assert_eq!(answer(Some(2), 9), Err("chunks are handed out in order".to_owned()));
        assert_eq!(answer(Some(9), 0), Err("the snapshot is gone".to_owned()));
    }

    #[test]
    fn nothing_older_than_a_batch_that_cannot_be_read_is_in_a_snapshot() {
        let (blocks, now) = (blocks(), Instant::now());
        blocks.apply(3, Some(&[CacheEvent::Cleared]), at(5));
        blocks.apply(3, None, at(6));
        let answer = blocks.answer_at(ask(None, 0), now).unwrap();
        assert_eq!((answer.chunk, answer.position), (0, (7, 6)));
        assert_eq!(said(&blocks, NEWEST_VERSION), [0, LOST]);
    }

    #[test]
    fn a_snapshot_says_that_something_was_lost_before_it_until_the_engine_begins_anew() {
        let blocks = blocks();
        blocks.apply(3, Some(&[]), at(5));
        assert_eq!(said(&blocks, NEWEST_VERSION), [0]);
        blocks.forget(3, Began::InTheMiddle);
        blocks.apply(3, Some(&[CacheEvent::Cleared]), at(9));
        assert_eq!(said(&blocks, NEWEST_VERSION), [0, 1, LOST]);
        assert_eq!(said(&blocks, 1), [0, 1], "an older router would not read it");
        blocks.forget(3, Began::AtStart);
        assert_eq!(said(&blocks, NEWEST_VERSION), [0]);
    }

    #[test]
    fn snapshots_that_nobody_reads_on_end() {
        let (blocks, now) = (blocks(), Instant::now());
        blocks.apply(3, Some(&[]), at(5));
        let first = blocks.answer_at(ask(None, 0), now).unwrap().id;
        for _ in 0..OPEN_MAX {
            blocks.answer_at(ask(None, 0), now).unwrap();
        }
        assert!(blocks.answer_at(ask(Some(first), 0), now).is_err());
        assert!(blocks.answer_at(ask(Some(first + 1), 0), now).is_ok());
        assert!(blocks.answer_at(ask(Some(first + 1), 0), now + IDLE_MAX).is_err());
    }
}
