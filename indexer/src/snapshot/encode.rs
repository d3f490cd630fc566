//! Blocks -> chunks.

use warmpath_core::ids::EngineHash;

use super::{
    BRIDGES_MAX, CHECKSUM_BYTES, CHUNK_MAX, CHUNK_MIN, COPIES_MAX, COUNTED, FOLLOWS_NAME, FOLLOWS_ROOT, GROUPS_MAX,
    Groups, HAS_BRIDGES, HAS_EPOCH, HAS_GROUP, HAS_NEWEST, HEADER_BYTES, Head, IN_THE_MIDDLE, LAST, MAGIC, Parent,
    Record, TOTALS_BYTES, VERSION, VERSION_MIDDLE, ZERO_IS_A_NAME, checksum,
};
use crate::feed::Began;

/// Writes one snapshot: records in, whole chunks out.
pub struct SnapshotEncoder {
    head: Head,
    /// Bytes of a chunk at most.
    limit: usize,
    /// The chunk that is being filled.
    chunk: Vec<u8>,
    number: u32,
    checksum: u64,
    /// Records in this chunk, and in all.
    records: u32,
    total: u64,
    /// The name of the record before in this chunk.
    before: Option<EngineHash>,
}

impl SnapshotEncoder {
    /// A snapshot without records. Chunks have about `chunk_bytes` at most, within 32 KiB and [`CHUNK_MAX`].
    pub fn new(head: Head, groups: &Groups, chunk_bytes: usize) -> Self {
        let limit = chunk_bytes.clamp(CHUNK_MIN, CHUNK_MAX);
        let mut encoder =
            Self { head, limit, chunk: Vec::new(), number: 0, checksum: 0, records: 0, total: 0, before: None };
        encoder.begin();
        encoder.put_groups(groups);
        encoder
    }

    /// Adds a block, which follows one that was added before; returns the chunk that was filled by those before it.
    pub fn push(&mut self, record: &Record<'_>) -> Option<Vec<u8>> {
        let bytes = 29 + 8 * record.bridges.len() + 9 * record.copies.len();
        let full = self.chunk.len() + bytes + TOTALS_BYTES + CHECKSUM_BYTES > self.limit && self.records > 0;
        let done = full.then(|| self.seal(false));
        self.put_record(record);
        done
    }

    /// The last chunk. `left_out` names had no place in the snapshot.
    pub fn finish(mut self, left_out: u64) -> Vec<u8> {
        self.put_u64(self.total);
        self.put_u64(left_out);
        self.seal(true)
    }

    fn put_u32(&mut self, number: u32) {
        self.chunk.extend_from_slice(&number.to_le_bytes());
    }

    fn put_u64(&mut self, number: u64) {
        self.chunk.extend_from_slice(&number.to_le_bytes());
    }

    fn put_len(&mut self, len: usize) {
        self.chunk.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
    }

    /// Begins a chunk; what is not known yet follows in [`SnapshotEncoder::seal`].
    fn begin(&mut self) {
        let Head { pool, mark, names } = self.head;
        self.chunk.reserve_exact(self.limit);
        self.chunk.extend_from_slice(&MAGIC);
        let (version, middle) = match mark.began {
            Began::AtStart => (VERSION, 0),
            Began::InTheMiddle => (VERSION_MIDDLE, IN_THE_MIDDLE),
        };
        self.chunk.extend_from_slice(&version.to_le_bytes());
        let known = |known: bool, flag: u16| if known { flag } else { 0 };
        let flags = known(mark.position.epoch.is_some(), HAS_EPOCH) | known(mark.position.newest.is_some(), HAS_NEWEST);
        self.chunk.extend_from_slice(&(flags | middle).to_le_bytes());
        self.put_u32(self.number);
        let newest = mark.position.newest.unwrap_or(0.0).to_bits();
        let epoch = mark.position.epoch.unwrap_or(0);
        for number in [pool.0, mark.owner, epoch, mark.position.next, newest, mark.taken_ms, names] {
            self.put_u64(number);
        }
        self.put_u64(0);
        (self.records, self.before) = (0, None);
    }

    fn seal(&mut self, last: bool) -> Vec<u8> {
        if last {
            self.chunk[10] |= LAST.to_le_bytes()[0];
        }
        let body = u32::try_from(self.chunk.len() - HEADER_BYTES).expect("a chunk is smaller than 4 GiB");
        self.chunk[72..76].copy_from_slice(&self.records.to_le_bytes());
        self.chunk[76..80].copy_from_slice(&body.to_le_bytes());
        self.checksum = checksum(&self.chunk, self.checksum);
        self.put_u64(self.checksum);
        let chunk = std::mem::take(&mut self.chunk);
        if !last {
            self.number = self.number.saturating_add(1);
            self.begin();
        }
        chunk
    }

    fn put_groups(&mut self, groups: &Groups) {
        let told = &groups.told[..groups.told.len().min(GROUPS_MAX)];
        let zero = if groups.zero_is_a_name { ZERO_IS_A_NAME } else { 0 };
        self.chunk.push(zero | if groups.plain.is_some() { HAS_GROUP } else { 0 });
        self.put_u32(groups.plain.unwrap_or(0));
        self.chunk.push(u8::try_from(told.len()).unwrap_or(u8::MAX));
        for &(group, prefix) in told {
            self.put_u32(group);
            self.chunk.push(u8::from(prefix));
        }
    }

    fn put_record(&mut self, record: &Record<'_>) {
        let Record { parent, bridges, hash, name, tiers, copies } = *record;
        debug_assert!(bridges.len() <= BRIDGES_MAX && copies.len() <= COPIES_MAX, "no reader takes more");
        let follows = match parent {
            Parent::Root(root) => Some((FOLLOWS_ROOT, root.0)),
            Parent::Block(parent) if self.before == Some(parent) => None,
            Parent::Block(parent) => Some((FOLLOWS_NAME, parent.0)),
        };
        let counted = if copies.is_empty() { 0 } else { COUNTED };
        let bridged = if bridges.is_empty() { 0 } else { HAS_BRIDGES };
        self.chunk.push(tiers.bits() | counted | bridged | follows.map_or(0, |(mark, _)| mark));
        if let Some((_, above)) = follows {
            self.put_u64(above);
        }
        if !bridges.is_empty() {
            self.put_len(bridges.len());
            bridges.iter().for_each(|bridge| self.put_u64(bridge.0));
        }
        self.put_u64(hash.0);
        self.put_u64(name.0);
        if !copies.is_empty() {
            self.put_len(copies.len());
            for copy in copies {
                self.put_u32(copy.group);
                self.chunk.push(u8::try_from(copy.tier.index()).expect("four tiers"));
                self.put_u32(copy.count);
            }
        }
        self.before = Some(name);
        self.records += 1;
        self.total += 1;
    }
}

/// Bytes that the encoder's own parts take beside records.
const _: () = assert!(HEADER_BYTES + 8 * GROUPS_MAX + 29 + 8 * BRIDGES_MAX + 9 * COPIES_MAX + 24 < CHUNK_MIN);
