//! The caches of the workers that the plan imagines: what each stores, and what it gives up for that.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use warmpath_core::ids::{SequenceHash, Slot};

use crate::draws::index;
use crate::plan::{Load, Turn};
use crate::workload::{Piece, Request, chain, length, root};

/// The caches of all workers, each giving up first what was used least recently, the end of a prompt before its start.
pub(crate) struct Fleet {
    caches: Vec<Cache>,
    above: HashMap<u64, SequenceHash>,
}

#[derive(Default)]
struct Cache {
    /// When each piece was used last.
    used: HashMap<u64, u64>,
    /// Uses in their order; what was used again later is stale here.
    uses: VecDeque<(u64, Piece)>,
    now: u64,
}

impl Fleet {
    pub(crate) fn new(workers: u16) -> Self {
        Self { caches: (0..workers).map(|_| Cache::default()).collect(), above: HashMap::new() }
    }

    /// A worker serves a request: what it misses is stored, all of it is the most recently used.
    pub(crate) fn serve(&mut self, request: &Request) -> Load {
        let cache = &mut self.caches[request.slot.index()];
        let held = request.pieces.iter().take_while(|piece| cache.used.contains_key(&piece.first));
        let held: Vec<&Piece> = held.collect();
        let from = held.iter().map(|piece| index(piece.blocks)).sum();
        let known = held.len();
        for piece in request.pieces.iter().rev() {
            cache.now += 1;
            cache.used.insert(piece.first, cache.now);
            cache.uses.push_back((cache.now, *piece));
        }
        if known < request.pieces.len() {
            let mut above = root().sequence;
            for piece in request.pieces.iter() {
                self.above.entry(piece.first).or_insert(above);
                above = chain(above, piece.locals()).last().map_or(above, |block| block.sequence);
            }
        }
        Load { slot: request.slot, pieces: Arc::clone(&request.pieces), from, to: length(&request.pieces) }
    }

    /// Goes on serving: each worker gives up as many blocks as it stores, or less than a piece fewer. Returns the steps
    /// and the pairs held afterwards.
    pub(crate) fn turn_over(
        &mut self,
        cut: Option<Load>,
        requests: impl Iterator<Item = Request>,
        turnover: usize,
    ) -> (Vec<Turn>, usize) {
        let mut turns = Vec::new();
        let mut owed = vec![0_usize; self.caches.len()];
        let mut stored = 0;
        let mut cut = cut;
        let mut requests = requests;
        while stored < turnover {
            let load = cut.take().or_else(|| requests.next().map(|request| self.serve(&request)));
            let Some(load) = load else { break };
            let slot = load.slot;
            let owed = &mut owed[slot.index()];
            stored += load.to - load.from;
            *owed += load.to - load.from;
            if load.to > load.from {
                turns.push(Turn::Store(load));
            }
            while let Some(piece) = self.caches[slot.index()].give_up(*owed) {
                *owed -= index(piece.blocks);
                turns.push(Turn::Evict { slot, piece, above: self.above[&piece.first] });
            }
        }
        let pairs = self.holdings().values().flatten().map(|&(_, blocks)| index(blocks)).sum();
        (turns, pairs)
    }

    /// Who holds each piece, and how many blocks of it.
    pub(crate) fn holdings(&self) -> HashMap<u64, Vec<(Slot, u32)>> {
        let mut holders: HashMap<u64, Vec<(Slot, u32)>> = HashMap::new();
        for (slot, cache) in (0..).map(Slot).zip(&self.caches) {
            for (used, piece) in &cache.uses {
                if cache.used.get(&piece.first) == Some(used) {
                    holders.entry(piece.first).or_default().push((slot, piece.blocks));
                }
            }
        }
        holders
    }
}

impl Cache {
    /// Gives up the piece that was used least recently, if it is no longer than `owed`. (Longer ones wait until enough is
    /// owed, so that the cache neither shrinks nor grows with time.)
    fn give_up(&mut self, owed: usize) -> Option<Piece> {
        loop {
            let &(used, piece) = self.uses.front()?;
            let stale = self.used.get(&piece.first) != Some(&used);
            if !stale && index(piece.blocks) > owed {
                return None;
            }
            self.uses.pop_front();
            if !stale {
                self.used.remove(&piece.first);
                return Some(piece);
            }
        }
    }
}
