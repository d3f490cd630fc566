//! The fast tokenizer under the eyes of the reference.
//!
//! At load both encode a corpus of awkward texts ([`Awkward`]), whole and cut at every place that is thought safe. While
//! serving, one prompt in so many is encoded by the reference on a thread of its own, long after it was sent on. What
//! differs even once is not used again.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use warmpath_core::blocks::{Root, hash_blocks};

use super::awkward::Awkward;
use super::chain::Hashed;
use super::course::{Compared, Course};
use super::cuts::Cuts;
use super::{TokenizeError, Tokenizer};

/// Bytes of a prompt that is compared: more would keep the thread busy for seconds.
const SAMPLE_BYTES_MAX: usize = 128 << 10;

/// The fast tokenizer, and the reference that takes over from it.
pub(super) struct Checked {
    fast: Option<Box<dyn Tokenizer>>,
    reference: Option<Box<dyn Tokenizer>>,
    course: Arc<Course>,
}

impl Checked {
    /// Compares the two on the corpus, and cuts at the `cuts`' places with either. Without a fast one, or with one that
    /// differs, the reference is used from the start.
    pub(super) fn new(
        fast: Option<Box<dyn Tokenizer>>,
        reference: Box<dyn Tokenizer>,
        cuts: &Cuts,
        added: &[&str],
    ) -> Self {
        let course = Arc::new(Course::default());
        let checked = Self { fast, reference: Some(reference), course };
        if checked.fast.is_none() {
            checked.course.leave_the_fast_one();
        }
        for text in Awkward::texts(added) {
            let result = checked.compare(&text, cuts);
            if result != Compared::Equal {
                checked.course.compared(result);
            }
        }
        checked
    }

    /// Gives the reference's memory back, if it is not the one in use. What is found to be wrong later cannot be replaced.
    pub(super) fn without_reference(mut self) -> Self {
        if !self.course.reference_only() {
            self.reference = None;
        }
        self
    }

    /// What is shared with those who ask how it goes.
    pub(super) fn course(&self) -> &Arc<Course> {
        &self.course
    }

    /// Whether a fast tokenizer is there to be compared with a reference.
    pub(super) fn can_compare(&self) -> bool {
        self.fast.is_some() && self.reference.is_some() && !self.course.reference_only()
    }

    /// One text of the corpus, by both, whole and in parts.
    fn compare(&self, text: &str, cuts: &Cuts) -> Compared {
        let Some(reference) = &self.reference else { return Compared::Skipped };
        let Ok(expected) = encoded(&**reference, text, false) else { return Compared::Skipped };
        let fast = self.fast.as_ref().filter(|_| !self.course.reference_only());
        if let Some(fast) = fast {
            let special = encoded(&**reference, text, true).is_ok_and(|ids| encoded(&**fast, text, true) == Ok(ids));
            if !special || encoded(&**fast, text, false).as_ref() != Ok(&expected) {
                return Compared::FastDiffers;
            }
        }
        let mut in_parts = Vec::with_capacity(expected.len());
        let mut from = 0;
        while from < text.len() && cuts.any() {
            let end = cuts.next(text, from, 1);
            if self.encode(&text[from..end], false, &mut in_parts).is_err() {
                return Compared::PartsDiffer;
            }
            from = end;
        }
        if cuts.any() && in_parts != expected { Compared::PartsDiffer } else { Compared::Equal }
    }

    /// One prompt that was sent on.
    fn judge(&self, sample: &Sample) -> Compared {
        let (Some(reference), Some(fast)) = (&self.reference, &self.fast) else { return Compared::Skipped };
        let Ok(expected) = encoded(&**reference, &sample.text, sample.special) else { return Compared::Skipped };
        let mut blocks = Vec::new();
        hash_blocks(&sample.root, &expected, &[], &mut blocks);
        // A block's hash names all blocks before it.
        if u32::try_from(expected.len()).is_ok_and(|len| len == sample.hashed.tokens)
            && blocks.last() == sample.hashed.blocks.last()
        {
            return Compared::Equal;
        }
        let same = encoded(&**fast, &sample.text, sample.special).is_ok_and(|ids| ids == expected);
        if same { Compared::PartsDiffer } else { Compared::FastDiffers }
    }
}

impl Tokenizer for Checked {
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if let Some(fast) = self.fast.as_ref().filter(|_| !self.course.reference_only()) {
            match (fast.encode(text, special, ids), &self.reference) {
                (Ok(()), _) => return Ok(()),
                (Err(_), Some(_)) => {
                    tracing::warn!(bytes = text.len(), "the fast tokenizer failed on a text: the reference takes over");
                    self.course.compared(Compared::FastDiffers);
                }
                (Err(error), None) => return Err(error),
            }
        }
        self.reference.as_ref().ok_or(TokenizeError)?.encode(text, special, ids)
    }
}

fn encoded(tokenizer: &dyn Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, TokenizeError> {
    let mut ids = Vec::new();
    tokenizer.encode(text, special, &mut ids)?;
    Ok(ids)
}

/// A prompt that was sent on, and what it was taken for.
struct Sample {
    text: String,
    special: bool,
    root: Root,
    hashed: Arc<Hashed>,
}

/// Compares one prompt in so many, on a thread that ends when this is dropped.
pub(super) struct LiveCheck {
    every: NonZeroU32,
    seen: AtomicU64,
    queue: SyncSender<Sample>,
    course: Arc<Course>,
}

impl LiveCheck {
    /// Starts the thread; none without it.
    pub(super) fn start(checked: Arc<Checked>, every: NonZeroU32) -> Option<Self> {
        let course = Arc::clone(checked.course());
        let (queue, samples) = sync_channel(1);
        let work = move || follow(&checked, &samples);
        std::thread::Builder::new().name("token-check".to_owned()).spawn(work).ok()?;
        Some(Self { every, seen: AtomicU64::new(0), queue, course })
    }

    /// Takes a prompt along if it is its turn and the thread is idle. Copies the text then, else costs an addition.
    pub(super) fn offer(&self, text: &str, special: bool, root: &Root, hashed: &Arc<Hashed>) {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(u64::from(self.every.get())) || self.course.reference_only() {
            return;
        }
        let sample = || Sample { text: text.to_owned(), special, root: *root, hashed: Arc::clone(hashed) };
        if text.len() > SAMPLE_BYTES_MAX || self.queue.try_send(sample()).is_err() {
            self.course.compared(Compared::Skipped);
        }
    }
}

fn follow(checked: &Checked, samples: &Receiver<Sample>) {
    while let Ok(sample) = samples.recv() {
        let result = checked.judge(&sample);
        if matches!(result, Compared::FastDiffers | Compared::PartsDiffer) {
            // Nothing of the text itself.
            tracing::warn!(
                bytes = sample.text.len(),
                tokens = sample.hashed.tokens,
                what = if result == Compared::FastDiffers { "fast tokenizer" } else { "cuts" },
                "tokens of a prompt differ from the reference's: from now on without"
            );
        }
        checked.course.compared(result);
    }
}
