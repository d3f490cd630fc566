//! A table of fixed size of what was met lately.

/// Places in which a key may lie.
const WAYS: usize = 8;

/// What is known of keys that were met lately: a key lies in one of eight places, where it takes that of the one that was
/// met the longest ago. Times are of any unit and origin. O(1), no allocation after the first.
#[derive(Debug)]
pub(crate) struct Recent<V>(Vec<Bucket<V>>);

/// The places for one key. Its keys are one line of the processor's cache: to say that one is not there takes no other.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket<V> {
    keys: [u64; WAYS],
    /// Minus infinity for an empty place.
    met: [f64; WAYS],
    values: [V; WAYS],
}

/// The same bits for equal keys, well mixed: keys may be anything, even numbers in a row.
pub(crate) fn mixed(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<V: Copy> Recent<V> {
    /// Room for `most` keys, about. What fills it says nothing.
    pub(crate) fn new(most: usize, filler: V) -> Self {
        let empty = Bucket { keys: [0; WAYS], met: [f64::NEG_INFINITY; WAYS], values: [filler; WAYS] };
        Self(vec![empty; most.div_ceil(WAYS).max(1)])
    }

    /// When a key was met last, and what was said of it then.
    pub(crate) fn get(&self, key: u64) -> Option<(f64, V)> {
        let bucket = &self.0[self.bucket(key)];
        bucket.place(key).map(|place| (bucket.met[place], bucket.values[place]))
    }

    /// A key was met at this time, which is finite.
    pub(crate) fn meet(&mut self, key: u64, met: f64, value: V) {
        let bucket = self.bucket(key);
        let bucket = &mut self.0[bucket];
        let oldest = || (0..WAYS).min_by(|a, b| bucket.met[*a].total_cmp(&bucket.met[*b]));
        if let Some(place) = bucket.place(key).or_else(oldest) {
            bucket.keys[place] = key;
            bucket.met[place] = met;
            bucket.values[place] = value;
        }
    }

    /// Forgets every key of which `gone` is true. O(places).
    pub(crate) fn forget(&mut self, gone: impl Fn(V) -> bool) {
        for bucket in &mut self.0 {
            let places = bucket.met.iter_mut().zip(bucket.values).filter(|(_, value)| gone(*value));
            places.for_each(|(met, _)| *met = f64::NEG_INFINITY);
        }
    }

    fn bucket(&self, key: u64) -> usize {
        usize::try_from((mixed(key) >> 16) & 0xffff_ffff).unwrap_or(0) % self.0.len()
    }
}

impl<V> Bucket<V> {
    fn place(&self, key: u64) -> Option<usize> {
        (0..WAYS).find(|place| self.keys[*place] == key && self.met[*place].is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_what_was_said_last() {
        let mut recent = Recent::new(64, ' ');
        assert_eq!(recent.get(0), None);
        recent.meet(0, 1.0, 'a');
        recent.meet(7, 2.0, 'b');
        recent.meet(0, 3.0, 'c');
        assert_eq!([recent.get(0), recent.get(7), recent.get(8)], [Some((3.0, 'c')), Some((2.0, 'b')), None]);
        recent.forget(|value| value == 'c');
        assert_eq!([recent.get(0), recent.get(7)], [None, Some((2.0, 'b'))]);
    }

    #[test]
    fn of_too_many_keys_those_are_forgotten_that_were_met_the_longest_ago() {
        let mut recent = Recent::new(512, ());
        (0..100_000_u32).for_each(|key| recent.meet(u64::from(key), f64::from(key), ()));
        let known = |range: std::ops::Range<u64>| range.filter(|key| recent.get(*key).is_some()).count();
        assert_eq!([known(0..95_000), known(99_990..100_000)], [0, 10]);
        assert!(known(0..100_000) <= 512);
    }
}
