//! Answers as SGLang's own endpoint has them: each sequence a document, and each chunk of a stream the whole document so far.

use serde_json::{Value, json};
use warmpath_core::ids::TokenId;
use warmpath_simulator::{FinishReason, TokenOut};

use crate::mock_engine::native::Asked;

/// What its sequences have come to.
pub(in crate::mock_engine) struct Native {
    sequences: Vec<Sequence>,
    is_list: bool,
}

struct Sequence {
    id: String,
    text: String,
    ids: Vec<TokenId>,
    prompt_tokens: usize,
    cached_tokens: usize,
    finish: Value,
}

impl Native {
    /// Of nothing yet: `n` sequences for each prompt, in the order of the prompts.
    pub(in crate::mock_engine) fn new(asked: &Asked, name: &str, n: u32, prompts: &[Vec<TokenId>]) -> Self {
        let is_list = asked.is_list || n > 1;
        let lengths = prompts.iter().flat_map(|prompt| (0..n).map(|_| prompt.len()));
        let sequence = |(place, prompt_tokens)| Sequence {
            id: asked.id(name, place, is_list),
            text: String::new(),
            ids: Vec::new(),
            prompt_tokens,
            cached_tokens: 0,
            finish: Value::Null,
        };
        Self { sequences: lengths.enumerate().map(sequence).collect(), is_list }
    }

    /// Tells one more token, with all before it.
    pub(super) fn chunk(&mut self, index: usize, text: &str, token: &TokenOut) -> Value {
        self.keep(index, text, token);
        let mut document = self.sequences[index].document();
        if self.is_list {
            document["index"] = index.into();
        }
        document
    }

    /// Keeps one more token.
    pub(super) fn keep(&mut self, index: usize, text: &str, token: &TokenOut) {
        let sequence = &mut self.sequences[index];
        sequence.text += text;
        sequence.ids.push(token.token);
        if let Some(first) = token.first {
            sequence.cached_tokens = first.cached_tokens;
        }
        sequence.finish = match token.finished {
            None => Value::Null,
            Some(FinishReason::Length) => json!({"type": "length", "length": sequence.ids.len()}),
            Some(FinishReason::Stop) => json!({"type": "stop", "matched": token.token}),
        };
    }

    /// All that was kept.
    pub(super) fn whole(&self) -> Value {
        match &self.sequences[..] {
            [one] if !self.is_list => one.document(),
            several => several.iter().map(Sequence::document).collect(),
        }
    }
}

impl Sequence {
    fn document(&self) -> Value {
        json!({
            "text": self.text,
            "output_ids": self.ids,
            "meta_info": {
                "id": self.id,
                "finish_reason": self.finish,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.ids.len(),
                "cached_tokens": self.cached_tokens,
            },
        })
    }
}
