//! What an engine has to do for a prompt, in the quantities on which the time depends.

use crate::overlap::TierBlocks;
use crate::real::Number;
use crate::shape::Shape;
use crate::units::{BlockSize, Tier, Tokens};

/// How many quantities there are.
pub(crate) const QUANTITIES: usize = 8;

/// Work on prompts that are computed one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Thousands of tokens to compute.
    pub tokens: f64,
    /// Millions of pairs of a token to compute and one to which it attends: itself, and all before it, cached or not.
    pub pairs: f64,
    /// Thousands of tokens to fetch from the tiers below the device, fastest first.
    pub fetched: [f64; 3],
    /// Prompts of it beyond one for each request: those of one request are computed one after the other, and the first token of
    /// the first of them tells nothing of the others.
    pub further: f64,
    /// What decodes beside it. Not a part of what there is to do: sums keep that of the first.
    pub beside: Decoding,
}

/// Streams that decode on a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decoding<N = f64> {
    /// How many.
    pub streams: N,
    /// Hundreds of thousands of tokens to which they attend in each step, prompts and answers so far.
    pub context: N,
}

/// Work as far as the time depends on it that it takes on workers that fetch at the same rates.
#[derive(Clone, Copy, Debug)]
pub struct Amount<N = f64> {
    /// As in [`Work`].
    pub tokens: N,
    /// As in [`Work`].
    pub pairs: N,
    /// ms to fetch what lies below the device; none where nothing does.
    pub fetching: Option<N>,
}

impl<N: Number> Amount<N> {
    /// A prompt of so many tokens, of which so many `new` ones are computed, no more than there are, and the others lie on the
    /// device.
    #[inline(always)]
    pub fn on_device(prompt: Tokens, new: N) -> Self {
        let tokens = new * N::all(1e-3);
        let pairs = tokens * (N::all(thousands(prompt)) - tokens / N::all(2.0));
        Self { tokens, pairs, fetching: None }
    }
}

/// Thousands of tokens that an engine computes in one step, about: every step is longer by the streams that decode in it.
pub(super) const STEP: f64 = 8.0;

/// The tiers below the device, fastest first.
const BELOW: [Tier; 3] = [Tier::Host, Tier::Disk, Tier::External];

impl Work {
    /// A prompt of so many tokens of which the last `new` are computed, and those in `held` that do not lie on the device
    /// are fetched, as far as they are believed: `trust`, from 0 to 1.
    pub fn new(prompt: Tokens, new: Tokens, held: TierBlocks, trust: f64, size: BlockSize) -> Self {
        let fetched = BELOW.map(|tier| trust * thousands(held.get(tier).tokens(size)));
        Self { fetched, ..Self::on_device(prompt, new) }
    }

    /// What was sent to a worker that is to compute `new` tokens of it: of what it promises, as much is believed as that tells.
    pub(super) fn sent(shape: &Shape, new: Tokens, held: TierBlocks) -> Self {
        let [known, promised] = [shape.prompt.saturating_sub(new), held.total().tokens(shape.block_size)];
        let believed = if promised > Tokens(0) { f64::from(known.0) / f64::from(promised.0) } else { 0.0 };
        Self::new(shape.prompt, new, held, believed.min(1.0), shape.block_size).of_prompts(shape)
    }

    /// A prompt of so many tokens of which the last `new` are computed, and the others lie on the device.
    pub fn on_device(prompt: Tokens, new: Tokens) -> Self {
        let Amount { tokens, pairs, .. } = Amount::on_device(prompt, f64::from(new.min(prompt).0));
        Self { tokens, pairs, ..Self::default() }
    }

    /// All of a prompt.
    pub fn cold(shape: &Shape) -> Self {
        Self::on_device(shape.prompt, shape.prompt).of_prompts(shape)
    }

    /// The same where it is that of all prompts of a request, taken for equally long: tokens of one attend to none of another.
    fn of_prompts(self, shape: &Shape) -> Self {
        let prompts = f64::from(shape.prompts.get());
        Self { pairs: self.pairs / prompts, further: prompts - 1.0, ..self }
    }

