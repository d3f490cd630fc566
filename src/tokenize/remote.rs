//! Ids from an engine's `/tokenize`, for models without a tokenizer of our own.
//!
//! vLLM's form: `{"model","prompt"}` or `{"model","messages",…}` gives `{"tokens":[…]}`. It renders chats by the same code
//! as the chat endpoint does, but knows neither documents nor reasoning effort nor truncation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::select_ok;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::link::{Link, Outgoing};
use crate::openai::{ChatView, Input, Prompt, Raw, RequestView};

/// Texts of one request that are sent to `/tokenize`, one after the other.
const TEXTS_MAX: usize = 8;

/// An engine that can be asked.
pub trait Engine: Send + Sync {
    /// Whether it is to be asked now.
    fn serves(&self) -> bool;

    /// The way to it.
    fn way(&self) -> &Arc<Link>;

    /// What it is shown as `Authorization`; nobody else is shown it.
    fn authorization(&self) -> Option<HeaderValue>;
}

type Asked = Arc<dyn Engine>;

/// An engine of which nothing else is known: it is always asked, and in the same way.
pub struct Fixed {
    /// See [`Engine::way`].
    pub link: Arc<Link>,
    /// See [`Engine::authorization`].
    pub authorization: Option<HeaderValue>,
}

impl Engine for Fixed {
    fn serves(&self) -> bool {
        true
    }

    fn way(&self) -> &Arc<Link> {
        &self.link
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }
}

