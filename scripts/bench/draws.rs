//! Chance that every run and every process draws alike.

/// The mixing step of splitmix64: the first output of the generator whose state is `x`. A bijection.
pub(crate) fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The generator splitmix64, whose state counts up by a constant.
pub(crate) struct Draws(u64);

impl Draws {
    /// A generator started at `seed`, far from those of neighbouring seeds.
    pub(crate) fn started_at(seed: u64) -> Self {
        Self(splitmix64(seed))
    }

    /// The next draw.
    pub(crate) fn draw(&mut self) -> u64 {
        let drawn = splitmix64(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        drawn
    }

    /// The next draw modulo `count`, which is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).expect("64 bits hold a count");
        usize::try_from(self.draw() % count).expect("smaller than `count`")
    }

    /// A token id of a vocabulary of 150 000.
    pub(crate) fn token(&mut self) -> u32 {
        u32::try_from(self.draw() % 150_000).expect("a small number")
    }
}
