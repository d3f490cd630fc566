//! The bytes of a body while they come. A small one is on the heap. A large one has pages of its own, so that it costs what has
//! come of it and nothing once it is gone: allocators keep for a while what was freed, and copies leave pieces behind.

use std::io;

use bytes::Bytes;
use memmap2::MmapMut;

/// From so many bytes on a body has pages of its own.
const LARGE: usize = 256 * 1024;

/// What has come of a body.
pub(super) enum Gathered {
    /// On the heap, or nothing.
    Heap(Vec<u8>),
    /// In pages of its own, of which so many bytes have come.
    Pages(MmapMut, usize),
}

impl Gathered {
    /// Nothing.
    pub(super) const fn new() -> Self {
        Self::Heap(Vec::new())
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Pages(_, len) => *len,
        }
    }

    /// How many bytes there can be without moving.
    pub(super) fn capacity(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.capacity(),
            Self::Pages(pages, _) => pages.len(),
        }
    }

    /// Makes its capacity at least `capacity`. Pages cost no memory until they are written to.
    ///
    /// # Errors
    /// When the system has no pages left.
    pub(super) fn grow_to(&mut self, capacity: usize) -> io::Result<()> {
        match self {
            Self::Heap(bytes) if capacity < LARGE => bytes.reserve_exact(capacity.saturating_sub(bytes.len())),
            _ => {
                let mut pages = MmapMut::map_anon(capacity)?;
                let known = self.as_ref();
                pages[..known.len()].copy_from_slice(known);
                *self = Self::Pages(pages, known.len());
            }
        }
        Ok(())
    }

    /// Appends `more`, for which there is room.
    pub(super) fn push(&mut self, more: &[u8]) {
        match self {
            Self::Heap(bytes) => bytes.extend_from_slice(more),
            Self::Pages(pages, len) => {
                pages[*len..][..more.len()].copy_from_slice(more);
                *len += more.len();
            }
        }
    }

    /// All of it, not copied.
    pub(super) fn whole(self) -> Bytes {
        match self {
            Self::Heap(bytes) => Bytes::from(bytes),
            pages => Bytes::from_owner(pages),
        }
    }
}

impl AsRef<[u8]> for Gathered {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages, len) => &pages[..*len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_the_same_wherever_it_is() {
        let all: Vec<u8> = (0..3 * LARGE).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for pieces in [1_000, 100_000, all.len()] {
            let mut gathered = Gathered::new();
            for piece in all.chunks(pieces) {
                let len = gathered.len() + piece.len();
                if len > gathered.capacity() {
                    gathered.grow_to(len.max(2 * gathered.len())).unwrap();
                }
                gathered.push(piece);
                assert_eq!(gathered.len(), len);
                assert_eq!(matches!(gathered, Gathered::Pages(..)), gathered.capacity() >= LARGE);
            }
            assert!(gathered.whole() == all);
        }
        assert!(Gathered::new().whole().is_empty());
    }
}
