//! Chunks -> blocks.

use warmpath_core::ids::{EngineHash, SequenceHash};
use warmpath_core::units::Tier;

use super::{
    BRIDGES_MAX, CHECKSUM_BYTES, CHUNK_MAX, COPIES_MAX, COUNTED, CopyCount, FOLLOWS_NAME, FOLLOWS_ROOT, Groups,
    HAS_BRIDGES, HAS_EPOCH, HAS_GROUP, HAS_NEWEST, HEADER_BYTES, Head, IN_THE_MIDDLE, LAST, MAGIC, Mark, Parent,
    Record, SnapshotError, SnapshotFault, TIERS, TOTALS_BYTES, Told, VERSION, VERSION_MIDDLE, ZERO_IS_A_NAME, checksum,
};
use crate::feed::{Began, Position};
use crate::store::Tiers;

/// Reads one snapshot, chunk by chunk. After a fault it reads nothing more.
pub struct SnapshotDecoder {
    pool: SequenceHash,
    owner: u64,
    /// The number of the chunk that is due.
    due: u32,
    checksum: u64,
    first: Option<(Head, Groups)>,
    records: u64,
    left_out: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Complete,
    Faulty,
}

/// What one chunk says of itself.
struct Header {
    flags: u16,
    number: u32,
    head: Head,
    records: u32,
    body: usize,
}

/// Where in a chunk it is read, and how far that may go.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

type Found<T> = Result<T, (usize, SnapshotFault)>;

/// Bytes of the chunk that begins with this header, checksum and all, so that a reader of files knows how much to read.
///
/// # Errors
/// It begins no chunk, or one that is too long.
pub fn chunk_len(header: &[u8; HEADER_BYTES]) -> Result<usize, SnapshotFault> {
    let header = Header::read(header).map_err(|(_, fault)| fault)?;
    Ok(HEADER_BYTES + header.body + CHECKSUM_BYTES)
}

impl SnapshotDecoder {
    /// A reader of the snapshot of this pool and owner.
    pub fn new(pool: SequenceHash, owner: u64) -> Self {
        let state = State::Reading;
        Self { pool, owner, due: 0, checksum: 0, first: None, records: 0, left_out: 0, state }
    }

