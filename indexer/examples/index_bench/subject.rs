//! What is measured: the port between an index and the measurements. Everything is measured by these means alone.

use warmpath_core::ids::{BlockHash, SequenceHash, Slot, TokenId};

use crate::feed::Move;

/// A prompt, in the forms in which indexes take it.
#[derive(Clone, Copy)]
pub(crate) struct Prompt<'a> {
    /// Each block's own hash.
    pub(crate) locals: &'a [BlockHash],
    /// The hash of each block and all before it.
    pub(crate) sequences: &'a [SequenceHash],
}

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
    /// Asks with the hashes that the index takes; the answer replaces the last one.
    fn look_up(&self, prompt: Prompt<'_>, answer: &mut Self::Answer);
    /// Asks with local hashes, from which the index makes what else it needs.
    fn look_up_local(&self, prompt: Prompt<'_>, answer: &mut Self::Answer);
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
