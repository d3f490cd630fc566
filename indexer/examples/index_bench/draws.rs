//! Chance that every run and every other program draws alike, and the few conversions of numbers that measuring needs.

/// The mixing step of splitmix64: the first output of the generator whose state is `x`. A bijection.
pub(crate) fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The generator splitmix64, whose state counts up by a constant.
pub(crate) struct Counter(u64);

impl Counter {
    /// A counter started at `seed`.
    pub(crate) fn started_at(seed: u64) -> Self {
        Self(seed)
    }

    /// The next draw.
    pub(crate) fn draw(&mut self) -> u64 {
        let drawn = splitmix64(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        drawn
    }

    /// The next draw modulo `count`, which is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.draw() % wide(count)).expect("smaller than `count`")
    }
}

/// A count as 64 bits.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("64 bits hold a count")
}

/// A 32-bit count as an index.
pub(crate) fn index(count: u32) -> usize {
    usize::try_from(count).expect("an index has 32 bits at least")
}

/// A count as a real number; exact below 2^53.
pub(crate) fn real(count: u64) -> f64 {
    let high = u32::try_from(count >> 32).expect("the upper half");
    let low = u32::try_from(count & 0xffff_ffff).expect("the lower half");
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published first outputs for the seed 1234567.
    #[test]
    fn the_counter_is_splitmix64() {
        let mut counter = Counter::started_at(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| counter.draw()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn counts_become_real_numbers_exactly() {
        assert_eq!(real(0), 0.0);
        assert_eq!(real((1 << 52) + 1), 4_503_599_627_370_497.0);
    }
}
