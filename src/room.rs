//! Room for what many hold together: bodies of requests, and answers that are held back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// How much room is left. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicU64>);

/// What one body takes of it; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    room: Room,
    bytes: u64,
}

/// A body, and its room for as long as anybody has the body.
struct Kept {
    body: Bytes,
    _held: Held,
}

impl Room {
    /// For so many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Whether so many bytes would find room at this moment.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        self.0.load(Ordering::Relaxed) >= bytes
    }

    /// For a body that is whole, until its last copy is dropped; none if there is no room for it.
    pub fn take(&self, body: Bytes) -> Option<Bytes> {
        let mut held = self.hold();
        held.grow_to(body.len()).then(|| held.keep(body))
    }

    /// For a body of which nothing has come.
    pub(crate) fn hold(&self) -> Held {
        Held { room: self.clone(), bytes: 0 }
    }
}

impl Held {
    /// Takes as much as makes it hold `bytes` in all. False if there is no room for that.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let taken = self.room.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(more));
        if taken.is_ok() {
            self.bytes = bytes;
        }
        taken.is_ok()
    }

    /// Gives the room back with the last copy of `body`.
    pub(crate) fn keep(self, body: Bytes) -> Bytes {
        if self.bytes == 0 { body } else { Bytes::from_owner(Kept { body, _held: self }) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_with_the_last_copy_of_a_body() {
        let room = Room::new(10);
        let mut held = room.hold();
        assert!(held.grow_to(4) && held.grow_to(7) && held.grow_to(5), "it does not shrink");
        assert!(room.has(3) && !room.has(4));
        let mut other = room.hold();
        assert!(!other.grow_to(4) && other.grow_to(3));
        let body = held.keep(Bytes::from_static(b"1234567"));
        let copy = body.slice(2..3);
        drop(body);
        assert_eq!((copy.as_ref(), room.has(1)), (&b"3"[..], false));
        drop(copy);
        assert!(room.has(7) && !room.has(8));
        drop(other);
        assert!(room.has(10));
        let taken = room.take(Bytes::from_static(b"123456")).unwrap();
        assert!(room.has(4) && room.take(Bytes::from_static(b"12345")).is_none());
        drop(taken);
        assert!(room.has(10));
    }
}
