//! One answer on its way to a client of HTTP/1.1.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use http_body::Body as _;

use super::connection::End;
use super::front::Answered;
use super::goodbye::Goodbye;
use super::outbox::{Asker, Extent, Outbox};

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// Nothing more comes of it.
    All,
    /// There is no room for more.
    Full,
    /// More comes later.
    Waiting,
}

/// See the module.
pub(super) struct Delivery {
    /// None once nothing more comes of it.
    body: Option<Body>,
    extent: Extent,
    goodbye: Goodbye,
    /// Whether all of it came.
    is_whole: bool,
}

impl Delivery {
    /// Puts its head into `outbox`.
    pub(super) fn begin(answered: Answered, asker: Asker, is_last: &mut bool, outbox: &mut Outbox) -> Self {
        let goodbye = Goodbye::of(&answered);
        let extent = outbox.begin(&answered.response, asker, is_last);
        let body = Some(answered.response.into_body()).filter(|_| extent != Extent::Nothing);
        let is_whole = body.is_none();
        Self { body, extent, goodbye, is_whole }
    }

    /// Puts into `outbox` what there is of it and finds room. An answer that must be cut ends
    /// here, unless all of it is there.
    pub(super) fn fill(&mut self, outbox: &mut Outbox, is_cut: bool, cx: &mut Context<'_>) -> Filled {
        while let Some(body) = &mut self.body {
            if !outbox.has_room() {
                return Filled::Full;
            }
            // The client would take what ends cleanly for whole.
            if is_cut && let Some(event) = self.goodbye.event() {
                outbox.put(event, &mut self.extent);
                self.body = None;
                break;
            }
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
                if is_cut {
                    self.body = None;
                    break;
                }
                return Filled::Waiting;
            };
            let has_ended = match frame {
                Some(Ok(frame)) => {
                    // Trailers are for nobody.
                    if let Ok(data) = frame.into_data() {
                        self.goodbye.passed(&data);
                        outbox.put(data, &mut self.extent);
                    }
                    body.is_end_stream()
                }
                Some(Err(error)) => {
                    tracing::debug!(error = %error, "an answer broke off");
                    self.body = None;
                    break;
                }
                None => true,
            };
            if has_ended {
                self.is_whole = outbox.end(self.extent);
                self.body = None;
            }
        }
        Filled::All
    }

    /// How the connection must end where not all of it was there.
    pub(super) fn broke(&self) -> Option<End> {
        let end = if self.extent == Extent::Rest { End::Torn } else { End::Broken };
        (!self.is_whole).then_some(end)
    }
}
