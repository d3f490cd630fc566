//! One connection, and the exchange on it: driven by whoever waits for the answer.
//!
//! hyper would have a connection be a task of its own. Every message between the two tasks wakes one of them, often on
//! another core, and a whole answer needs three; here the task of the request drives it. So a connection that is kept makes
//! no progress until it is used again: what its server said meanwhile is seen then.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use super::dial::Dialled;
use super::wire::{Signs, Wire};
use crate::quiet::quietly;

/// What is read of an answer before its client takes it, in bytes. It would grow to 400 KiB by itself, and lie idle for
/// every client that is slow.
const READ_AHEAD: usize = 16 * 1024;

/// How long a kept connection may take to be ready: it is unless the server answered before it had the whole request.
const READY_WITHIN: Duration = Duration::from_millis(20);

/// A connection on which nothing is under way, or just one exchange.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// What reads and writes; none once it has ended.
    driver: Option<Box<http1::Connection<TokioIo<Wire>, Full<Bytes>>>>,
    /// Whether a byte has come since the last request, and whether the server still listens.
    signs: Arc<Signs>,
}

/// Why an exchange failed; with the request, if none of it was sent.
pub(super) struct Failed {
    pub(super) source: hyper::Error,
    pub(super) unsent: Option<Request<Full<Bytes>>>,
}

impl Connection {
    pub(super) async fn over(Dialled { wire, signs }: Dialled) -> hyper::Result<Self> {
        let (sender, driver) = Builder::new().max_buf_size(READ_AHEAD).handshake(TokioIo::new(wire)).await?;
        Ok(Self { sender, driver: Some(Box::new(driver)), signs })
    }

    /// Reads and writes what can be. How the connection ends is told to whoever waits for an answer.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<Incoming>, Failed>> {
        self.signs.heard.store(false, Ordering::Relaxed);
        // Wakes whoever drove the connection last, if anybody.
        let (answer, _) = quietly(|| self.sender.try_send_request(request));
        async move {
            // It is answered by what is driven here, and by nothing else: its waker would only wake the task that runs.
            let mut answer = pin!(unconstrained(answer));
            let answered = poll_fn(|cx| {
                self.drive(cx);
                answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            });
            answered.await.map_err(|mut error| {
                let unsent = error.take_message();
                Failed { unsent, source: error.into_error() }
            })
        }
    }

    pub(super) fn has_heard(&self) -> bool {
        self.signs.heard.load(Ordering::Relaxed)
    }

    /// Whether it can be kept, as far as is known.
    pub(super) fn stands(&self) -> bool {
        self.driver.is_some() && !self.sender.is_closed() && !self.signs.deaf.load(Ordering::Relaxed)
    }

    /// Whether it can take a request. Waits only where the server answered before it had read the whole of the last one.
    pub(super) async fn is_ready(&mut self) -> bool {
        if self.sender.is_ready() {
            return true;
        }
        let ready = poll_fn(|cx| {
            self.drive(cx);
            if self.sender.is_ready() || !self.stands() { Poll::Ready(()) } else { Poll::Pending }
        });
        timeout(READY_WITHIN, ready).await.is_ok() && self.stands()
    }
}
