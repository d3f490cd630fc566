//! Ids from an engine's `/tokenize`, for models without a tokenizer of our own.
//!
//! vLLM's form: `{"model","prompt"}` or `{"model","messages",…}` gives `{"tokens":[…]}`. It renders chats by the same code
//! as the chat endpoint does, but knows neither documents nor reasoning effort nor truncation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::link::{Ask, Link};
use crate::openai::{ChatView, Input, Prompt, Raw, RequestView};

/// Texts of one request that are sent to `/tokenize`, one after the other.
const TEXTS_MAX: usize = 8;

/// Asks an engine for token ids. Costs a request to the engine for each prompt.
#[derive(Clone, Debug)]
pub struct RemoteTokenizer {
    engines: Arc<ArcSwap<Vec<Arc<Link>>>>,
    next: Arc<AtomicUsize>,
    api_key: Option<String>,
    wait_max: Duration,
    answer_bytes_max: usize,
}

#[derive(Serialize)]
struct TextBody<'a> {
    model: Option<&'a str>,
    prompt: &'a str,
    add_special_tokens: bool,
}

#[derive(Serialize)]
struct ChatBody<'a> {
    model: Option<&'a str>,
    messages: &'a [Raw<'a>],
    add_generation_prompt: bool,
    continue_final_message: bool,
    add_special_tokens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Raw<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
}

impl RemoteTokenizer {
    /// Has no engine to ask yet. An answer that takes longer than `wait_max` or has more than `answer_bytes_max` bytes
    /// counts as none.
    pub fn new(wait_max: Duration, answer_bytes_max: usize) -> Self {
        Self { engines: Arc::default(), next: Arc::default(), api_key: None, wait_max, answer_bytes_max }
    }

    /// Asks these engines from now on, in turn.
    pub fn set_engines(&self, engines: impl Iterator<Item = Arc<Link>>) {
        self.engines.store(Arc::new(engines.collect()));
    }

    /// Sends `Authorization: Bearer KEY`.
    pub fn with_api_key(mut self, key: Option<String>) -> Self {
        self.api_key = key;
        self
    }

    /// The ids of the request's prompts, all within `wait_max`.
    ///
    /// # Errors
    /// The [`Reason`] why they cannot be told.
    pub async fn ids(&self, view: &RequestView<'_>) -> Result<Vec<Vec<u32>>, Reason> {
        tokio::time::timeout(self.wait_max, self.all(view)).await.unwrap_or(Err(Reason::Remote))
    }

    async fn all(&self, view: &RequestView<'_>) -> Result<Vec<Vec<u32>>, Reason> {
        let mut lists = Vec::new();
        for body in bodies(view)? {
            lists.push(self.ask(body).await?);
        }
        Ok(lists)
    }

    async fn ask(&self, body: Vec<u8>) -> Result<Vec<u32>, Reason> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let engines = self.engines.load_full();
        let engine = engines.get(turn % engines.len().max(1)).ok_or(Reason::Remote)?;
        let mut ask = Ask::post("/tokenize", body);
        ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = &self.api_key {
            let bearer = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Reason::Remote)?;
            ask.headers.insert(header::AUTHORIZATION, bearer);
        }
        let answer = engine.ask(&ask, self.wait_max, self.answer_bytes_max).await.map_err(|_| Reason::Remote)?;
        let (_, answer) = Some(answer).filter(|(status, _)| status.is_success()).ok_or(Reason::Remote)?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(|_| Reason::Remote)?;
        Ok(answer.tokens)
    }
}

/// What `/tokenize` is asked, one body a prompt.
fn bodies(view: &RequestView<'_>) -> Result<Vec<Vec<u8>>, Reason> {
    if view.truncation.is_some() {
        return Err(Reason::Truncation);
    }
    let encode = |body: Result<Vec<u8>, serde_json::Error>| body.map_err(|_| Reason::Remote);
    match &view.input {
        Input::Completion(Prompt::Texts(texts)) if texts.len() > TEXTS_MAX => Err(Reason::TooLong),
        Input::Completion(Prompt::Texts(texts)) => {
            let add_special_tokens = view.add_special_tokens;
            let body =
                |prompt| serde_json::to_vec(&TextBody { model: view.model.as_deref(), prompt, add_special_tokens });
            texts.iter().map(|text| encode(body(text))).collect()
        }
        Input::Completion(_) => Err(Reason::Remote),
        Input::Chat(chat) => Ok(vec![encode(serde_json::to_vec(&chat_body(view, chat)?))?]),
    }
}

fn chat_body<'a>(view: &'a RequestView<'_>, chat: &'a ChatView<'_>) -> Result<ChatBody<'a>, Reason> {
    if chat.documents.is_some() || chat.reasoning_effort.is_some() {
        return Err(Reason::TemplateVariables);
    }
    if chat.chat_template.is_some() {
        return Err(Reason::RequestTemplate);
    }
    Ok(ChatBody {
        model: view.model.as_deref(),
        messages: &chat.messages,
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        add_special_tokens: view.add_special_tokens,
        tools: chat.tools,
        chat_template_kwargs: chat.chat_template_kwargs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Endpoint;

    fn asked(endpoint: Endpoint, body: &str) -> Result<Vec<String>, Reason> {
        let view = RequestView::parse(endpoint, body.as_bytes(), 4096).unwrap();
        let bodies = bodies(&view)?;
        Ok(bodies.into_iter().map(|body| String::from_utf8(body).unwrap()).collect())
    }

    #[test]
    fn each_text_is_asked_for_and_a_chat_as_it_came() {
        let texts = asked(Endpoint::Completions, r#"{"model":"m","prompt":["a","b\n"],"max_tokens":3}"#).unwrap();
        assert_eq!(texts[0], r#"{"model":"m","prompt":"a","add_special_tokens":true}"#);
        assert_eq!(texts[1], r#"{"model":"m","prompt":"b\n","add_special_tokens":true}"#);
        let chat = asked(
            Endpoint::Chat,
            r#"{"model":"m","messages":[{"role":"user",  "content":"x"}],"tools":[ ],"chat_template_kwargs":{"a":1}}"#,
        );
        assert_eq!(
            chat.unwrap(),
            [concat!(
                r#"{"model":"m","messages":[{"role":"user",  "content":"x"}],"add_generation_prompt":true,"#,
                r#""continue_final_message":false,"add_special_tokens":false,"tools":[ ],"chat_template_kwargs":{"a":1}}"#
            )]
        );
    }

    #[test]
    fn what_tokenize_does_not_know_is_not_asked() {
        let chat = |fields: &str| asked(Endpoint::Chat, &format!(r#"{{"model":"m","messages":[{{}}],{fields}}}"#));
        assert_eq!(chat(r#""documents":[]"#), Err(Reason::TemplateVariables));
        assert_eq!(chat(r#""reasoning_effort":"low""#), Err(Reason::TemplateVariables));
        assert_eq!(chat(r#""chat_template":"x""#), Err(Reason::RequestTemplate));
        let cut = r#"{"model":"m","prompt":"x","truncate_prompt_tokens":5}"#;
        assert_eq!(asked(Endpoint::Completions, cut), Err(Reason::Truncation));
        let many = format!(r#"{{"model":"m","prompt":[{}"x"]}}"#, r#""x","#.repeat(TEXTS_MAX));
        assert_eq!(asked(Endpoint::Completions, &many), Err(Reason::TooLong));
    }
}
