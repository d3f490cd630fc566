//! HTTP/1.1 with one client: one request after another, each read, handed on and answered before the next is looked at.
//!
//! One task does all of it and holds no buffer while nothing comes or goes. What comes behind a request that is being
//! answered is kept until its turn; that the client has left is seen then, too, and its request is given up.

use std::future::poll_fn;
use std::mem::{MaybeUninit, take};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::connection::{End, Over};
use super::course::{Course, Expiry, OVERTIME};
use super::delivery::{Delivery, Filled};
use super::front::{Answered, Handled};
use super::guard::judge;
use super::head::Head;
use super::inbox::{Arrived, Inbox};
use super::outbox::{Asker, Outbox};
use super::socket::Socket;
use super::upload::Upload;
use super::{House, refusal};
use crate::alarm::Alarm;
use crate::error::GatewayError;
use crate::http1::Framing;
use crate::request_id;

/// What is read at once: most requests as they are.
const READ: usize = 16 * 1024;

/// What is read behind a request that is being answered: as long as more may come, it is seen at once when the client leaves.
const AHEAD: usize = 64 * 1024;

/// How often it is looked for where more has come than is read.
const LOOK: Duration = Duration::from_millis(100);

/// What invites a client to send a body that it has announced.
const INVITATION: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// See the module.
pub(super) struct Conversation<'a> {
    socket: Socket,
    house: &'a Arc<House>,
    course: &'a Course,
    alarm: Alarm,
    inbox: Inbox,
    /// Since when the next request is waited for.
    waiting_since: Instant,
    /// When its first byte came. The clock of the first head begins with the connection, or silence would be given as long
    /// again.
    head_since: Option<Instant>,
    outbox: Outbox,
    /// When the client took no more.
    blocked_since: Option<Instant>,
    /// Rings when a client that has sent too much ahead is looked for.
    look: Alarm,
}

impl<'a> Conversation<'a> {
    /// One that begins now, with what has come already.
    pub(super) fn begin(socket: Socket, early: Vec<u8>, course: &'a Course, house: &'a Arc<House>) -> Self {
        Self {
            socket,
            house,
            course,
            alarm: Alarm::default(),
            inbox: Inbox::of(early),
            waiting_since: course.opened(),
            head_since: Some(course.head_since()),
            outbox: Outbox::default(),
            blocked_since: None,
            look: Alarm::default(),
        }
    }

    /// Goes on until one side ends it.
    pub(super) async fn hold(mut self) -> (Socket, Over) {
        loop {
            if let Err(over) = self.exchange().await {
                return (self.socket, over);
            }
        }
    }

    /// A request and its answer.
    async fn exchange(&mut self) -> Result<(), Over> {
        let Arrived { head, has_bare_line, body } = poll_fn(|cx| self.poll_request(cx)).await?;
        let Head { request, framing, keeps_open, expects_invitation } = head;
        let (asker, id) = (Asker::of(&request), request_id::given(request.headers()));
        let judged = match has_bare_line {
            true => Err(GatewayError::bad_request("a line of the request's head ends in LF alone, not in CRLF", None)),
            false => judge(&request, &self.house.limits),
        };
        if let Err(error) = judged {
            self.house.metrics.bad_head(error.outcome());
            return self.deliver(refusal::response(error, id).into(), asker, true).await;
        }
        let (body, upload) = self.receive(body, framing, expects_invitation).await;
        let handled = self.house.front.answer(request.map(|()| body));
        let answered = self.answered(handled, upload.as_ref(), expects_invitation).await?;
        // What is left of a body is not waited for, and what it is nobody knows.
        let is_unread = upload.is_some_and(|upload| !upload.has_ended());
        match answered {
            Some(answered) => self.deliver(answered, asker, is_unread || !keeps_open).await,
            None => self.deliver(refusal::response(GatewayError::Stopping, id).into(), asker, true).await,
        }
    }