    /// What is left of it once the first of its prompts was computed.
    pub(super) fn behind_first(self) -> Self {
        Self { further: 0.0, ..self.times(self.further / (1.0 + self.further)) }
    }

    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.tokens <= 0.0
    }

    /// Whether any of it lies below the device.
    #[inline]
    pub fn fetches(&self) -> bool {
        let [host, disk, external] = self.fetched;
        host + disk + external > 0.0
    }

    /// The same beside these streams.
    #[must_use]
    pub fn beside(self, beside: Decoding) -> Self {
        Self { beside, ..self }
    }

    /// Both, one after the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.each(other, |own, other| own + other)
    }

    /// The same without `other`, never below nothing.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        self.each(other, |own, other| (own - other).max(0.0))
    }

    /// So many times the same.
    #[must_use]
    pub fn times(self, times: f64) -> Self {
        self.each(self, |own, _| own * times)
    }

    /// The quantities of one interval in which all of it was done.
    pub(crate) fn quantities(&self) -> [f64; QUANTITIES] {
        let [host, disk, external] = self.fetched;
        let (Decoding { streams, context }, steps) = (self.beside, 1.0 + self.tokens / STEP);
        [1.0, self.tokens, self.pairs, host, disk, external, streams * steps, context * steps]
    }

    fn each(self, other: Self, join: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            tokens: join(self.tokens, other.tokens),
            pairs: join(self.pairs, other.pairs),
            fetched: [0, 1, 2].map(|tier| join(self.fetched[tier], other.fetched[tier])),
            further: join(self.further, other.further),
            beside: self.beside,
        }
    }
}

fn thousands(tokens: Tokens) -> f64 {
    f64::from(tokens.0) * 1e-3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Blocks;

    fn held(host: u32) -> TierBlocks {
        let mut held = TierBlocks::device(Blocks(50));
        held.add(Tier::Host, Blocks(host));
        held
    }

    #[test]
    fn new_tokens_attend_to_all_before_them() {
        let size = BlockSize::new(16).unwrap();
        // 2 000 of 6 000: each to the 4 000 before, and to 1 000 of the new ones on average.
        let work = Work::new(Tokens(6_000), Tokens(2_000), held(125), 0.5, size);
        assert_eq!(work, Work { tokens: 2.0, pairs: 10.0, fetched: [1.0, 0.0, 0.0], ..Work::default() });
        assert_eq!(work.and(work), work.times(2.0));
        assert_eq!(work.times(2.0).without(work), work);
        assert_eq!(work.without(work.times(3.0)), Work::default());
        assert!(Work::default().is_none() && !work.is_none());
    }

    #[test]
    fn what_was_sent_is_believed_as_far_as_its_new_tokens_tell() {
        let shape = Shape::of(Tokens(6_000), BlockSize::new(16).unwrap());
        // 50 blocks on the device and 125 in the host's memory: 2 800 tokens, of which half, all or none are believed.
        let fetched = |new| Work::sent(&shape, Tokens(new), held(125)).fetched[0];
        assert_eq!([fetched(4_600), fetched(3_200), fetched(1_000), fetched(6_000)], [1.0, 2.0, 2.0, 0.0]);
        assert_eq!(Work::sent(&shape, Tokens(100), TierBlocks::default()), Work::on_device(Tokens(6_000), Tokens(100)));
    }

    #[test]
    fn tokens_of_one_prompt_attend_to_none_of_another() {
        let shape = Shape { prompts: 4.try_into().unwrap(), ..Shape::of(Tokens(4_000), BlockSize::new(16).unwrap()) };
        let cold = Work::cold(&shape);
        // Four times 1 000: each attends to half of itself.
        assert_eq!(cold, Work { tokens: 4.0, pairs: 2.0, further: 3.0, ..Work::default() });
        assert_eq!(Work::sent(&shape, Tokens(4_000), TierBlocks::default()), cold);
        assert_eq!(cold.behind_first(), Work { tokens: 3.0, pairs: 1.5, ..Work::default() });
    }

    #[test]
    fn a_cold_prompt_attends_to_half_of_itself() {
        let shape = Shape::of(Tokens(4_000), BlockSize::new(16).unwrap());
        assert_eq!(Work::cold(&shape), Work { tokens: 4.0, pairs: 8.0, ..Work::default() });
        let quantities = Work::cold(&shape).beside(Decoding { streams: 10.0, context: 0.5 }).quantities();
        assert_eq!(quantities, [1.0, 4.0, 8.0, 0.0, 0.0, 0.0, 15.0, 0.75]);
    }
}
