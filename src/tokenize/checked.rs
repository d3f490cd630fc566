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

    /// Takes a prompt along if it is its turn and the thread is idle. Asks for the text then, else costs an addition.
    pub(super) fn offer(&self, text: impl FnOnce() -> String, special: bool, root: &Root, hashed: &Arc<Hashed>) {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(u64::from(self.every.get())) || self.course.reference_only() {
            return;
        }
        let sample = || Sample { text: text(), special, root: *root, hashed: Arc::clone(hashed) };
        if hashed.bytes > SAMPLE_BYTES_MAX || self.queue.try_send(sample()).is_err() {
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

#[cfg(test)]
mod tests {
    use warmpath_core::blocks::DEFAULT_ROOT_SEED;
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::BlockSize;

    use super::super::bytes::BytesTokenizer;
    use super::super::chain::Progress;
    use super::super::pipeline::Pipeline;
    use super::*;

    /// A byte a token, but for texts with this word in them: of those it makes nothing, or an error.
    struct Wrong(&'static str, Result<(), TokenizeError>);

    impl Tokenizer for Wrong {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            if text.contains(self.0) { self.1 } else { BytesTokenizer.encode(text, special, ids) }
        }
    }

    fn checked(fast: impl Tokenizer + 'static) -> Checked {
        Checked::new(Some(Box::new(fast)), Box::new(BytesTokenizer), &Cuts::none(), &["<|x|>"])
    }

    fn root() -> Root {
        Root::new(&Namespace::plain("m", BlockSize::new(4).unwrap()), DEFAULT_ROOT_SEED)
    }

    /// A prompt that was sent on as what `ids` come to.
    fn sample(text: &str, ids: &[u32]) -> Sample {
        let hashed = Arc::new(Progress::begin(0, &root(), ids, 0).finish(&root(), &[]));
        Sample { text: text.to_owned(), special: true, root: root(), hashed }
    }

    fn bytes(text: &str) -> Vec<u32> {
        encoded(&BytesTokenizer, text, true).unwrap()
    }

    #[test]
    fn a_tokenizer_that_gets_the_corpus_wrong_is_never_used() {
        assert!(!checked(BytesTokenizer).course().reference_only());
        for word in ["\r\n", "'LL", "字", "<|x|>"] {
            let checked = checked(Wrong(word, Ok(())));
            assert!(checked.course().reference_only(), "{word}");
            assert_eq!(encoded(&checked, word, true), Ok(bytes(word)));
            assert!(!checked.can_compare());
        }
        let without = Checked::new(None, Box::new(BytesTokenizer), &Cuts::none(), &[]);
        assert!(without.course().reference_only());
        assert_eq!(encoded(&without.without_reference(), "a", true), Ok(vec![97]));
    }

    #[test]
    fn cuts_that_change_the_tokens_of_the_corpus_are_not_made() {
        /// Its tokens depend on what stands before: a cut changes them.
        struct Counting;
        impl Tokenizer for Counting {
            fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
                ids.extend(text.bytes().zip(0..).map(|(_, place)| place));
                Ok(())
            }
        }
        let file = r#"{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE"}}"#;
        let cuts = Cuts::of(&Pipeline::read(file).unwrap(), None);
        let course = |tokenizer: fn() -> Box<dyn Tokenizer>| {
            let checked = Checked::new(Some(tokenizer()), tokenizer(), &cuts, &[]);
            (checked.course().reference_only(), checked.course().whole())
        };
        assert_eq!(course(|| Box::new(Counting)), (false, true));
        assert_eq!(course(|| Box::new(BytesTokenizer)), (false, false));
    }

    #[test]
    fn a_prompt_that_differs_ends_the_use_of_what_made_it_differ() {
        let checked = checked(Wrong("xyzzy", Ok(())));
        assert_eq!(checked.judge(&sample("plain words", &bytes("plain words"))), Compared::Equal);
        assert_eq!(checked.judge(&sample("plain words", &bytes("other words"))), Compared::PartsDiffer);
        assert_eq!(checked.judge(&sample("plain words", &bytes("plain wo"))), Compared::PartsDiffer);
        let (queue, samples) = sync_channel(2);
        queue.send(sample("a", &bytes("a"))).unwrap();
        queue.send(sample("xyzzy!", &[])).unwrap();
        drop(queue);
        assert_eq!(encoded(&checked, "xyzzy!", true), Ok(vec![]));
        follow(&checked, &samples);
        assert_eq!(checked.course().comparisons(), [1, 1, 0]);
        assert_eq!(encoded(&checked, "xyzzy!", true), Ok(bytes("xyzzy!")));
        assert_eq!((checked.course().reference_only(), checked.course().whole()), (true, false));
    }

    #[test]
    fn a_fast_tokenizer_that_fails_is_replaced_at_once_if_the_reference_is_there() {
        let failing = || checked(Wrong("xyzzy", Err(TokenizeError)));
        let with = failing();
        assert_eq!(encoded(&with, "xyzzy", true), Ok(bytes("xyzzy")));
        assert!(with.course().reference_only());
        let without = failing().without_reference();
        assert_eq!(encoded(&without, "xyzzy", true), Err(TokenizeError));
        assert_eq!(encoded(&without, "a", true), Ok(bytes("a")));
    }

    #[test]
    fn one_prompt_in_so_many_is_taken_along_unless_the_last_one_is_still_there() {
        let (queue, samples) = sync_channel(1);
        let every = NonZeroU32::new(3).unwrap();
        let live = LiveCheck { every, seen: AtomicU64::new(0), queue, course: Arc::default() };
        let offer = |text: &str| {
            let hashed = Arc::new(Hashed { bytes: text.len(), ..Hashed::default() });
            live.offer(|| text.to_owned(), true, &root(), &hashed);
        };
        ["a", "b", "c", "d", "e", "f"].into_iter().for_each(offer);
        assert_eq!(samples.recv().unwrap().text, "a");
        assert_eq!(live.course.comparisons(), [0, 0, 1], "the fourth found the first");
        offer(&"x".repeat(SAMPLE_BYTES_MAX + 1));
        assert_eq!(live.course.comparisons(), [0, 0, 2], "too long");
        assert!(samples.try_recv().is_err());
    }
}
