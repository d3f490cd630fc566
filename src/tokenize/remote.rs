//! The engine's own `/tokenize`: exact, and a round trip for each request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use warmpath_core::ids::TokenId;

use super::Reason;
use crate::openai::{Input, RequestView};

/// An engine that is slower than this costs more than it saves.
const PATIENCE: Duration = Duration::from_millis(500);

/// The most of an answer that is read: a million ids with their commas.
const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// The engines of one model, asked in turn.
pub struct Remote {
    engines: Vec<String>,
    next: AtomicUsize,
    client: reqwest::Client,
}

#[derive(Serialize)]
struct Question<'a> {
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_generation_prompt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continue_final_message: Option<bool>,
    add_special_tokens: bool,
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<TokenId>,
}

impl Remote {
    /// Asks these engines, given by their base URLs.
    pub fn new(engines: Vec<String>) -> Self {
        let client = reqwest::Client::builder().timeout(PATIENCE).pool_idle_timeout(Duration::from_secs(4)).build();
        let client = client.expect("a client without TLS has nothing to fail on");
        Self { engines, next: AtomicUsize::new(0), client }
    }

    /// The request's token ids.
    ///
    /// # Errors
    /// [`Reason::Remote`] when the engine does not answer in time; others where it cannot be asked.
    pub(super) async fn prompts(&self, view: &RequestView<'_>) -> Result<Vec<Vec<TokenId>>, Reason> {
        let question = |special| Question {
            model: view.model.as_deref(),
            prompt: None,
            messages: None,
            tools: None,
            chat_template_kwargs: None,
            add_generation_prompt: None,
            continue_final_message: None,
            add_special_tokens: view.add_special_tokens.unwrap_or(special),
        };
        match &view.input {
            Input::Ids(ids) => Ok(ids.clone()),
            Input::Texts(texts) => {
                let mut prompts = Vec::with_capacity(texts.len());
                for text in texts {
                    prompts.push(self.ask(&Question { prompt: Some(text), ..question(true) }).await?);
                }
                Ok(prompts)
            }
            // The endpoint takes no documents, and no template but the model's own.
            Input::Chat(chat) if chat.documents.is_some() || chat.chat_template.is_some() => Err(Reason::Template),
            Input::Chat(chat) => {
                let question = Question {
                    messages: Some(chat.messages),
                    tools: chat.tools,
                    chat_template_kwargs: chat.chat_template_kwargs,
                    add_generation_prompt: Some(chat.add_generation_prompt),
                    continue_final_message: Some(chat.continue_final_message),
                    ..question(false)
                };
                Ok(vec![self.ask(&question).await?])
            }
        }
    }

    async fn ask(&self, question: &Question<'_>) -> Result<Vec<TokenId>, Reason> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let engine = self.engines.get(turn % self.engines.len().max(1)).ok_or(Reason::Remote)?;
        let asked = self.client.post(format!("{engine}/tokenize")).json(question).send().await;
        let mut answer = asked.and_then(reqwest::Response::error_for_status).map_err(|_| Reason::Remote)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| Reason::Remote)? {
            if body.len() + chunk.len() > ANSWER_MAX {
                return Err(Reason::Remote);
            }
            body.extend_from_slice(&chunk);
        }
        let Answer { tokens } = serde_json::from_slice(&body).map_err(|_| Reason::Remote)?;
        Ok(tokens)
    }
}
