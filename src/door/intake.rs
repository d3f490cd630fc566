//! A request's body: read whole, within its bounds, and no slower than they allow.

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::gathered::Gathered;
use crate::alarm::in_time;
use crate::room::Room;

/// Before a body must be as fast as it should: connections start slowly.
const START: Duration = Duration::from_secs(5);

/// Room that a length in a head is trusted for; beyond it memory follows what has come.
const TRUSTED: usize = 256 * 1024;

/// Bounds on bodies.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    /// Bytes.
    pub bytes_max: u64,
    /// Time for all of it.
    pub timeout: Duration,
    /// Bytes in a second, on average, after the first five.
    pub bytes_per_second: u64,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntakeFault {
    /// It is larger than it may be. Known before anything is read where its head says so.
    TooLarge,
    /// There is no room for it beside those of other requests.
    NoRoom,
    /// It took longer than it may.
    TooSlow,
    /// It broke off, or was framed badly.
    Broken,
}

/// All of `body`, whose request came at `since`, which takes what memory it needs out of `room` until its last copy is dropped. One that comes in one piece
/// is not copied.
///
/// # Errors
/// Its client's fault, or there is no room; the rest is left unread.
pub async fn read_whole<B>(mut body: B, since: Instant, intake: &Intake, room: &Room) -> Result<Bytes, IntakeFault>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    if announced > intake.bytes_max {
        return Err(IntakeFault::TooLarge);
    }
    if !room.has(announced) {
        return Err(IntakeFault::NoRoom);
    }
    let mut held = room.hold();
    let mut first = Bytes::new();
    let mut whole = Gathered::new();
    let mut len = 0;
    // One whose length was announced says itself that it has ended.
    while !body.is_end_stream() {
        let frame = in_time(since + intake.allowed(len), body.frame()).await.ok_or(IntakeFault::TooSlow)?;
        let Some(frame) = frame else { break };
        // Trailers are not for workers.
        let Ok(data) = frame.map_err(|_| IntakeFault::Broken)?.into_data() else { continue };
        len += u64::try_from(data.len()).unwrap_or(u64::MAX);
        if len > intake.bytes_max {
            return Err(IntakeFault::TooLarge);
        }
        if whole.len() == 0 && first.is_empty() {
            first = data;
            if !held.grow_to(first.len()) {
                return Err(IntakeFault::NoRoom);
            }
            continue;
        }
        let begun = whole.len().max(first.len());
        if begun + data.len() > whole.capacity() {
            let capacity = capacity(begun, data.len(), announced);
            if !held.grow_to(capacity) {
                return Err(IntakeFault::NoRoom);
            }
            whole.grow_to(capacity).map_err(|_| IntakeFault::NoRoom)?;
        }
        whole.push(&std::mem::take(&mut first));
        whole.push(&data);
    }
    Ok(held.keep(if whole.len() == 0 { first } else { whole.whole() }))
}

/// Room for `more` bytes behind `begun`, so that a long body is seldom moved: twice as much as there is, but no more than
/// was announced.
fn capacity(begun: usize, more: usize, announced: u64) -> usize {
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let doubled = begun.saturating_mul(2);
    let wanted = if announced > 0 { doubled.max(TRUSTED).min(announced) } else { doubled };
    wanted.max(begun + more)
}

impl Intake {
    /// How long a body may have taken of which so many bytes have come.
    fn allowed(&self, len: u64) -> Duration {
        let seconds = len.checked_div(self.bytes_per_second).unwrap_or(0);
        self.timeout.min(START.saturating_add(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    const INTAKE: Intake = Intake { bytes_max: 10_000, timeout: Duration::from_secs(30), bytes_per_second: 100 };

    /// Pieces of so many bytes, each after a pause.
    fn body(pieces: usize, bytes: usize, pause: Duration) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(Box::pin(futures_util::stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok(Frame::data(Bytes::from(vec![b'x'; bytes])))
        })))
    }

    async fn read(pieces: usize, bytes: usize, pause: Duration) -> Result<usize, IntakeFault> {
        read_whole(body(pieces, bytes, pause), Instant::now(), &INTAKE, &Room::new(1 << 20))
            .await
            .map(|body| body.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_within_its_bounds_is_read() {
        for (pieces, bytes) in [(0, 0), (1, 1), (2, 5_000), (10_000, 1), (3, 0)] {
            assert_eq!(read(pieces, bytes, Duration::ZERO).await, Ok(pieces * bytes));
        }
        let bytes = Bytes::from_static(b"all at once");
        let whole = read_whole(Full::new(bytes.clone()), Instant::now(), &INTAKE, &Room::new(11)).await.unwrap();
        assert_eq!((whole.as_ptr(), whole.len()), (bytes.as_ptr(), bytes.len()), "it is not copied");
    }

    #[tokio::test(start_paused = true)]
    async fn one_byte_too_many_is_too_large() {
        assert_eq!(read(10_001, 1, Duration::ZERO).await, Err(IntakeFault::TooLarge));
        let announced = Full::new(Bytes::from(vec![0; 10_001]));
        assert_eq!(
            read_whole(announced, Instant::now(), &INTAKE, &Room::new(1 << 20)).await,
            Err(IntakeFault::TooLarge)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_keep_its_pace_and_end_in_time() {
        let start = Instant::now();
        assert_eq!(read(20, 100, Duration::from_secs(1)).await, Ok(2_000));
        assert_eq!(start.elapsed(), Duration::from_secs(20));
        let start = Instant::now();
        assert_eq!(read(20, 10, Duration::from_secs(1)).await, Err(IntakeFault::TooSlow));
        assert_eq!(start.elapsed(), START);
        let start = Instant::now();
        assert_eq!(read(50, 200, Duration::from_secs(1)).await, Err(IntakeFault::TooSlow));
        assert_eq!(start.elapsed(), INTAKE.timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_room_is_not_read_on_and_gives_back_what_it_had() {
        let room = Room::new(700);
        let read = |pieces, bytes| read_whole(body(pieces, bytes, Duration::ZERO), Instant::now(), &INTAKE, &room);
        let held = [read(2, 100).await.unwrap(), read(2, 100).await.unwrap(), read(2, 100).await.unwrap()];
        assert!(room.has(100) && !room.has(101));
        assert_eq!(read(2, 100).await, Err(IntakeFault::NoRoom));
        assert!(room.has(100), "what had come of it is let go");
        let announced = Full::new(Bytes::from(vec![0; 9_999]));
        assert!(read_whole(announced, Instant::now(), &INTAKE, &Room::new(9_999)).await.is_ok());
        let announced = Full::new(Bytes::from(vec![0; 9_999]));
        assert_eq!(read_whole(announced, Instant::now(), &INTAKE, &Room::new(9_998)).await, Err(IntakeFault::NoRoom));
        drop(held);
        assert!(room.has(700));
    }
}
