//! Storage that all engines of a fleet share.

use std::sync::Arc;

use warmpath_core::ids::EngineHash;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::Content;

use super::eviction::Eviction;
use super::shelf::Shelf;
use crate::blocks::BlockEvent;
use crate::clock::Ms;
use crate::naming::{Naming, Scheme};
use crate::sequence::Sequence;

/// A page on its way into shared storage.
#[derive(Clone, Debug)]
pub struct SharedPage {
    /// Its name, which stands for all before it and is the same in every engine.
    pub key: EngineHash,
    /// The page before it.
    pub parent: Option<EngineHash>,
    /// What it holds.
    pub content: Content,
    /// The salt of its prefix.
    pub salt: Option<Arc<str>>,
    /// The adapter that computed it.
    pub adapter: Option<Arc<str>>,
}

/// The third tier: one for a fleet, to which its engines refer by turns. A page is its unit, and each page has a name of
/// its own. What it holds is announced once, by [`take_events`](Self::take_events), and not by the engines; of storage that
/// one engine has for itself nobody is told.
#[derive(Debug)]
pub struct SharedTier {
    shelf: Shelf,
    /// What is to be announced; none where nothing ever is.
    events: Option<Vec<BlockEvent>>,
}

impl SharedTier {
    /// Empty storage for `pages` pages. `seed` is that of chance.
    pub fn with(pages: u32, eviction: Eviction, seed: u64) -> Self {
        Self { shelf: Shelf::new(pages, eviction, seed), events: Some(Vec::new()) }
    }

    /// The same, of which nobody is told.
    #[must_use]
    pub fn untold(self) -> Self {
        Self { events: None, ..self }
    }

    /// How all engines name pages here: as SGLang does, each with a name of its own that covers all before it.
    pub(crate) fn naming(page_size: BlockSize) -> Naming {
        Naming { scheme: Scheme::SglangSha256, block_size: page_size }
    }

    /// What a sequence's full pages are called here. O(tokens).
    pub(crate) fn names(sequence: &Sequence, page_size: BlockSize) -> Vec<EngineHash> {
        let naming = Self::naming(page_size);
        sequence.digests(naming).map(|digest| naming.name(digest)).collect()
    }

    /// How many of the first pages exist and are whole at `now`.
    pub fn batch_exists(&self, now: Ms, keys: &[EngineHash]) -> usize {
        self.shelf.run(now, keys)
    }

    /// Reads the first pages, as far as they exist, which is a use of them. Returns how many these are.
    pub fn batch_get(&mut self, now: Ms, keys: &[EngineHash]) -> usize {
        let found = self.shelf.run(now, keys);
        self.shelf.touch(&keys[..found]);
        found
    }

    /// Writes pages that will be whole at `from`, but those that are there already. Returns how many were written.
    pub fn batch_set(&mut self, from: Ms, pages: impl IntoIterator<Item = SharedPage>) -> usize {
        let mut written = 0;
        for page in pages {
            if self.shelf.holds(page.key) {
                continue;
            }
            let gone = self.shelf.lay(page.key, None, from);
            if gone == Some(page.key) {
                continue;
            }
            written += 1;
            if let Some(events) = &mut self.events {
                events.extend(gone.map(|hash| BlockEvent::Removed { hash, tier: Tier::External }));
                events.push(page.stored());
            }
        }
        written
    }

    /// Whether a page is there, or on its way.
    pub fn holds(&self, key: EngineHash) -> bool {
        self.shelf.holds(key)
    }

    /// The names of all pages, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.shelf.names()
    }

    /// What was stored and removed since the last call, in that order. The names are the fleet's, not an engine's.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl SharedPage {
    fn stored(self) -> BlockEvent {
        BlockEvent::Stored {
            hashes: vec![self.key],
            parent: self.parent,
            content: self.content,
            salt: self.salt,
            adapter: self.adapter,
            tier: Tier::External,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SharedTier {
        /// Empty storage for `pages` pages, of which the least recently used make room.
        pub(crate) fn new(pages: u32) -> Self {
            Self::with(pages, Eviction::Lru, 0)
        }
    }

    fn page(key: u64) -> SharedPage {
        let parent = key.checked_sub(1).map(EngineHash);
        SharedPage { key: EngineHash(key), parent, content: Content::Tokens(vec![1; 4]), salt: None, adapter: None }
    }

    #[test]
    fn existence_is_told_as_the_length_of_the_leading_run() {
        let mut tier = SharedTier::new(8);
        assert_eq!(tier.batch_set(Ms(3.0), [page(0), page(1), page(3)]), 3);
        let keys = [0, 1, 2, 3].map(EngineHash);
        assert_eq!((tier.batch_exists(Ms(2.0), &keys), tier.batch_exists(Ms(3.0), &keys)), (0, 2));
        assert_eq!(tier.batch_get(Ms(3.0), &keys), 2);
        assert_eq!(tier.batch_get(Ms(3.0), &keys[2..]), 0);
    }

    #[test]
    fn a_page_is_written_and_announced_once_for_all() {
        let mut tier = SharedTier::new(2);
        assert_eq!(tier.batch_set(Ms::ZERO, [page(0), page(1)]), 2);
        assert_eq!(tier.batch_set(Ms::ZERO, [page(0), page(1)]), 0, "another engine has written it");
        assert_eq!(tier.take_events().len(), 2);
        tier.batch_get(Ms::ZERO, &[EngineHash(0)]);
        assert_eq!(tier.batch_set(Ms::ZERO, [page(2)]), 1);
        let events = tier.take_events();
        assert_eq!(events[0], BlockEvent::Removed { hash: EngineHash(1), tier: Tier::External });
        assert!(matches!(events[1], BlockEvent::Stored { tier: Tier::External, .. }));
        assert_eq!((events.len(), tier.holds(EngineHash(0)), tier.keys().count()), (2, true, 2));
    }
}