/// Asks an engine for token ids, and another one where that fails or is slow. Costs a request to an engine for each prompt.
#[derive(Clone)]
pub struct RemoteTokenizer {
    engines: Arc<ArcSwap<Vec<Asked>>>,
    next: Arc<AtomicUsize>,
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
        Self { engines: Arc::default(), next: Arc::default(), wait_max, answer_bytes_max }
    }

    /// Asks those of these engines that serve from now on, in turn.
    pub fn set_engines<E: Engine + 'static>(&self, engines: impl Iterator<Item = Arc<E>>) {
        self.engines.store(Arc::new(engines.map(|engine| -> Asked { engine }).collect()));
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
            lists.push(self.ask(&body).await?);
        }
        Ok(lists)
    }

    /// One engine is asked, and where it fails or has taken half the time, another one: whoever knows first is believed.
    async fn ask(&self, body: &[u8]) -> Result<Vec<u32>, Reason> {
        let (first, other) = self.two();
        let first = first.ok_or(Reason::Remote)?;
        let mut asked = Box::pin(self.ask_one(&*first, body));
        let Some(other) = other else { return asked.await };
        match tokio::time::timeout(self.wait_max / 2, &mut asked).await {
            Ok(Ok(ids)) => Ok(ids),
            Ok(Err(_)) => self.ask_one(&*other, body).await,
            Err(_) => select_ok([asked, Box::pin(self.ask_one(&*other, body))]).await.map(|(ids, _)| ids),
        }
    }

    /// The engine whose turn it is, and one at another address; so far as any serve. O(engines).
    fn two(&self) -> (Option<Asked>, Option<Asked>) {
        let engines = self.engines.load();
        let serving: Vec<&Asked> = engines.iter().filter(|engine| engine.serves()).collect();
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % serving.len().max(1);
        let (before, after) = serving.split_at(turn);
        let mut in_turn = after.iter().chain(before).copied();
        let first = in_turn.next();
        // Ranks of one worker share its address.
        let other = in_turn.find(|other| first.is_some_and(|first| !Arc::ptr_eq(first.way(), other.way())));
        (first.cloned(), other.cloned())
    }

    async fn ask_one(&self, engine: &dyn Engine, body: &[u8]) -> Result<Vec<u32>, Reason> {
        let mut ask = Outgoing::post("/tokenize", body.to_vec());
        ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = engine.authorization() {
            ask.headers.insert(header::AUTHORIZATION, authorization);
        }
        let answer = engine.way().ask(&ask, self.wait_max, self.answer_bytes_max).await;
        let answer = answer.map_err(|_| Reason::Remote)?;
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
    if !view.is_rendered_alike() {
        return Err(Reason::EngineRules);
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
    use std::sync::atomic::AtomicBool;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::{ClientTls, HEAD_MAX, LinkLimits, Links};
    use crate::openai::Endpoint;
    use crate::shutdown::Tasks;

    /// How an engine answers `/tokenize`.
    #[derive(Clone, Copy)]
    enum Manner {
        /// With its own number as the only id.
        Well,
        /// With 401.
        Refusing,
        /// Never.
        Hanging,
    }

    struct TestEngine {
        link: Arc<Link>,
        serves: AtomicBool,
        asked: Arc<AtomicUsize>,
    }

    impl Engine for TestEngine {
        fn serves(&self) -> bool {
            self.serves.load(Ordering::Relaxed)
        }

        fn way(&self) -> &Arc<Link> {
            &self.link
        }

        fn authorization(&self) -> Option<HeaderValue> {
            None
        }
    }

    struct Bench {
        engines: Vec<Arc<TestEngine>>,
        tokenizer: RemoteTokenizer,
        _tasks: Tasks,
    }

    impl Bench {
        async fn start(manners: &[Manner]) -> Self {
            let (tasks, mut engines) = (Tasks::new(), Vec::new());
            let limits = LinkLimits { connect: Duration::from_secs(5), idle: Duration::from_secs(5), head: HEAD_MAX };
            let links = Links::new(limits, ClientTls::default(), tasks.clone());
            for (number, manner) in manners.iter().enumerate() {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
                let link = links.link(&http::uri::Scheme::HTTP, &authority).unwrap();
                let asked = Arc::new(AtomicUsize::new(0));
                tasks.spawn(serve(listener, (number, *manner), Arc::clone(&asked), tasks.clone()));
                engines.push(Arc::new(TestEngine { link, serves: AtomicBool::new(true), asked }));
            }
            // Long enough that nobody takes a busy machine for an engine that hangs.
            let tokenizer = RemoteTokenizer::new(Duration::from_secs(4), 1000);
            tokenizer.set_engines(engines.iter().cloned());
            Self { engines, tokenizer, _tasks: tasks }
        }

        async fn ids(&self) -> Result<Vec<Vec<u32>>, Reason> {
            let view = RequestView::parse(Endpoint::Completions, br#"{"model":"m","prompt":"x"}"#, 4096).unwrap();
            self.tokenizer.ids(&view).await
        }

        fn asked(&self) -> Vec<usize> {
            self.engines.iter().map(|engine| engine.asked.load(Ordering::Relaxed)).collect()
        }
    }

    async fn serve(listener: TcpListener, (number, manner): (usize, Manner), asked: Arc<AtomicUsize>, tasks: Tasks) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = Arc::clone(&asked);
            tasks.spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                asked.fetch_add(1, Ordering::Relaxed);
                let (status, body) = match manner {
                    Manner::Well => ("200 OK", format!(r#"{{"tokens":[{number}]}}"#)),
                    Manner::Refusing => ("401 Unauthorized", String::new()),
                    Manner::Hanging => std::future::pending().await,
                };
                let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            });
        }
    }

    #[tokio::test]
    async fn where_one_engine_fails_or_hangs_another_is_asked() {
        for bad in [Manner::Refusing, Manner::Hanging] {
            let bench = Bench::start(&[bad, Manner::Well]).await;
            assert_eq!(bench.ids().await, Ok(vec![vec![1]]));
            assert_eq!(bench.asked(), [1, 1]);
        }
        let bench = Bench::start(&[Manner::Refusing, Manner::Refusing, Manner::Well]).await;
        assert_eq!((bench.ids().await, bench.asked()), (Err(Reason::Remote), vec![1, 1, 0]), "one other, not all");
    }

    #[tokio::test]
    async fn who_does_not_serve_is_not_asked() {
        let bench = Bench::start(&[Manner::Well; 3]).await;
        bench.engines[1].serves.store(false, Ordering::Relaxed);
        for _ in 0..6 {
            assert!(bench.ids().await.is_ok());
        }
        assert_eq!(bench.asked(), [3, 0, 3]);
        bench.engines.iter().for_each(|engine| engine.serves.store(false, Ordering::Relaxed));
        assert_eq!((bench.ids().await, bench.asked()), (Err(Reason::Remote), vec![3, 0, 3]));
    }

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