    /// The next request.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arrived, Over>> {
        self.course.watch(cx.waker());
        let limits = &self.house.limits;
        let mut arrived =
            if self.inbox.is_empty() { None } else { self.inbox.next(&[], limits).map_err(Over::refused)? };
        loop {
            if let Some(arrived) = arrived {
                self.head_since = None;
                return Poll::Ready(Ok(arrived));
            }
            let mut space = [MaybeUninit::uninit(); READ];
            let mut space = ReadBuf::uninit(&mut space);
            let Poll::Ready(read) = Pin::new(&mut self.socket).poll_read(cx, &mut space) else {
                // What has come by now is answered, and who has begun is heard to the end.
                if self.course.is_stopping() && self.inbox.is_empty() {
                    return Poll::Ready(Err(End::Done.into()));
                }
                return self.poll_patience(cx).map(Err);
            };
            let said = space.filled();
            // However it leaves: under TLS many do without a word.
            if read.is_err() || said.is_empty() {
                let end = if self.inbox.is_empty() { End::Done } else { End::Broken };
                return Poll::Ready(Err(end.into()));
            }
            arrived = self.inbox.next(said, limits).map_err(Over::refused)?;
        }
    }

    /// The body of a request for its handler: whole if it is there, or together with the side that reads on.
    async fn receive(&mut self, mut body: BytesMut, mut framing: Framing, is_held: bool) -> (Body, Option<Upload>) {
        if let Framing::Length(left @ 1..) = &mut framing
            && !is_held
        {
            // What has come by now needs no second look.
            poll_fn(|cx| {
                while *left > 0 && body.len() < body.capacity() {
                    let room = usize::try_from(*left).unwrap_or(usize::MAX).min(body.capacity() - body.len());
                    match poll_read_buf(Pin::new(&mut self.socket), cx, &mut (&mut body).limit(room)) {
                        Poll::Ready(Ok(read @ 1..)) => *left -= u64::try_from(read).unwrap_or(*left),
                        _ => break,
                    }
                }
                Poll::Ready(())
            })
            .await;
        }
        if framing.has_ended() {
            return (if body.is_empty() { Body::empty() } else { Body::from(body.freeze()) }, None);
        }
        let (upload, uploaded) = Upload::begin(body, framing);
        (Body::new(uploaded), Some(upload))
    }

    /// What its handler answers, reading on for it; none if the router stops first.
    async fn answered(
        &mut self,
        mut handled: Handled,
        upload: Option<&Upload>,
        mut expects_invitation: bool,
    ) -> Result<Option<Answered>, Over> {
        poll_fn(|cx| {
            self.course.watch(cx.waker());
            if self.course.is_cut() {
                return Poll::Ready(Ok(None));
            }
            loop {
                if let Poll::Ready(answered) = Pin::new(&mut handled).poll(cx) {
                    return Poll::Ready(Ok(Some(answered)));
                }
                let Some(upload) = upload.filter(|upload| upload.can_go_on()) else {
                    return self.poll_ahead(cx).map(Err);
                };
                if !upload.is_wanted(cx) {
                    return Poll::Pending;
                }
                if take(&mut expects_invitation) {
                    self.outbox.say(INVITATION);
                }
                ready!(self.poll_leave(None, cx))?;
                ready!(upload.poll_read(&mut self.socket, self.inbox.behind(), cx));
            }
        })
        .await
    }

    /// Sends an answer, and ends the connection with it if it is the last.
    async fn deliver(&mut self, answered: Answered, asker: Asker, mut is_last: bool) -> Result<(), Over> {
        is_last |= self.course.is_stopping() || self.house.parting.load(Ordering::Relaxed);
        let until = answered.until.map(Instant::from_std);
        let mut delivery = Delivery::begin(answered, asker, &mut is_last, &mut self.outbox);
        poll_fn(|cx| {
            self.course.watch(cx.waker());
            loop {
                let filled = delivery.fill(&mut self.outbox, self.course.is_cut(), cx);
                match (filled, self.poll_leave(until, cx)?) {
                    (Filled::All, Poll::Ready(())) => return Poll::Ready(Ok(())),
                    (Filled::Full, Poll::Ready(())) => {}
                    _ => return self.poll_ahead(cx).map(Err),
                }
            }
        })
        .await?;
        if let Some(end) = delivery.broke() {
            return Err(end.into());
        }
        if is_last {
            return Err(End::Done.into());
        }
        self.waiting_since = Instant::now();
        Ok(())
    }

    /// Ready once everything that is to be sent has left, or the client has taken too long for it.
    fn poll_leave(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<Result<(), Over>> {
        let before = self.outbox.left();
        if let Poll::Ready(left) = self.outbox.poll_leave(&mut self.socket, cx) {
            self.blocked_since = None;
            return Poll::Ready(left.map_err(|_| End::Broken.into()));
        }
        if self.outbox.left() < before {
            self.blocked_since = None;
        }
        let stalled = *self.blocked_since.get_or_insert_with(Instant::now) + self.house.limits.stall_timeout;
        let late = until.map(|until| until + OVERTIME).filter(|late| *late < stalled);
        ready!(self.alarm.poll(late.unwrap_or(stalled), cx));
        let why = if late.is_some() { Expiry::Late } else { Expiry::Stalled };
        Poll::Ready(Err(End::Expired(why).into()))
    }

    /// Ready once the next request is late.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        let limits = &self.house.limits;
        if !self.inbox.is_empty() && self.head_since.is_none() {
            self.head_since = Some(Instant::now());
        }
        let Some(since) = self.head_since else {
            return self
                .alarm
                .poll(self.waiting_since + limits.idle_timeout, cx)
                .map(|()| End::Expired(Expiry::Idle).into());
        };
        self.alarm.poll(since + limits.header_timeout, cx).map(|()| {
            let refusal = (!self.inbox.is_empty()).then_some(GatewayError::HeadTimeout);
            Over { end: End::Expired(Expiry::Head), refusal }
        })
    }

    /// Reads on behind what is being answered. Ready once the client has gone: then nobody wants to have it answered.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        while self.inbox.len() < AHEAD {
            let mut space = [MaybeUninit::uninit(); READ];
            let mut space = ReadBuf::uninit(&mut space);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut space)) {
                Ok(()) if !space.filled().is_empty() => self.inbox.keep(space.filled()),
                _ => return Poll::Ready(End::Broken.into()),
            }
        }
        if !self.socket.has_closed() {
            ready!(self.look.poll(Instant::now() + LOOK, cx));
        }
        Poll::Ready(End::Broken.into())
    }
}
