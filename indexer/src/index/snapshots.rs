//! One worker's blocks out of the index, and in again.

use super::Writer;
use crate::feed::{Began, Position};
use crate::snapshot::{Head, Mark, SnapshotDecoder, SnapshotEncoder, SnapshotError, SnapshotFault, Told};
use crate::store::BlockStore;
use crate::view::{Picture, Restoring};

/// A view at one moment, as chunks. Takes no lock and does not know the index any more.
pub struct Snapshot {
    picture: Picture,
    encoder: Option<SnapshotEncoder>,
}

impl Snapshot {
    /// How many names the view had.
    pub fn names(&self) -> usize {
        self.picture.names()
    }

    /// How many names had no place in the snapshot, since nobody knows what comes before their blocks; no look-up finds
    /// them either. Known after the last chunk.
    pub fn left_out(&self) -> Option<usize> {
        self.encoder.is_none().then(|| self.picture.names() - self.picture.told())
    }
}

impl Iterator for Snapshot {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let encoder = self.encoder.as_mut()?;
        while let Some(record) = self.picture.next() {
            if let Some(chunk) = encoder.push(&record) {
                return Some(chunk);
            }
        }
        let left_out = u64::try_from(self.picture.names() - self.picture.told()).unwrap_or(u64::MAX);
        self.encoder.take().map(|encoder| encoder.finish(left_out))
    }
}

/// A view that is being filled from a snapshot. If it is dropped before it is finished, the view is emptied.
pub struct Restore<'a, S: BlockStore> {
    writer: &'a Writer<S>,
    decoder: SnapshotDecoder,
    restoring: Restoring,
    finished: bool,
}

/// What a view was filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restored {
    /// Where the worker's stream goes on.
    pub position: Position,
    /// Where the view began that the snapshot was taken of.
    pub began: Began,
    /// When the snapshot was taken, in milliseconds since 1970; 0 where nobody said.
    pub taken_ms: u64,
    /// Names that were put in.
    pub names: usize,
    /// Names for which the index had no room.
    pub over_limit: usize,
    /// Names that had no place in the snapshot.
    pub left_out: u64,
}

impl<S: BlockStore> Writer<S> {
    /// The worker's view as it is now, in chunks of about `chunk_bytes`. Events wait only while names are copied, 24 bytes
    /// for each; the rest is done as chunks are asked for.
    pub fn snapshot(&self, mark: Mark, chunk_bytes: usize) -> Snapshot {
        let mut picture = self.lane.view().picture(&self.index.keeper(self.lane.slot));
        picture.arrange();
        let names = u64::try_from(picture.names()).unwrap_or(u64::MAX);
        let head = Head { pool: picture.pool(), mark, names };
        let encoder = SnapshotEncoder::new(head, &picture.groups, chunk_bytes);
        Snapshot { picture, encoder: Some(encoder) }
    }

    /// Empties the view, to be filled from a snapshot of this owner. Until that is finished, no event may be applied.
    pub fn restore(&self, owner: u64) -> Restore<'_, S> {
        self.forget();
        let pool = self.lane.view().pool();
        let decoder = SnapshotDecoder::new(pool, owner);
        Restore { writer: self, decoder, restoring: Restoring::default(), finished: false }
    }
}

impl<S: BlockStore> Restore<'_, S> {
    /// Takes in the next chunk. The worker is credited with its blocks at once. O(bytes).
    ///
    /// # Errors
    /// The chunk is not the one that is due, or not what it was when it was written, or the slot has another writer by now.
    /// The view is empty then, and nothing more is taken in.
    pub fn chunk(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        let Self { writer: Writer { index, lane }, decoder, restoring, .. } = self;
        let keeper = index.keeper(lane.slot);
        let over_limit = restoring.over_limit;
        let mut locked = None;
        let read = decoder.read(chunk, |told| {
            if let Told::Head(head, _) = &told {
                // Once, while there is nothing here to let go: what comes first is what the rest hangs on.
                index.make_room_for(index.share().min(usize::try_from(head.names).unwrap_or(usize::MAX)));
            }
            let view = locked.get_or_insert_with(|| lane.view());
            match told {
                _ if lane.is_retired() => Err(SnapshotFault::Retired),
                Told::Head(_, groups) => {
                    view.begin_restoring(groups);
                    Ok(())
                }
                Told::Record(record) => view.restore(&keeper, &record, restoring),
            }
        });
        let mut view = locked.unwrap_or_else(|| lane.view());
        if read.is_err() {
            view.forget(&keeper);
        }
        lane.publish(&view);
        drop(view);
        index.refuse(restoring.over_limit - over_limit);
        read
    }

    /// What the whole is; none before the first chunk.
    pub fn head(&self) -> Option<&Head> {
        self.decoder.head()
    }

    /// That the last chunk was read: the view stays as it is, and events may be applied from the position on.
    ///
    /// # Errors
    /// It was not. The view is empty then.
    pub fn finish(mut self) -> Result<Restored, SnapshotError> {
        self.decoder.finish()?;
        self.finished = true;
        let head = self.decoder.head().expect("a snapshot that was read to its end has a head");
        let Restoring { restored, over_limit, .. } = self.restoring;
        if self.decoder.left_out() > 0 {
            self.writer.lane.view().note_partial();
        }
        Ok(Restored {
            position: head.mark.position,
            began: head.mark.began,
            taken_ms: head.mark.taken_ms,
            names: restored,
            over_limit,
            left_out: self.decoder.left_out(),
        })
    }
}

impl<S: BlockStore> Drop for Restore<'_, S> {
    fn drop(&mut self) {
        if !self.finished {
            self.writer.forget();
        }
    }
}
