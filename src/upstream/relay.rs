//! The response body on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::progress::{Ending, Progress};
use crate::alarm::Alarm;
use crate::error::{BoxError, error_json};

/// Between what is passed on last and the cut: hyper drops what it has not flushed as soon as a body fails, and flushes
/// while the body has nothing.
const LAST_WORDS: Duration = Duration::from_millis(10);

/// Passes a worker's bytes on as they came. Back-pressure is `poll_frame` itself; dropping it cancels the worker's
/// request and gives back what is reserved.
pub struct Relay<B> {
    inner: B,
    first: Option<Bytes>,
    progress: Progress,
    alarm: Alarm,
    /// Until when the worker may be silent.
    until: Instant,
    idle_timeout: Duration,
    deadline: Instant,
    state: State,
}

enum State {
    Passing,
    /// The error event is out, if it is a stream; the body must not end cleanly, or the client would take it for whole.
    Aborting(Abort),
    Done,
}

/// Why a body is cut.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Abort {
    #[error("the worker closed the stream before its end")]
    Broken,
    #[error("the worker fell silent")]
    Idle,
    #[error("the request took too long")]
    Deadline,
}

impl<B: Body> Relay<B> {
    /// Passes on `first`, which was waited for before anything went to the client, and then `inner`, until it is silent
    /// for `idle_timeout` or `deadline` comes.
    pub fn new(
        first: Option<Bytes>,
        inner: B,
        progress: Progress,
        idle_timeout: Duration,
        deadline: std::time::Instant,
    ) -> Self {
        let deadline = Instant::from_std(deadline);
        let now = Instant::now();
        let until = (now + idle_timeout).min(deadline);
        let alarm = Alarm::default();
        let mut relay = Self { inner, first, progress, alarm, until, idle_timeout, deadline, state: State::Passing };
        relay.end_with_the_last_frame(now);
        relay
    }

    /// The worker gives no more. A stream that is whole ends, with whatever its last event lacks; any other answer is cut.
    fn abort(
        &mut self,
        now: Instant,
        why: Abort,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(missing) = self.progress.finish() {
            self.progress.end(now.into_std(), Ending::Complete);
            self.state = State::Done;
            let missing = Bytes::from_static(missing.as_bytes());
            return Poll::Ready((!missing.is_empty()).then(|| Ok(Frame::data(missing))));
        }
        let ending = match why {
            Abort::Broken => Ending::Broken,
            Abort::Idle => Ending::Silent,
            Abort::Deadline => Ending::Late,
        };
        self.progress.end(now.into_std(), ending);
        self.until = now + LAST_WORDS;
        self.state = State::Aborting(why);
        if !self.progress.is_stream() {
            return self.part(why, cx);
        }
        let code = match why {
            Abort::Broken => "upstream_broken",
            Abort::Idle => "upstream_idle",
            Abort::Deadline => "deadline_exceeded",
        };
        let mut event = b"\n\ndata: ".to_vec();
        event.extend(error_json(&why.to_string(), "upstream_error", None, Some(code)));
        event.extend(b"\n\n");
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }

    /// Cuts the answer once what came before has left.
    fn part(&mut self, why: Abort, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        ready!(self.alarm.poll(self.until, cx));
        self.state = State::Done;
        Poll::Ready(Some(Err(why.into())))
    }

    /// Nobody polls a body again that says that it has ended, or one that never has anything. What a worker does after
    /// `[DONE]` is nothing to wait for.
    fn end_with_the_last_frame(&mut self, now: Instant) {
        if self.is_last() || self.progress.is_closed() {
            self.progress.end(now.into_std(), Ending::Complete);
        }
    }

    /// Whether the deadline has come before the end of the answer.
    fn is_late(&self, now: Instant) -> bool {
        let is_whole = self.progress.is_stream() && self.progress.may_end();
        now >= self.deadline && !is_whole
    }

    fn is_last(&self) -> bool {
        self.first.is_none() && self.inner.is_end_stream() && self.progress.may_end()
    }
}

impl<B> Drop for Relay<B> {
    /// A client that takes nothing is let go at the deadline without another look at the body.
    fn drop(&mut self) {
        let is_whole = self.progress.is_stream() && self.progress.may_end();
        if is_whole || self.progress.has_ended() {
            return;
        }
        let now = Instant::now();
        if now >= self.deadline {
            self.progress.end(now.into_std(), Ending::Late);
        }
    }
}

impl<B> Body for Relay<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match this.state {
            State::Done => return Poll::Ready(None),
            State::Aborting(why) => return this.part(why, cx),
            State::Passing => {}
        }
        if let Some(first) = this.first.take() {
            let now = Instant::now();
            this.progress.on_data(now.into_std(), &first);
            this.end_with_the_last_frame(now);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            ready!(this.alarm.poll(this.until, cx));
            let now = Instant::now();
            let late = now >= this.deadline;
            return this.abort(now, if late { Abort::Deadline } else { Abort::Idle }, cx);
        };
        let now = Instant::now();
        match frame {
            // A client that is slow enough leaves always something to pass on.
            Some(Ok(_)) if this.is_late(now) => this.abort(now, Abort::Deadline, cx),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.progress.on_data(now.into_std(), data);
                }
                this.end_with_the_last_frame(now);
                this.until = (now + this.idle_timeout).min(this.deadline);
                Poll::Ready(Some(Ok(frame)))
            }
            None if !this.progress.is_stream() || this.progress.finish().is_some() => {
                this.progress.end(now.into_std(), Ending::Complete);
                this.state = State::Done;
                Poll::Ready(None)
            }
            Some(Err(_)) | None => this.abort(now, Abort::Broken, cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            State::Passing => self.is_last(),
            State::Aborting(_) => false,
            State::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.progress.is_stream() {
            return SizeHint::default();
        }
        let first = self.first.as_ref().map_or(0, |first| u64::try_from(first.len()).unwrap_or(u64::MAX));
        match self.inner.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + first),
            None => SizeHint::default(),
        }
    }
}
