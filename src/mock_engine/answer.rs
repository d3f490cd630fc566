//! An answer in the making: the streams of its sequences as chunks, or as one document.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::Value;
use tokio::sync::mpsc;
use warmpath_simulator::{RequestId, TokenOut};

use super::Shared;
use super::driver::{Command, Commands};
use super::ranks::{Seat, Seated};
pub(super) use native::Native;
pub(super) use openai::OpenAi;

mod native;
mod openai;

/// One sequence's tokens. Dropping it before its end aborts the sequence: the client has left.
pub(super) struct Part {
    id: RequestId,
    tokens: mpsc::Receiver<TokenOut>,
    commands: Commands,
    finished: bool,
    _seated: Seated,
}

impl Part {
    pub(super) fn new(id: RequestId, tokens: mpsc::Receiver<TokenOut>, seat: &Seat) -> Self {
        Self { id, tokens, commands: seat.commands.clone(), finished: false, _seated: seat.take() }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.finished && self.commands.try_send(Command::Abort(self.id)).is_err() {
            tracing::debug!("the engine will notice at the sequence's next token");
        }
    }
}

/// The form of an answer, and what it has come to.
pub(super) enum Answer {
    /// OpenAI's.
    OpenAi(OpenAi),
    /// SGLang's own.
    Native(Native),
}

impl Answer {
    /// One more token, as a stream tells it.
    fn chunk(&mut self, index: usize, text: &str, token: &TokenOut) -> Value {
        match self {
            Answer::OpenAi(answer) => answer.chunk(index, text, token),
            Answer::Native(answer) => answer.chunk(index, text, token),
        }
    }

    /// What comes behind the last token of a stream, before `[DONE]`.
    fn last(&self) -> Option<Value> {
        match self {
            Answer::OpenAi(answer) => answer.last(),
            Answer::Native(_) => None,
        }
    }

    /// One more token, to be told with all others.
    fn keep(&mut self, index: usize, text: &str, token: &TokenOut) {
        match self {
            Answer::OpenAi(answer) => answer.keep(index, text, token),
            Answer::Native(answer) => answer.keep(index, text, token),
        }
    }

    /// All that was kept.
    fn whole(&self) -> Value {
        match self {
            Answer::OpenAi(answer) => answer.whole(),
            Answer::Native(answer) => answer.whole(),
        }
    }
}

/// A streamed answer.
pub(super) struct Answering {
    shared: Arc<Shared>,
    answer: Answer,
    parts: Vec<Part>,
    tail: Tail,
}

/// What comes after the last token.
#[derive(Clone, Copy)]
enum Tail {
    Last,
    Done,
    End,
}

impl Answering {
    pub(super) fn new(shared: Arc<Shared>, answer: Answer, parts: Vec<Part>) -> Self {
        Self { shared, answer, parts, tail: Tail::Last }
    }

    /// The whole answer, once every token is there.
    pub(super) async fn whole(mut self) -> Value {
        while let Some((index, token)) = std::future::poll_fn(|cx| self.poll_token(cx)).await {
            let text = self.shared.voice.text(token.token);
            self.answer.keep(index, &text, &token);
        }
        self.answer.whole()
    }

    /// The next token of any sequence; none when all have ended.
    fn poll_token(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, TokenOut)>> {
        let mut pending = false;
        for (index, part) in self.parts.iter_mut().enumerate().filter(|(_, part)| !part.finished) {
            match part.tokens.poll_recv(cx) {
                Poll::Ready(Some(token)) => {
                    part.finished = token.finished.is_some();
                    return Poll::Ready(Some((index, token)));
                }
                Poll::Ready(None) => part.finished = true,
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(None) }
    }
}

impl Body for Answering {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Poll::Ready(token) = this.poll_token(cx) else { return Poll::Pending };
        let event = match (token, this.tail) {
            (Some((index, token)), _) => {
                let text = this.shared.voice.text(token.token);
                this.answer.chunk(index, &text, &token).to_string()
            }
            (None, Tail::Last) => {
                this.tail = Tail::Done;
                let Some(chunk) = this.answer.last() else { return Pin::new(this).poll_frame(cx) };
                chunk.to_string()
            }
            (None, Tail::Done) => {
                this.tail = Tail::End;
                "[DONE]".to_owned()
            }
            (None, Tail::End) => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(format!("data: {event}\n\n").into()))))
    }
}
