//! A message that has begun and is not whole yet: how long it may take, and how much all such may take together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::frame::Breach;

/// From its first byte to its last a message has so long: the largest at a megabyte a second.
pub(super) const WHOLE_WITHIN: Duration = Duration::from_secs(30);

/// Bytes of a begun message that each connection may have: most messages come as they are.
const OWN: usize = 64 << 10;

/// What begun messages of all connections to one place take beyond that, in bytes: eight of the largest.
const SHARED: usize = 256 << 20;

/// What begun messages may take together.
#[derive(Clone, Debug)]
pub(super) struct Allowance(Arc<Semaphore>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SHARED)))
    }
}

/// What has come of a message that is not whole.
#[derive(Debug)]
pub(super) struct Unfinished {
    allowance: Allowance,
    taken: Option<OwnedSemaphorePermit>,
    since: Option<Instant>,
}

impl Unfinished {
    /// Nothing, of what may take so much together with others.
    pub(super) fn of(allowance: Allowance) -> Self {
        Self { allowance, taken: None, since: None }
    }

    /// So many bytes have come of it: until when the rest has to, if it has begun.
    ///
    /// # Errors
    /// All such are too large together.
    pub(super) fn lasts_until(&mut self, bytes: usize) -> Result<Option<Instant>, Breach> {
        if bytes == 0 {
            return Ok(None);
        }
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if let Some(more) = bytes.saturating_sub(OWN + taken).try_into().ok().filter(|more| *more > 0) {
            let more = Arc::clone(&self.allowance.0).try_acquire_many_owned(more).map_err(|_| Breach::TooMuch)?;
            match &mut self.taken {
                Some(taken) => taken.merge(more),
                taken => *taken = Some(more),
            }
        }
        Ok(Some(*self.since.get_or_insert_with(Instant::now) + WHOLE_WITHIN))
    }

    /// It is whole.
    pub(super) fn end(&mut self) {
        (self.taken, self.since) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::super::frame::Decoder;
    use super::super::{LinkError, Reader, Traffic};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_has_its_time_from_its_first_byte() {
        let mut unfinished = Unfinished::of(Allowance::default());
        assert_eq!(unfinished.lasts_until(0), Ok(None));
        let until = Instant::now() + WHOLE_WITHIN;
        assert_eq!(unfinished.lasts_until(1), Ok(Some(until)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(unfinished.lasts_until(OWN), Ok(Some(until)));
        unfinished.end();
        assert_eq!(unfinished.lasts_until(1), Ok(Some(Instant::now() + WHOLE_WITHIN)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_so_long_for_the_rest_of_a_message() {
        let (mut peer, input) = tokio::io::duplex(64);
        let unfinished = Unfinished::of(Allowance::default());
        let decoder = Decoder::default();
        let mut reader = Reader { input: Box::new(input), buffer: BytesMut::new(), decoder, unfinished };
        peer.write_all(&[0, 1, b'a', 1, 1, b'b', 0, 5, b'c']).await.unwrap();
        assert!(matches!(reader.next().await, Ok(Traffic::Message(frames)) if frames == ["a"]));
        let begun = Instant::now();
        // Whoever looks again waits no longer for it.
        assert!(timeout(Duration::from_secs(10), reader.next()).await.is_err());
        assert!(matches!(reader.next().await, Err(LinkError::Slow(WHOLE_WITHIN))));
        assert_eq!(begun.elapsed(), WHOLE_WITHIN);
    }

    #[tokio::test]
    async fn all_together_have_a_bound_beyond_what_each_may_have() {
        let allowance = Allowance::default();
        let [mut first, mut second, mut third] = [(); 3].map(|()| Unfinished::of(allowance.clone()));
        for bytes in [OWN + 1, OWN + SHARED / 2, OWN + SHARED - 1] {
            assert!(first.lasts_until(bytes).is_ok());
        }
        assert!(second.lasts_until(OWN + 1).is_ok() && third.lasts_until(OWN).is_ok());
        assert_eq!([second.lasts_until(OWN + 2), third.lasts_until(OWN + 1)], [Err(Breach::TooMuch); 2]);
        first.end();
        assert!(second.lasts_until(OWN + 2).is_ok());
        drop(second);
        assert!(third.lasts_until(OWN + SHARED).is_ok());
    }
}
