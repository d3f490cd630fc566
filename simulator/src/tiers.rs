//! What lies below the GPU's cache: host memory, and storage that a fleet shares.
//!
//! The tiers follow the events of the cache above them, whichever profile it has: a page is known while the GPU or the
//! host holds it. Copies downwards happen beside the work, one after the other, and can be read once they are whole. A
//! request that is admitted reads its run on from where the GPU's ends: the host's pages are loaded while its step
//! computes, and what shared storage has is fetched into the host from the moment it arrives.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warmpath_core::count::real_len;
use warmpath_core::ids::EngineHash;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::Content;

use super::blocks::BlockEvent;
use super::clock::Ms;
use super::naming::{Digest, Extras, Naming};
use super::radix::reusable;
use super::request::RequestId;
use super::sequence::Sequence;
use inward::{Fetched, Inward};
use page::Page;
use shelf::Shelf;

pub mod eviction;
mod inward;
pub mod link;
mod page;
pub mod plan;
pub mod shared;
mod shelf;

pub use eviction::Eviction;
pub use link::{LinkError, LinkSpec};
pub use plan::{PolicyError, PrefetchPolicy, Tiers, WritePolicy};
pub use shared::{SharedPage, SharedTier};

/// The fleet's storage, where there is any.
pub(super) type Beside<'a> = Option<&'a mut SharedTier>;

/// How long an engine that only waits for storage goes on without looking at new requests.
const LOOK: Ms = Ms(1.0);

/// One engine's lower tiers.
#[derive(Debug)]
pub(super) struct Hierarchy {
    plan: Tiers,
    naming: Naming,
    pages: HashMap<EngineHash, Page, FixedState>,
    host: Shelf,
    inward: Inward,
    /// When the copies to the host that were begun are whole.
    to_host: Ms,
    /// When those to shared storage are.
    to_shared: Ms,
    /// Pages that the step at hand loads to the GPU.
    loading: usize,
    events: Vec<BlockEvent>,
}

impl Hierarchy {
    /// `seed` is that of chance.
    pub(super) fn new(plan: Tiers, page_size: BlockSize, seed: u64) -> Self {
        Self {
            plan,
            naming: SharedTier::naming(page_size),
            pages: HashMap::default(),
            host: Shelf::new(plan.host_pages, plan.eviction, seed),
            inward: Inward::new(&plan, page_size.len()),
            to_host: Ms::ZERO,
            to_shared: Ms::ZERO,
            loading: 0,
            events: Vec::new(),
        }
    }

    /// A request arrives, of which the GPU has the first `device` pages: begins to fetch what follows in shared storage.
    pub(super) fn arrive(
        &mut self,
        now: Ms,
        id: RequestId,
        sequence: &Sequence,
        device: usize,
        shared: &mut SharedTier,
    ) {
        let names = reusable(sequence, self.page());
        let first = device + self.host.run(now, names.get(device..).unwrap_or_default());
        let keys: Vec<Digest> = sequence.digests(self.naming).take(names.len()).collect();
        let called: Vec<EngineHash> = keys.iter().map(|key| self.naming.name(*key)).collect();
        let found = shared.batch_exists(now, called.get(first..).unwrap_or_default());
        if found == 0 || found * self.page() < self.plan.prefetch_min {
            return;
        }
        shared.batch_get(now, &called[..first + found]);
        self.inward.begin(now, id, first, keys[first..first + found].to_vec());
    }

    /// Whether a request may run now. If so, what was fetched for it lies in the host, and no more is.
    pub(super) fn ready(&mut self, now: Ms, id: RequestId, sequence: &Sequence) -> bool {
        match self.inward.end(now, id) {
            Fetched::Underway => return false,
            Fetched::Nothing => {}
            Fetched::Pages { first, keys } => self.receive(now, sequence, first, &keys),
        }
        true
    }

    /// A request has left.
    pub(super) fn leave(&mut self, id: RequestId) {
        self.inward.cancel(id);
    }

    /// How many pages the host has behind the first `device` ones.
    pub(super) fn below(&self, now: Ms, sequence: &Sequence, device: usize) -> usize {
        self.host.run(now, reusable(sequence, self.page()).get(device..).unwrap_or_default())
    }

