//! Real numbers that are numbers, one or four at once: what is asked of every worker for every request is computed for four of
//! them by the instructions of one.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

use wide::{f64x4, i32x4};

/// Four numbers.
pub(crate) type Four = f64x4;

/// How many they are.
pub(crate) const FOUR: usize = 4;

/// A number, or several that are computed alike. None of them is NaN where it matters.
pub trait Number:
    Copy + Debug + Default + 'static + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// What there is one of for each number.
    type Each<T: Copy>: Copy;

    /// The same number for each.
    fn all(value: f64) -> Self;

    /// One that each of these tells.
    fn of<T: Copy>(each: &Self::Each<T>, tell: impl Fn(T) -> f64) -> Self;

    /// The same of what is counted; of 2³¹ and more, as many as are below it.
    fn count<T: Copy>(each: &Self::Each<T>, tell: impl Fn(T) -> u32) -> Self;

    /// Four that each of these has, one after the other.
    fn turned(each: &Self::Each<&[f64; FOUR]>) -> [Self; FOUR];

    /// What another is told by each.
    fn map<T: Copy, U: Copy>(each: &Self::Each<T>, other: impl Fn(T) -> U) -> Self::Each<U>;

    /// Where each stands.
    fn refs<T: Copy>(each: &Self::Each<T>) -> Self::Each<&T>;

    /// Whether it is so of any.
    fn any<T: Copy>(each: &Self::Each<T>, is: impl Fn(T) -> bool) -> bool;

    /// The larger of the two; of NaN and a number, the second.
    fn larger(self, other: Self) -> Self;

    /// The smaller of the two; of NaN and a number, the second.
    fn smaller(self, other: Self) -> Self;

    /// `then` where it is larger than the other, else `or`.
    fn if_above(self, other: Self, then: Self, or: Self) -> Self;

    /// All of them.
    fn numbers(&self) -> &[f64];

    /// What it is where this is larger than nothing, else nothing.
    #[inline(always)]
    fn if_positive(self, then: Self) -> Self {
        self.if_above(Self::all(0.0), then, Self::all(0.0))
    }
}

impl Number for f64 {
    type Each<T: Copy> = T;

    #[inline(always)]
    fn all(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn of<T: Copy>(each: &T, tell: impl Fn(T) -> f64) -> Self {
        tell(*each)
    }

    #[inline(always)]
    fn count<T: Copy>(each: &T, tell: impl Fn(T) -> u32) -> Self {
        f64::from(tell(*each).min(i32::MAX.cast_unsigned()))
    }

    #[inline(always)]
    fn turned(each: &&[f64; FOUR]) -> [Self; FOUR] {
        **each
    }

    #[inline(always)]
    fn map<T: Copy, U: Copy>(each: &T, other: impl Fn(T) -> U) -> U {
        other(*each)
    }

    #[inline(always)]
    fn refs<T: Copy>(each: &T) -> &T {
        each
    }

    #[inline(always)]
    fn any<T: Copy>(each: &T, is: impl Fn(T) -> bool) -> bool {
        is(*each)
    }

    /// In one instruction. `f64::max` takes four, to pass over NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other { self } else { other }
    }

    #[inline(always)]
    fn if_above(self, other: Self, then: Self, or: Self) -> Self {
        if self > other { then } else { or }
    }

    #[inline(always)]
    fn numbers(&self) -> &[f64] {
        std::slice::from_ref(self)
    }
}

impl Number for Four {
    type Each<T: Copy> = [T; FOUR];

    #[inline(always)]
    fn all(value: f64) -> Self {
        Self::splat(value)
    }

    #[inline(always)]
    fn of<T: Copy>(each: &[T; FOUR], tell: impl Fn(T) -> f64) -> Self {
        Self::new([tell(each[0]), tell(each[1]), tell(each[2]), tell(each[3])])
    }

    #[inline(always)]
    fn count<T: Copy>(each: &[T; FOUR], tell: impl Fn(T) -> u32) -> Self {
        let tell = |at: usize| tell(each[at]).min(i32::MAX.cast_unsigned()).cast_signed();
        Self::from(i32x4::new([tell(0), tell(1), tell(2), tell(3)]))
    }

    #[inline(always)]
    fn turned(each: &[&[f64; FOUR]; FOUR]) -> [Self; FOUR] {
        Self::transpose([Self::new(*each[0]), Self::new(*each[1]), Self::new(*each[2]), Self::new(*each[3])])
    }

