//! The response body on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::progress::{Ending, Progress};
use super::tail::Tail;
use crate::alarm::Alarm;
use crate::error::{BoxError, error_json};

/// Passes a worker's bytes on as they came. Back-pressure is `poll_frame` itself; dropping it cancels the worker's
/// request and gives back what is reserved.
pub struct Relay<B> {
    inner: B,
    first: Option<Bytes>,
    tail: Tail,
    progress: Progress,
    alarm: Alarm,
    /// Until when the worker may be silent.
    until: Instant,
    idle_timeout: Duration,
    deadline: Instant,
    state: State,
}

/// How long a worker may take to end its answer behind `[DONE]`: its last chunk comes with that or right after, unless it is
/// very busy. Whoever takes longer is left, and its connection with it.
const CLOSING_MAX: Duration = Duration::from_secs(1);

enum State {
    Passing,
    /// All has come that the client waits for, and nothing moves `until` any more.
    Closing,
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
        let (tail, state) = (Tail::default(), State::Passing);
        let mut relay = Self { inner, first, tail, progress, alarm, until, idle_timeout, deadline, state };
        relay.end_with_the_last_frame(now);
        relay
    }

    /// The worker gives no more. A stream that is whole ends, with whatever its last event lacks; any other answer is cut.
    fn abort(&mut self, now: Instant, why: Abort) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(missing) = self.progress.finish() {
            self.progress.end(now.into_std(), Ending::Complete);
            self.state = State::Done;
            let last = [&self.tail.take(), missing.as_bytes()].concat();
            return Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last.into()))));
        }
        let ending = match why {
            Abort::Broken => Ending::Broken,
            Abort::Idle => Ending::Silent,
            Abort::Deadline => Ending::Late,
        };
        self.progress.end(now.into_std(), ending);
        if !self.progress.is_stream() {
            return self.part(why);
        }
        self.state = State::Aborting(why);
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

    /// Cuts the answer. That what came before leaves first is for whoever sends it.
    fn part(&mut self, why: Abort) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.state = State::Done;
        Poll::Ready(Some(Err(why.into())))
    }

    /// What may pass now of what has come, which may be nothing.
    fn pass(&mut self, now: Instant, data: Bytes) -> Bytes {
        let whole = self.progress.on_data(now.into_std(), &data);
        // Behind the last frame of an answer that is whole nothing is to be waited for.
        let whole = if self.has_come_whole() { data.len() } else { whole };
        self.tail.pass(data, whole)
    }

    /// Nobody polls a body again that says that it has ended, or one that never has anything. What a worker does after
    /// `[DONE]` is nothing to wait for.
    fn end_with_the_last_frame(&mut self, now: Instant) {
        let is_closed = self.progress.is_closed();
        if self.is_last() || is_closed {
            self.progress.end(now.into_std(), Ending::Complete);
        }
        if is_closed && matches!(self.state, State::Passing) {
            (self.state, self.until) = (State::Closing, self.until.min(now + CLOSING_MAX));
        }
    }

    /// Whether the time is over in which something may still come.
    fn is_over(&self, now: Instant) -> bool {
        match self.state {
            State::Closing => now >= self.until,
            _ => self.is_late(now),
        }
    }

    /// Whether the deadline has come before the end of the answer.
    fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline && !self.progress.is_whole_stream()
    }

    fn is_last(&self) -> bool {
        self.tail.is_empty() && self.has_come_whole()
    }

    fn has_come_whole(&self) -> bool {
        self.first.is_none() && self.inner.is_end_stream() && self.progress.may_end()
    }
}

impl<B> Drop for Relay<B> {
    /// A client that takes nothing is let go at the deadline without another look at the body.
    fn drop(&mut self) {
        if self.progress.is_whole_stream() || self.progress.has_ended() {
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
            State::Aborting(why) => return this.part(why),
            State::Passing | State::Closing => {}
        }
        if let Some(first) = this.first.take() {
            let now = Instant::now();
            let passed = this.pass(now, first);
            this.end_with_the_last_frame(now);
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
        loop {
            let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
                ready!(this.alarm.poll(this.until, cx));
                let now = Instant::now();
                let late = now >= this.deadline;
                return this.abort(now, if late { Abort::Deadline } else { Abort::Idle });
            };
            let now = Instant::now();
            match frame {
                // A client that is slow enough leaves always something to pass on.
                Some(Ok(_)) if this.is_over(now) => return this.abort(now, Abort::Deadline),
                Some(Ok(frame)) => {
                    if matches!(this.state, State::Passing) {
                        this.until = (now + this.idle_timeout).min(this.deadline);
                    }
                    let passed = match frame.into_data() {
                        Ok(data) => Frame::data(this.pass(now, data)),
                        Err(other) => other,
                    };
                    this.end_with_the_last_frame(now);
                    // Nothing but data can follow what is held.
                    if passed.data_ref().map_or(this.tail.is_empty(), |data| !data.is_empty()) {
                        return Poll::Ready(Some(Ok(passed)));
                    }
                }
                None if !this.progress.is_stream() || this.progress.finish().is_some() => {
                    this.progress.end(now.into_std(), Ending::Complete);
                    this.state = State::Done;
                    let last = this.tail.take();
                    return Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last))));
                }
                Some(Err(_)) | None => return this.abort(now, Abort::Broken),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            State::Passing | State::Closing => self.is_last(),
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
