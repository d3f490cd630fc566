//! An answer in the making: the streams of its sequences as OpenAI's chunks, or as one document.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use warmpath_core::ids::TokenId;

use super::Shared;
use super::driver::{Command, Commands};
use super::ranks::{Seat, Seated};
use crate::openai::{Endpoint, RequestView};
use crate::sim::{FinishReason, RequestId, TokenOut};

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

/// What all chunks of an answer share.
#[derive(Clone)]
pub(super) struct Answer {
    endpoint: Endpoint,
    id: String,
    model: String,
    include_usage: bool,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    sequences: usize,
}

impl Answer {
    pub(super) fn new(
        endpoint: Endpoint,
        name: &str,
        model: &str,
        view: &RequestView<'_>,
        prompts: &[Vec<TokenId>],
    ) -> Self {
        let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        let n = usize::try_from(view.n).unwrap_or(1);
        Self {
            endpoint,
            id: format!("{prefix}-{name}"),
            model: model.to_owned(),
            include_usage: view.include_usage,
            prompt_tokens: prompts.iter().map(Vec::len).sum(),
            cached_tokens: 0,
            completion_tokens: 0,
            sequences: prompts.len() * n,
        }
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": 0, "model": self.model, "choices": choices})
    }

    fn chunk(&self, index: usize, text: &str, token: &TokenOut) -> Value {
        let finish = token.finished.map(reason);
        match self.endpoint {
            Endpoint::Completions => {
                let choice = json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish});
                self.envelope("text_completion", json!([choice]))
            }
            Endpoint::Chat => {
                let mut delta = json!({ "content": text });
                if token.index == 0 {
                    delta["role"] = "assistant".into();
                }
                let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
                self.envelope("chat.completion.chunk", json!([choice]))
            }
        }
    }

    /// The whole answer, of texts and the reasons why they ended.
    pub(super) fn whole(&self, all: All) -> Value {
        let choices = all.texts.iter().enumerate().map(|(index, (text, finish))| match self.endpoint {
            Endpoint::Completions => {
                json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish})
            }
            Endpoint::Chat => {
                let message = json!({"role": "assistant", "content": text});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish})
            }
        });
        let object = if self.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        let mut document = self.envelope(object, choices.collect());
        document["usage"] = all.usage;
        document
    }

    fn count(&mut self, token: &TokenOut) {
        self.completion_tokens += 1;
        if let Some(first) = token.first {
            self.cached_tokens += first.cached_tokens;
        }
    }
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::Stop => "stop",
    }
}

/// The texts of all sequences, and what they cost.
pub(super) struct All {
    texts: Vec<(String, Option<&'static str>)>,
    usage: Value,
}

/// A streamed answer.
pub(super) struct Answering {
    shared: Arc<Shared>,
    answer: Answer,
    parts: Vec<Part>,
    tail: Tail,
}

/// What comes after the last token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Usage,
    Done,
    End,
}

impl Answering {
    pub(super) fn new(shared: Arc<Shared>, answer: Answer, parts: Vec<Part>) -> Self {
        let tail = if answer.include_usage { Tail::Usage } else { Tail::Done };
        Self { shared, answer, parts, tail }
    }

    /// Waits for every token.
    pub(super) async fn all(mut self) -> All {
        let mut texts = vec![(String::new(), None); self.answer.sequences];
        while let Some((index, token)) = std::future::poll_fn(|cx| self.poll_token(cx)).await {
            self.answer.count(&token);
            texts[index].0 += &self.shared.voice.text(token.token);
            texts[index].1 = token.finished.map(reason);
        }
        All { texts, usage: self.answer.usage() }
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
                this.answer.count(&token);
                let text = this.shared.voice.text(token.token);
                this.answer.chunk(index, &text, &token).to_string()
            }
            (None, Tail::Usage) => {
                this.tail = Tail::Done;
                let object = match this.answer.endpoint {
                    Endpoint::Chat => "chat.completion.chunk",
                    Endpoint::Completions => "text_completion",
                };
                let mut chunk = this.answer.envelope(object, json!([]));
                chunk["usage"] = this.answer.usage();
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