    /// A request was admitted with `device` pages of the GPU, and `host` ones that follow are loaded.
    pub(super) fn admitted(
        &mut self,
        now: Ms,
        sequence: &Sequence,
        (device, host): (usize, usize),
        mut shared: Beside<'_>,
    ) {
        let names = &sequence.hashes()[..device + host];
        self.loading += host;
        self.host.touch(names);
        let mut written = None;
        for name in names {
            let Some(page) = self.pages.get_mut(name) else { continue };
            page.uses = page.uses.saturating_add(1);
            page.output = false;
            if self.is_due(*name) {
                self.write(now, *name, shared.as_deref_mut());
                written = Some(*name);
            }
        }
        self.refresh(written);
    }

    /// The cache above has changed, for a request whose prompt has `prompt` tokens.
    pub(super) fn absorb(&mut self, now: Ms, events: Vec<BlockEvent>, prompt: usize, mut shared: Beside<'_>) {
        let mut written = None;
        for event in events {
            match &event {
                BlockEvent::Stored { hashes, .. } => {
                    let names = hashes.clone();
                    self.stored(&event, prompt);
                    self.events.push(event);
                    for name in names {
                        if self.is_due(name) {
                            self.write(now, name, shared.as_deref_mut());
                            written = Some(name);
                        }
                    }
                }
                BlockEvent::Removed { hash, .. } => {
                    let hash = *hash;
                    if self.is_last_chance(hash) {
                        self.write(now, hash, shared.as_deref_mut());
                    }
                    self.events.push(event);
                    self.removed(hash);
                }
                BlockEvent::Cleared => {
                    let host = &self.host;
                    self.pages.retain(|name, page| {
                        page.device = 0;
                        host.holds(*name)
                    });
                    self.events.push(event);
                }
            }
        }
        self.refresh(written);
    }

    /// How long a step lasts that computes for `compute` and loads what was admitted since the last.
    pub(super) fn overlapped(&mut self, compute: Ms) -> Ms {
        match std::mem::take(&mut self.loading) {
            0 => compute,
            pages => self.plan.overlapped(compute, self.plan.bus.time(self.bytes(pages))),
        }
    }

    /// How long to wait until a request may run, if all wait for storage; short, so that new requests are looked at.
    pub(super) fn wait(&mut self, now: Ms) -> Ms {
        self.inward.next(now, now + LOOK) - now
    }