    #[inline(always)]
    fn map<T: Copy, U: Copy>(each: &[T; FOUR], other: impl Fn(T) -> U) -> [U; FOUR] {
        [other(each[0]), other(each[1]), other(each[2]), other(each[3])]
    }

    #[inline(always)]
    fn refs<T: Copy>(each: &[T; FOUR]) -> [&T; FOUR] {
        each.each_ref()
    }

    #[inline(always)]
    fn any<T: Copy>(each: &[T; FOUR], is: impl Fn(T) -> bool) -> bool {
        is(each[0]) | is(each[1]) | is(each[2]) | is(each[3])
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.fast_max(other)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.fast_min(other)
    }

    #[inline(always)]
    fn if_above(self, other: Self, then: Self, or: Self) -> Self {
        self.simd_gt(other).select(then, or)
    }

    #[inline(always)]
    fn numbers(&self) -> &[f64] {
        self.as_array()
    }
}

/// The larger of the two; of NaN and a number, the second.
#[inline(always)]
pub(crate) fn larger<N: Number>(a: N, b: N) -> N {
    a.larger(b)
}

/// The smaller of the two; of NaN and a number, the second.
#[inline(always)]
pub(crate) fn smaller<N: Number>(a: N, b: N) -> N {
    a.smaller(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_is_chosen() {
        let both = |a, b| (smaller(a, b), larger(a, b));
        assert_eq!([both(1.0, 2.0), both(2.0, 1.0)], [(1.0, 2.0); 2]);
        assert_eq!(both(-1.0, f64::INFINITY), (-1.0, f64::INFINITY));
        assert_eq!(both(f64::NAN, 3.0), (3.0, 3.0));
    }

    #[test]
    fn four_are_each_like_one() {
        const OF: [f64; FOUR] = [-1.5, 0.0, 2.0, f64::INFINITY];
        const TO: [f64; FOUR] = [1.0, 0.0, -3.0, 7.0];
        type Binary<N> = fn(N, N) -> N;
        fn all<N: Number>() -> [Binary<N>; 8] {
            [
                |a, b| a + b,
                |a, b| a - b,
                |a, b| a * b,
                |a, b| a / (b + N::all(9.0)),
                N::larger,
                N::smaller,
                |a, b| a.if_above(b, b * b, N::all(4.0)),
                |a, b| a.if_positive(b),
            ]
        }
        for (one, four) in all::<f64>().into_iter().zip(all::<Four>()) {
            let each = four(Four::new(OF), Four::new(TO));
            let told = [0, 1, 2, 3].map(|at| one(OF[at], TO[at]));
            assert_eq!(each.numbers(), told);
        }
    }

    #[test]
    fn each_tells_its_own() {
        let each = [3_u32, 5, 0, 2_147_483_647];
        assert_eq!(Four::count(&each, |it| it).numbers(), [3.0, 5.0, 0.0, 2_147_483_647.0]);
        assert_eq!(
            Four::count(&[u32::MAX, 1 << 31, 7, 1], |it| it).numbers(),
            [2_147_483_647.0, 2_147_483_647.0, 7.0, 1.0]
        );
        assert_eq!(Four::of(&each, |it| f64::from(it) / 2.0).numbers(), [1.5, 2.5, 0.0, 1_073_741_823.5]);
        let rows = [0.0, 10.0, 20.0, 30.0].map(|row| [row, row + 1.0, row + 2.0, row + 3.0]);
        let turned = [0.0, 1.0, 2.0, 3.0].map(|at| Four::new([at, at + 10.0, at + 20.0, at + 30.0]));
        assert_eq!((Four::turned(&rows.each_ref()), f64::turned(&&rows[1])), (turned, rows[1]));
        assert_eq!(Four::map(&each, |it| it > 2), [true, true, false, true]);
        assert_eq!(
            [<Four as Number>::any(&each, |it| it == 5), <Four as Number>::any(&each, |it| it == 6)],
            [true, false]
        );
        assert_eq!((f64::count(&7, |it| it), f64::of(&7, f64::from), f64::any(&7, |it| it == 7)), (7.0, 7.0, true));
        assert_eq!((Four::refs(&each), f64::refs(&7)), (each.each_ref(), &7));
        assert_eq!((<Four as Number>::all(2.0).numbers(), 2.0_f64.numbers()), (&[2.0; FOUR][..], &[2.0][..]));
    }
}
