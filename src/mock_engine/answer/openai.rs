//! Answers as OpenAI has them: chunks that each tell what is new, or one document.

use serde_json::{Value, json};
use warmpath_core::ids::TokenId;
use warmpath_simulator::{FinishReason, TokenOut};

use crate::openai::{Endpoint, RequestView};

/// What all chunks of an answer share, and the texts of one that is told whole.
pub(in crate::mock_engine) struct OpenAi {
    endpoint: Endpoint,
    id: String,
    model: String,
    include_usage: bool,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    /// Sequences of each prompt.
    n: usize,
    /// Of each sequence, and why it ended.
    texts: Vec<(String, Option<&'static str>)>,
}

impl OpenAi {
    /// Of nothing yet.
    pub(in crate::mock_engine) fn new(
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
            n,
            texts: vec![(String::new(), None); prompts.len() * n],
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

    /// Tells one more token.
    pub(super) fn chunk(&mut self, index: usize, text: &str, token: &TokenOut) -> Value {
        self.count(index, token);
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

    /// What comes behind the last token of a stream, if it was asked for.
    pub(super) fn last(&self) -> Option<Value> {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        self.include_usage.then(|| {
            let mut chunk = self.envelope(object, json!([]));
            chunk["usage"] = self.usage();
            chunk
        })
    }

    /// Keeps one more token for [`Self::whole`].
    pub(super) fn keep(&mut self, index: usize, text: &str, token: &TokenOut) {
        self.count(index, token);
        self.texts[index].0 += text;
        self.texts[index].1 = token.finished.map(reason);
    }

    /// All that was kept, as one document.
    pub(super) fn whole(&self) -> Value {
        let choices = self.texts.iter().enumerate().map(|(index, (text, finish))| match self.endpoint {
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
        document["usage"] = self.usage();
        document
    }

    /// A prompt counts once, whatever its sequences are.
    fn count(&mut self, index: usize, token: &TokenOut) {
        self.completion_tokens += 1;
        if let Some(first) = token.first.filter(|_| index.is_multiple_of(self.n)) {
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