    /// Reads the next chunk and hands what it tells to `take`, which may find a fault of its own. Nothing is handed out
    /// before the chunk's checksum was found right; a fault among records leaves those before it handed out. O(bytes).
    ///
    /// # Errors
    /// The first fault, with its place.
    pub fn read(
        &mut self,
        chunk: &[u8],
        take: impl FnMut(Told<'_>) -> Result<(), SnapshotFault>,
    ) -> Result<(), SnapshotError> {
        let read = self.try_read(chunk, take);
        if read.is_err() {
            self.state = State::Faulty;
        }
        read.map_err(|(at, fault)| SnapshotError { chunk: self.due, at, fault })
    }

    /// What the whole is; none before the first chunk.
    pub fn head(&self) -> Option<&Head> {
        self.first.as_ref().map(|(head, _)| head)
    }

    /// Names that were left out by who wrote it; known after the last chunk.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the last chunk was read.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// That there is nothing more to come.
    ///
    /// # Errors
    /// The last chunk has not been read.
    pub fn finish(&self) -> Result<(), SnapshotError> {
        let missing = SnapshotError { chunk: self.due, at: 0, fault: SnapshotFault::Incomplete };
        if self.is_complete() { Ok(()) } else { Err(missing) }
    }

    fn try_read(&mut self, chunk: &[u8], mut take: impl FnMut(Told<'_>) -> Result<(), SnapshotFault>) -> Found<()> {
        if self.state != State::Reading {
            return Err((0, SnapshotFault::Over));
        }
        let header = self.check(chunk)?;
        let last = header.flags & LAST != 0;
        let totals = if last { TOTALS_BYTES } else { 0 };
        let end = HEADER_BYTES + header.body;
        let records_end =
            end.checked_sub(totals).filter(|&end| end >= HEADER_BYTES).ok_or((76, malformed("the body")))?;
        let mut cursor = Cursor { bytes: chunk, at: HEADER_BYTES, end: records_end };
        if self.first.is_none() {
            let groups = cursor.groups()?;
            take(Told::Head(&header.head, &groups)).map_err(|fault| (HEADER_BYTES, fault))?;
            self.first = Some((header.head, groups));
        }
        self.read_records(&mut cursor, header.records, &mut take)?;
        if last {
            cursor.end = end;
            let (at, total) = (cursor.at, cursor.u64("the totals")?);
            self.left_out = cursor.u64("the totals")?;
            if total != self.records {
                return Err((at, SnapshotFault::Count { what: "records", expected: total, got: self.records }));
            }
            self.state = State::Complete;
        }
        self.due = self.due.saturating_add(1);
        Ok(())
    }

    /// The header, once all that can be known before the records is right.
    fn check(&mut self, chunk: &[u8]) -> Found<Header> {
        let header = Header::read(chunk)?;
        let expected = HEADER_BYTES + header.body + CHECKSUM_BYTES;
        if chunk.len() != expected {
            return Err((chunk.len().min(expected), SnapshotFault::Length { expected, got: chunk.len() }));
        }
        if header.number != self.due {
            return Err((12, SnapshotFault::Order { expected: self.due, got: header.number }));
        }
        if header.head.pool != self.pool {
            return Err((16, SnapshotFault::OtherPool));
        }
        if header.head.mark.owner != self.owner {
            return Err((24, SnapshotFault::OtherOwner));
        }
        if self.head().is_some_and(|head| *head != header.head) {
            return Err((32, SnapshotFault::OtherSnapshot));
        }
        let (covered, told) = chunk.split_at(chunk.len() - CHECKSUM_BYTES);
        let sum = checksum(covered, self.checksum);
        if told != sum.to_le_bytes() {
            return Err((covered.len(), SnapshotFault::Checksum));
        }
        self.checksum = sum;
        Ok(header)
    }

    fn read_records(
        &mut self,
        cursor: &mut Cursor<'_>,
        records: u32,
        take: &mut impl FnMut(Told<'_>) -> Result<(), SnapshotFault>,
    ) -> Found<()> {
        let (mut bridges, mut copies) = (Vec::new(), Vec::new());
        let mut before = None;
        let plain = self.first.as_ref().is_some_and(|(_, groups)| groups.plain.is_some());
        for _ in 0..records {
            let at = cursor.at;
            let record = cursor.record(before, &mut bridges, &mut copies)?;
            if record.copies.is_empty() && !plain {
                return Err((at, malformed("copies of no group")));
            }
            before = Some(record.name);
            take(Told::Record(record)).map_err(|fault| (at, fault))?;
        }
        self.records += u64::from(records);
        let names = self.head().map_or(0, |head| head.names);
        if self.records > names {
            return Err((72, SnapshotFault::Count { what: "names", expected: names, got: self.records }));
        }
        if cursor.at == cursor.end { Ok(()) } else { Err((cursor.at, malformed("what follows the records"))) }
    }
}

fn malformed(what: &'static str) -> SnapshotFault {
    SnapshotFault::Malformed(what)
}

impl Header {
    fn read(chunk: &[u8]) -> Found<Self> {
        let end = chunk.len().min(HEADER_BYTES);
        if chunk.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err((0, SnapshotFault::NotASnapshot));
        }
        let mut cursor = Cursor { bytes: chunk, at: MAGIC.len(), end };
        let version = cursor.u16("the header")?;
        let began = match version {
            VERSION => Began::AtStart,
            VERSION_MIDDLE => Began::InTheMiddle,
            _ => return Err((8, SnapshotFault::Version(version))),
        };
        let flags = cursor.u16("the header")?;
        let middle = if began == Began::InTheMiddle { IN_THE_MIDDLE } else { 0 };
        if flags & !(LAST | HAS_EPOCH | HAS_NEWEST) != middle {
            return Err((10, malformed("the flags")));
        }
        let number = cursor.u32("the header")?;
        let mut next = || cursor.u64("the header");
        let (pool, owner) = (SequenceHash(next()?), next()?);
        let (epoch, seq, newest, taken_ms, names) = (next()?, next()?, next()?, next()?, next()?);
        let (records, body) = (cursor.u32("the header")?, cursor.u32("the header")?);
        let body = usize::try_from(body).unwrap_or(usize::MAX);
        if body > CHUNK_MAX - HEADER_BYTES - CHECKSUM_BYTES {
            return Err((76, SnapshotFault::TooLong(body.saturating_add(HEADER_BYTES + CHECKSUM_BYTES))));
        }
        let newest = (flags & HAS_NEWEST != 0).then_some(f64::from_bits(newest));
        if newest.is_some_and(|newest| !newest.is_finite()) {
            return Err((48, malformed("the newest time")));
        }
        let position = Position { epoch: (flags & HAS_EPOCH != 0).then_some(epoch), next: seq, newest };
        let head = Head { pool, mark: Mark { owner, position, began, taken_ms }, names };
        Ok(Self { flags, number, head, records, body })
    }
}

impl Cursor<'_> {
    fn bytes<const N: usize>(&mut self, what: &'static str) -> Found<[u8; N]> {
        let to = self.at.checked_add(N).filter(|&to| to <= self.end).ok_or((self.at, malformed(what)))?;
        let bytes = self.bytes.get(self.at..to).and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or((self.at, malformed(what)))?;
        self.at = to;
        Ok(bytes)
    }

    fn u8(&mut self, what: &'static str) -> Found<u8> {
        self.bytes::<1>(what).map(|[byte]| byte)
    }

    fn u16(&mut self, what: &'static str) -> Found<u16> {
        self.bytes(what).map(u16::from_le_bytes)
    }

    fn u32(&mut self, what: &'static str) -> Found<u32> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Found<u64> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// A number of things, from 1 to `most`.
    fn count(&mut self, most: usize, what: &'static str) -> Found<usize> {
        let at = self.at;
        let count = usize::from(self.u16(what)?);
        if (1..=most).contains(&count) { Ok(count) } else { Err((at, malformed(what))) }
    }

    fn groups(&mut self) -> Found<Groups> {
        let at = self.at;
        let flags = self.u8("the groups")?;
        let plain = self.u32("the groups")?;
        if flags & !(HAS_GROUP | ZERO_IS_A_NAME) != 0 {
            return Err((at, malformed("the groups")));
        }
        let told = (0..self.u8("the groups")?).map(|_| match (self.u32("a group")?, self.u8("a group")?) {
            (group, prefix @ 0..=1) => Ok((group, prefix == 1)),
            _ => Err((self.at - 1, malformed("a group"))),
        });
        let told = told.collect::<Found<Vec<(u32, bool)>>>()?;
        let plain = (flags & HAS_GROUP != 0).then_some(plain);
        Ok(Groups { plain, told, zero_is_a_name: flags & ZERO_IS_A_NAME != 0 })
    }

    /// The next record, whose lists are put into buffers of the caller.
    fn record<'a>(
        &mut self,
        before: Option<EngineHash>,
        bridges: &'a mut Vec<SequenceHash>,
        copies: &'a mut Vec<CopyCount>,
    ) -> Found<Record<'a>> {
        let at = self.at;
        let marks = self.u8("a record")?;
        let tiers = Tiers::of_bits(marks & TIERS).filter(|tiers| !tiers.is_empty());
        let tiers = tiers.ok_or((at, malformed("the tiers of a record")))?;
        let parent = match marks & (FOLLOWS_ROOT | FOLLOWS_NAME) {
            0 => Parent::Block(before.ok_or((at, malformed("the parent of a record")))?),
            FOLLOWS_ROOT => Parent::Root(SequenceHash(self.u64("a root")?)),
            FOLLOWS_NAME => Parent::Block(EngineHash(self.u64("a parent")?)),
            _ => return Err((at, malformed("the parent of a record"))),
        };
        bridges.clear();
        if marks & HAS_BRIDGES != 0 {
            for _ in 0..self.count(BRIDGES_MAX, "bridges")? {
                bridges.push(SequenceHash(self.u64("a bridge")?));
            }
        }
        let hash = SequenceHash(self.u64("a block")?);
        let name = EngineHash(self.u64("a name")?);
        copies.clear();
        if marks & COUNTED != 0 {
            self.copies(tiers, copies)?;
        }
        Ok(Record { parent, bridges, hash, name, tiers, copies })
    }

