//! Keeps a request that may have killed two workers from killing more.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use warmpath_core::ids::Slot;
use warmpath_core::retry::Suspects;

use crate::link::Outgoing;

/// The most of a body's beginning, and of its end, that makes its fingerprint: bounds the cost at a few microseconds.
const FINGERPRINT_BYTES: usize = 64 * 1024;

/// What is suspected, at next to no cost while nothing is.
#[derive(Debug)]
pub struct Guard {
    suspects: Mutex<Suspects>,
    count: AtomicUsize,
    /// Seeded by chance: nobody finds two requests with one fingerprint.
    hasher: RandomState,
}

/// By what equal requests are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Guard {
    /// Remembers for so long under which requests workers broke.
    pub fn new(remembered: Duration) -> Self {
        let hasher = RandomState::default();
        Self { suspects: Mutex::new(Suspects::new(remembered)), count: AtomicUsize::new(0), hasher }
    }

    /// The fingerprint of a request: its path and body. O(body), 128 KiB at most.
    pub fn fingerprint(&self, outgoing: &Outgoing) -> Fingerprint {
        let body = &outgoing.body;
        let mut hash = self.hasher.build_hasher();
        hash.write(outgoing.path.as_str().as_bytes());
        hash.write_usize(body.len());
        hash.write(&body[..body.len().min(FINGERPRINT_BYTES)]);
        let rest = &body[body.len().min(FINGERPRINT_BYTES)..];
        hash.write(&rest[rest.len().saturating_sub(FINGERPRINT_BYTES)..]);
        Fingerprint(hash.finish())
    }

    /// Whether any request is suspected. While none is, nobody needs a fingerprint but those under whom a worker may break.
    pub fn suspects_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether workers broke under the request as often as they may. Costs nothing while no request has broken any lately.
    pub fn blocks(&self, outgoing: &Outgoing) -> bool {
        self.suspects_any() && {
            let Fingerprint(request) = self.fingerprint(outgoing);
            let mut suspects = self.lock();
            let is_blocked = suspects.is_blocked(Instant::now(), request);
            self.count.store(suspects.len(), Ordering::Relaxed);
            is_blocked
        }
    }

    /// A worker's connection broke under this request: when it was sent, and when that was.
    pub fn broke(&self, Fingerprint(request): Fingerprint, slot: Slot, (sent, at): (Instant, Instant)) {
        let mut suspects = self.lock();
        suspects.broke((sent, at), request, slot);
        self.count.store(suspects.len(), Ordering::Relaxed);
    }

    /// The request was answered.
    pub fn answered(&self, Fingerprint(request): Fingerprint) {
        if self.suspects_any() {
            let mut suspects = self.lock();
            suspects.answered(request);
            self.count.store(suspects.len(), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Suspects> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::uri::PathAndQuery;
    use http::{HeaderMap, Method};

    use super::*;

    fn outgoing(path: &'static str, body: Vec<u8>) -> Outgoing {
        Outgoing {
            method: Method::POST,
            path: PathAndQuery::from_static(path),
            headers: HeaderMap::new(),
            body: Bytes::from(body),
        }
    }

    #[test]
    fn requests_are_told_apart_by_path_length_beginning_and_end() {
        let guard = Guard::new(Duration::from_secs(60));
        let body = |len: usize, at: usize| {
            let mut body = vec![b'a'; len];
            body[at] = b'b';
            body
        };
        let long = 300_000;
        let different = [
            outgoing("/a", body(10, 0)),
            outgoing("/b", body(10, 0)),
            outgoing("/a", body(11, 0)),
            outgoing("/a", body(10, 9)),
            outgoing("/a", body(long, 0)),
            outgoing("/a", body(long, 65_535)),
            outgoing("/a", body(long, long - 1)),
            outgoing("/a", body(long, long - 65_536)),
        ];
        let prints: std::collections::HashSet<u64> = different.iter().map(|it| guard.fingerprint(it).0).collect();
        assert_eq!(prints.len(), different.len());
        assert_eq!(guard.fingerprint(&different[0]), guard.fingerprint(&outgoing("/a", body(10, 0))));
        assert_ne!(guard.fingerprint(&different[0]), Guard::new(Duration::ZERO).fingerprint(&different[0]));
    }

    #[test]
    fn two_workers_block_a_request_and_an_answer_lets_it_pass() {
        let guard = Guard::new(Duration::from_secs(60));
        let request = outgoing("/a", b"x".to_vec());
        let print = guard.fingerprint(&request);
        let now = (Instant::now(), Instant::now());
        assert!(!guard.suspects_any());
        guard.broke(print, Slot(1), now);
        assert!(guard.suspects_any() && !guard.blocks(&request));
        guard.broke(print, Slot(2), now);
        assert!(guard.blocks(&request) && !guard.blocks(&outgoing("/a", b"y".to_vec())));
        guard.answered(print);
        assert!(!guard.suspects_any() && !guard.blocks(&request));
    }

    #[test]
    fn once_all_is_forgotten_nothing_is_looked_up() {
        let guard = Guard::new(Duration::from_millis(1));
        let request = outgoing("/a", b"x".to_vec());
        guard.broke(guard.fingerprint(&request), Slot(1), (Instant::now(), Instant::now()));
        assert_eq!(guard.count.load(Ordering::Relaxed), 1);
        std::thread::sleep(Duration::from_millis(2));
        assert!(!guard.blocks(&outgoing("/b", Vec::new())));
        assert_eq!(guard.count.load(Ordering::Relaxed), 0);
    }
}
