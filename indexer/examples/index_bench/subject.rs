//! What is measured: the port between an index and the measurements. Everything is measured by these means alone.

use warmpath_core::ids::{Slot, TokenId};

use crate::feed::Move;
use crate::workload::Block;

/// An index under measurement.
pub(crate) trait Subject: Sized + Send + Sync + 'static {
    /// Its name in reports.
    const NAME: &'static str;
    /// Whether its answers are exact whatever happened; if so, a wrong sum fails the run.
    const EXACT: bool;
    /// Whether it distinguishes tiers.
    const TIERS: bool;
    /// Whether applying uses events up, so that they cannot be applied again.
    const USES_EVENTS_UP: bool;
    /// What one worker's events are applied with.
    type Writer: Send;
    /// An event as the index takes it.
    type Event: Send;
    /// A prompt as the index takes it.
    type Query: Send + Sync;
    /// The caller's buffer for an answer.
    type Answer: Default + Send;

    /// An empty index for `workers` workers and at most `entries_max` entries.
    fn new(workers: u16, entries_max: usize) -> Self;
    /// The writer of one worker, of which `expected` entries are expected, 0 for unknown.
    fn writer(&self, slot: Slot, expected: usize) -> Self::Writer;
    /// What the worker's engine would say.
    fn event(moved: Move) -> Self::Event;
    /// Applies events of one worker, in order, or hands them over. Events may be used up.
    fn apply(&self, writer: &mut Self::Writer, events: &mut [Self::Event]);
    /// Returns when all that was handed over is applied.
    fn drain(&self);
    /// A prompt as the index takes it, hashes ready.
    fn query(blocks: &[Block]) -> Self::Query;
    /// Reads all that a look-up may read of a prompt, so that it lies in the processor's caches.
    fn read(query: &Self::Query) -> u64;
    /// Asks for the first `len` blocks of a prompt; the answer replaces the last one.
    fn look_up(&self, query: &Self::Query, len: usize, answer: &mut Self::Answer);
    /// Asks for a prompt by its local hashes alone, from which the index makes what else it needs.
    fn look_up_local(&self, query: &Self::Query, answer: &mut Self::Answer);
    /// Hashes tokens into the form that the index takes.
    fn hash(&self, tokens: &[TokenId], answer: &mut Self::Answer);
    /// How many leading blocks a worker holds, by an answer.
    fn overlap(answer: &Self::Answer, slot: Slot) -> u32;
    /// The sum of all workers' leading blocks, by an answer.
    fn sum(answer: &Self::Answer, workers: u16) -> u64 {
        (0..workers).map(|slot| u64::from(Self::overlap(answer, Slot(slot)))).sum()
    }
    /// All heap of the index and its writers as it counts it itself, if it does.
    fn counted_bytes(&self) -> Option<usize>;
}
