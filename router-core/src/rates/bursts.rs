//! How large bursts are that follow others, by what followed those before.

/// Generations of forks, and bursts at one fork, that are told apart; those beyond count as the last.
const APART: usize = 8;

/// Bursts as which it weighs that nothing is believed to follow.
const BELIEF: f64 = 4.0;

/// Bursts of a kind that are remembered, about.
const REMEMBERED: f64 = 256.0;

/// Which burst it is, out of those that are alike: of how many forks its own is behind, and how many came at this one so far,
/// itself included. A tree whose thoughts branch twice has bursts of generations 0 and 1, two at each fork.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) generation: u8,
    pub(super) number: u8,
}

/// For each place what came of the bursts there.
#[derive(Debug, Default)]
pub(super) struct Bursts([[Followed; APART]; APART]);

/// Bursts of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    bursts: f64,
    /// In the bursts that followed them.
    pairs: f64,
}

impl Bursts {
    /// One more came in this burst, with so many before. O(1).
    pub(super) fn add(&mut self, place: Place, before: u32) {
        if before == 0 {
            self.followed(place).open();
        } else if place.number > 1 {
            self.followed(Place { number: place.number - 1, ..place }).pairs += f64::from(before);
        }
    }

    /// Pairs of those who will come at once in the burst that follows this one: of `n` these are `n·(n − 1)/2`, on average.
    pub(super) fn pairs_after(&self, place: Place) -> f64 {
        let Followed { bursts, pairs } = self.0[at(place.generation)][at(place.number.saturating_sub(1))];
        pairs / (bursts + BELIEF)
    }

    fn followed(&mut self, Place { generation, number }: Place) -> &mut Followed {
        &mut self.0[at(generation)][at(number.saturating_sub(1))]
    }
}

fn at(count: u8) -> usize {
    usize::from(count).min(APART - 1)
}

impl Followed {
    /// Old ones count less where there are many.
    fn open(&mut self) {
        if self.bursts >= REMEMBERED {
            self.bursts /= 2.0;
            self.pairs /= 2.0;
        }
        self.bursts += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(generation: u8, number: u8) -> Place {
        Place { generation, number }
    }

    fn come(bursts: &mut Bursts, place: Place, size: u32) {
        (0..size).for_each(|before| bursts.add(place, before));
    }

    #[test]
    fn what_followed_before_will_follow_again() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.pairs_after(place(0, 1)), 0.0);
        // After every burst of three one of nine, where it is the first, and none after that.
        for _ in 0..12 {
            come(&mut bursts, place(0, 1), 3);
            come(&mut bursts, place(0, 2), 9);
        }
        // 36 pairs, by twelve of sixteen.
        assert_eq!([(0, 1), (0, 2), (1, 1)].map(|(g, n)| bursts.pairs_after(place(g, n))), [27.0, 0.0, 0.0]);
        // Who comes alone waits for nobody.
        (0..12).for_each(|_| come(&mut bursts, place(2, 1), 1));
        (0..12).for_each(|_| come(&mut bursts, place(2, 2), 1));
        assert_eq!(bursts.pairs_after(place(2, 1)), 0.0);
    }

    #[test]
    fn what_is_long_ago_counts_less_and_what_is_beyond_counts_as_the_last() {
        let mut bursts = Bursts::default();
        let mut after = |rounds, size| {
            for _ in 0..rounds {
                come(&mut bursts, place(200, 1), 2);
                come(&mut bursts, place(200, 2), size);
            }
            bursts.pairs_after(place(100, 1))
        };
        let before = after(10_000, 5);
        assert!((9.5..10.0).contains(&before), "{before}");
        let since = after(1_000, 1);
        assert!(since < 0.7, "{since}");
        (1..=255).for_each(|number| come(&mut bursts, place(0, number), 2));
        assert!((0.9..1.0).contains(&bursts.pairs_after(place(0, 255))), "{bursts:?}");
    }
}
