//! What one worker was sent in the last three minutes, and how fast it answers.

use super::super::real;

/// Seconds that count.
const SECONDS: usize = 180;

/// Gaps whose median is taken.
const GAPS: usize = 200;

/// Tokens that a window holds at most: whole numbers up to here are exact as real ones.
const TOKENS_MAX: f64 = 9_007_199_254_740_992.0;

/// The tokens of the requests that were sent lately, by the second, with their sums; and the last gaps. Of fixed size. What
/// is asked for every candidate of every request lies together.
#[derive(Debug)]
pub(super) struct Window {
    /// The second of the newest entry, from some beginning.
    newest: u64,
    /// Tokens to compute, tokens to answer.
    sums: (f64, f64),
    /// The median of the last gaps.
    gap: Option<f64>,
    /// By second modulo [`SECONDS`]: tokens to compute, tokens to answer.
    seconds: Box<[(f64, f64)]>,
    gaps: Box<Gaps>,
}

/// The last gaps.
#[derive(Debug)]
struct Gaps {
    /// In the order in which they came, the oldest at `next` once there are [`GAPS`].
    came: Vec<f64>,
    next: usize,
    /// The same, ascending.
    sorted: Vec<f64>,
}

impl Default for Window {
    fn default() -> Self {
        let gaps = Gaps { came: Vec::with_capacity(GAPS), next: 0, sorted: Vec::with_capacity(GAPS) };
        let seconds = vec![(0.0, 0.0); SECONDS].into_boxed_slice();
        Self { newest: 0, sums: (0.0, 0.0), gap: None, seconds, gaps: Box::new(gaps) }
    }
}

impl Window {
    fn place(second: u64) -> usize {
        usize::try_from(second % 180).unwrap_or(0)
    }

    /// Lets go of what is older than the window that ends with this second.
    #[inline]
    fn advance(&mut self, second: u64) {
        if second > self.newest {
            self.let_go(second);
        }
    }

    #[cold]
    fn let_go(&mut self, second: u64) {
        for gone in (self.newest + 1..=second).take(SECONDS) {
            let (tokens, output) = std::mem::take(&mut self.seconds[Self::place(gone)]);
            self.sums.0 -= tokens;
            self.sums.1 -= output;
        }
        self.newest = second;
    }

    /// A request was sent. What comes late counts as of the newest second.
    pub(super) fn add(&mut self, second: u64, tokens: u64, output: u64) {
        self.advance(second);
        let of_second = &mut self.seconds[Self::place(self.newest)];
        for (held, sum, more) in
            [(&mut of_second.0, &mut self.sums.0, tokens), (&mut of_second.1, &mut self.sums.1, output)]
        {
            let more = real(more);
            // Both or neither: the sum is that of all seconds.
            if *sum + more < TOKENS_MAX {
                (*held, *sum) = (*held + more, *sum + more);
            }
        }
    }

    /// Tokens to compute and to answer in the window that ends with this second. O(seconds since the last time).
    pub(super) fn sums(&mut self, second: u64) -> (f64, f64) {
        self.advance(second);
        self.sums
    }

    /// A request had this gap between its tokens; `prior` is what was taken for granted before the first.
    pub(super) fn add_gap(&mut self, prior: f64, gap: f64) {
        if self.gap.is_none() {
            self.gaps.push(prior);
        }
        self.gaps.push(gap);
        self.gap = self.gaps.median();
    }

    /// The median of the last gaps; none before the first.
    pub(super) fn gap(&self) -> Option<f64> {
        self.gap
    }
}

impl Gaps {
    fn push(&mut self, gap: f64) {
        if self.came.len() == GAPS {
            let oldest = std::mem::replace(&mut self.came[self.next], gap);
            let at = self.sorted.partition_point(|held| held.total_cmp(&oldest).is_lt());
            self.sorted.remove(at.min(GAPS - 1));
        } else {
            self.came.push(gap);
        }
        self.next = (self.next + 1) % GAPS;
        let at = self.sorted.partition_point(|held| held.total_cmp(&gap).is_lt());
        self.sorted.insert(at, gap);
    }

    fn median(&self) -> Option<f64> {
        let upper = *self.sorted.get(self.sorted.len() / 2)?;
        let lower = *self.sorted.get((self.sorted.len() - 1) / 2)?;
        Some(f64::midpoint(lower, upper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_last_200_gaps() {
        let mut window = Window::default();
        assert_eq!(window.gap(), None);
        window.add_gap(150.0, 50.0);
        assert_eq!(window.gap(), Some(100.0));
        // 150, 50 and 1 to 198: the 100th and 101st are 99 and 100, since 50 is there twice.
        (1..=198).for_each(|gap| window.add_gap(150.0, f64::from(gap)));
        assert_eq!((window.gap(), window.gaps.came.len()), (Some(99.5), 200));
        // 150 goes, 500 comes.
        window.add_gap(150.0, 500.0);
        assert_eq!((window.gap(), window.gaps.sorted.len()), (Some(99.5), 200));
        (0..200).for_each(|_| window.add_gap(150.0, 7.0));
        assert_eq!(window.gap(), Some(7.0));
    }

    #[test]
    fn what_comes_late_counts_as_of_now() {
        let mut window = Window::default();
        window.add(100, 5, 1);
        window.add(99, 7, 1);
        assert_eq!((window.sums(100), window.sums(279), window.sums(280)), ((12.0, 2.0), (12.0, 2.0), (0.0, 0.0)));
    }
}