    fn copies(&mut self, tiers: Tiers, copies: &mut Vec<CopyCount>) -> Found<()> {
        let at = self.at;
        let mut found = Tiers::default();
        for _ in 0..self.count(COPIES_MAX, "copies")? {
            let at = self.at;
            let (group, tier, count) = (self.u32("copies")?, self.u8("copies")?, self.u32("copies")?);
            let tier = Tier::ALL.get(usize::from(tier)).copied().ok_or((at, malformed("the tier of copies")))?;
            let twice = copies.iter().any(|copy| (copy.group, copy.tier) == (group, tier));
            if count == 0 || twice {
                return Err((at, malformed("the number of copies")));
            }
            found = found.with(tier);
            copies.push(CopyCount { group, tier, count });
        }
        if found == tiers { Ok(()) } else { Err((at, malformed("the tiers of copies"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_bounded_before_anything_is_read() {
        let mut header = [0; HEADER_BYTES];
        assert_eq!(chunk_len(&header), Err(SnapshotFault::NotASnapshot));
        header[..8].copy_from_slice(&MAGIC);
        header[8] = 3;
        assert_eq!(chunk_len(&header), Err(SnapshotFault::Version(3)));
        // Either version has its own flags, and not the other's.
        for (version, flags, expected) in [
            (1, 8, Err(malformed("the flags"))),
            (2, 0, Err(malformed("the flags"))),
            (2, 16, Err(malformed("the flags"))),
            (2, 8, Ok(88)),
            (1, 0, Ok(88)),
        ] {
            (header[8], header[10]) = (version, flags);
            assert_eq!(chunk_len(&header), expected);
        }
        header[76..80].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(chunk_len(&header), Err(SnapshotFault::TooLong(4_294_967_383)));
    }
}