    /// The events since the last call, those of the cache above included, in the order in which they happened.
    pub(super) fn take_events(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.events)
    }

    /// The names of all pages in the host, in no particular order.
    pub(super) fn host_pages(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.host.names()
    }

    fn page(&self) -> usize {
        self.naming.block_size.len()
    }

    fn bytes(&self, pages: usize) -> f64 {
        real_len(pages * self.page()) * self.plan.kv_bytes
    }

    /// Fetched pages come into the host, unless those before them have gone meanwhile.
    fn receive(&mut self, now: Ms, sequence: &Sequence, first: usize, keys: &[Digest]) {
        let names = &sequence.hashes()[..first + keys.len()];
        // What lies there already must not make room for the others.
        names.iter().rev().for_each(|name| self.host.accompany(*name));
        for (at, key) in (first..).zip(keys) {
            let parent = at.checked_sub(1).map(|before| names[before]);
            // The one before may have gone, or just made room for itself: nothing is found behind it.
            if parent.is_some_and(|parent| !self.pages.contains_key(&parent)) {
                break;
            }
            self.pages.entry(names[at]).or_insert_with(|| Page {
                parent,
                content: sequence.content(at..at + 1),
                salt: sequence.salt.clone(),
                adapter: sequence.adapter.clone(),
                key: Some(*key),
                depth: at,
                device: 0,
                uses: 0,
                output: false,
            });
            self.lay(now, names[at]);
        }
        self.host.touch(names);
    }

    /// Notes pages that the GPU has now.
    fn stored(&mut self, event: &BlockEvent, prompt: usize) {
        let BlockEvent::Stored { hashes, parent, content, salt, adapter, .. } = event else { return };
        let mut parent = *parent;
        let extras = Extras { salt: salt.as_deref(), adapter: adapter.as_deref() };
        for (place, name) in hashes.iter().enumerate() {
            let content = page_of(content, place, self.page());
            let before = parent.and_then(|parent| self.pages.get(&parent));
            let depth = before.map_or(0, |before| before.depth + 1);
            let above = match parent {
                None => Some(self.naming.root(extras)),
                Some(_) => before.and_then(|before| before.key),
            };
            let (naming, output) = (self.naming, (depth + 1) * self.page() > prompt);
            let page = self.pages.entry(*name).or_insert_with(|| Page {
                parent,
                key: above.and_then(|above| naming.next_of(above, extras, &content)),
                content,
                salt: salt.clone(),
                adapter: adapter.clone(),
                depth,
                device: 0,
                uses: 1,
                output,
            });
            page.device += 1;
            parent = Some(*name);
        }
    }

    /// A copy on the GPU is gone.
    fn removed(&mut self, name: EngineHash) {
        let Some(page) = self.pages.get_mut(&name) else { return };
        page.device = page.device.saturating_sub(1);
        self.forget(name);
    }

    /// Whether a page on the GPU is to be copied down now, for how often it was used.
    fn is_due(&self, name: EngineHash) -> bool {
        let due = |page: &Page| match self.plan.write {
            WritePolicy::WriteThrough => true,
            WritePolicy::Selective { uses } => page.uses >= uses,
            WritePolicy::WriteBack => false,
        };
        self.may_write(name, due)
    }

    /// Whether a page is about to leave the GPU and is to be copied down for that.
    fn is_last_chance(&self, name: EngineHash) -> bool {
        self.may_write(name, |page| page.device == 1 && self.plan.write == WritePolicy::WriteBack)
    }

    fn may_write(&self, name: EngineHash, due: impl Fn(&Page) -> bool) -> bool {
        let wanted = |page: &Page| (self.plan.write_output || !page.output) && page.device > 0 && due(page);
        !self.host.holds(name) && self.pages.get(&name).is_some_and(wanted)
    }

    /// Copies a page to the host, and on to shared storage.
    fn write(&mut self, now: Ms, name: EngineHash, shared: Beside<'_>) {
        let bytes = self.bytes(1);
        self.to_host = later(self.to_host, now) + Ms(1e3 * bytes / self.plan.bus.bytes_per_second);
        let whole = self.to_host + self.plan.bus.latency;
        self.lay(whole, name);
        let (Some(shared), Some(page)) = (shared, self.pages.get(&name)) else { return };
        let Some(key) = page.key.map(|key| self.naming.name(key)).filter(|key| !shared.holds(*key)) else { return };
        self.to_shared = later(self.to_shared, whole) + Ms(1e3 * bytes / self.plan.network.bytes_per_second);
        let parent = page.parent.and_then(|parent| self.pages.get(&parent)?.key).map(|key| self.naming.name(key));
        let (content, salt, adapter) = (page.content.clone(), page.salt.clone(), page.adapter.clone());
        let page = SharedPage { key, parent, content, salt, adapter };
        shared.batch_set(self.to_shared + self.plan.network.latency, [page]);
    }

    /// Puts a known page into the host, and tells of it.
    fn lay(&mut self, whole: Ms, name: EngineHash) {
        if self.host.holds(name) {
            return;
        }
        let parent = self.pages.get(&name).and_then(|page| page.parent);
        if let Some(gone) = self.host.lay(name, parent, whole) {
            if gone == name {
                return self.forget(name);
            }
            self.events.push(BlockEvent::Removed { hash: gone, tier: Tier::Host });
            self.forget(gone);
        }
        if let Some(page) = self.pages.get(&name) {
            self.events.push(BlockEvent::Stored {
                hashes: vec![name],
                parent: page.parent,
                content: page.content.clone(),
                salt: page.salt.clone(),
                adapter: page.adapter.clone(),
                tier: Tier::Host,
            });
        }
    }

    /// Forgets a page that neither GPU nor host holds.
    fn forget(&mut self, name: EngineHash) {
        if !self.host.holds(name) && self.pages.get(&name).is_some_and(|page| page.device == 0) {
            self.pages.remove(&name);
        }
    }

    /// What comes before a page that was just written is used as well: it must not go before it. O(pages before it).
    fn refresh(&mut self, mut next: Option<EngineHash>) {
        while let Some(name) = next {
            self.host.accompany(name);
            next = self.pages.get(&name).and_then(|page| page.parent);
        }
    }
}

/// What the page at `place` of an event holds.
fn page_of(content: &Content, place: usize, page: usize) -> Content {
    match content {
        Content::Tokens(tokens) => Content::Tokens(tokens[place * page..(place + 1) * page].to_vec()),
        Content::Hashes(hashes) => Content::Hashes(vec![hashes[place]]),
        Content::Nothing => Content::Nothing,
    }
}

fn later(one: Ms, other: Ms) -> Ms {
    if one < other { other } else { one }
}

#[cfg(test)]
mod tests;
