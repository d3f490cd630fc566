//! A worker's hit rate over the last five minutes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use warmpath_core::count::real;

const BUCKETS: usize = 30;
const BUCKET: Duration = Duration::from_secs(10);

/// Sums of prompt and cached tokens in thirty buckets of ten seconds.
#[derive(Debug)]
pub struct HitRate {
    start: Instant,
    buckets: Mutex<[Bucket; BUCKETS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    prompt: u64,
    cached: u64,
}

impl HitRate {
    /// Nothing seen yet.
    pub fn new(start: Instant) -> Self {
        Self { start, buckets: Mutex::default() }
    }

    /// Takes note of a request.
    pub fn add(&self, now: Instant, prompt: u32, cached: u32) {
        let number = self.number(now);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = &mut buckets[place(number)];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket.prompt += u64::from(prompt);
        bucket.cached += u64::from(cached);
    }

    /// Cached over prompt tokens of the last five minutes; 0 without requests.
    pub fn read(&self, now: Instant) -> f64 {
        let number = self.number(now);
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = buckets.iter().filter(|bucket| bucket.number + 30 > number);
        let (prompt, cached) = recent.fold((0, 0), |sum, bucket| (sum.0 + bucket.prompt, sum.1 + bucket.cached));
        if prompt == 0 { 0.0 } else { real(cached) / real(prompt) }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / BUCKET.as_secs()
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_five_minutes_is_forgotten() {
        let start = Instant::now();
        let rate = HitRate::new(start);
        rate.add(start, 100, 100);
        rate.add(start + Duration::from_secs(100), 100, 0);
        assert!((rate.read(start + Duration::from_secs(200)) - 0.5).abs() < 1e-12);
        assert!(rate.read(start + Duration::from_secs(300)).abs() < 1e-12);
        rate.add(start + Duration::from_secs(300), 100, 50);
        assert!((rate.read(start + Duration::from_secs(300)) - 0.25).abs() < 1e-12);
    }
}
