//! Requests become the token ids that real engines make of them. Needs `scripts/fetch-tokenizer.sh`.

#[path = "tokenizer/kept.rs"]
mod kept;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmpath::link::{ClientTls, HEAD_MAX, LinkLimits, Links};
use warmpath::openai::{Endpoint, RequestView};
use warmpath::shutdown::Tasks;
use warmpath::tokenize::hf::{TokenizerFiles, load};
use warmpath::tokenize::remote::{Fixed, RemoteTokenizer};
use warmpath::tokenize::{
    Hashed, ModelTokenizer, Prompts, Reason, TokenizeLimits, TokenizeShared, TokenizerHandle, TokenizerState,
};
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::SequenceHash;
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;

static TOKENIZER: LazyLock<ModelTokenizer> =
    LazyLock::new(|| load(&files()).unwrap_or_else(|error| panic!("{error}: run scripts/fetch-tokenizer.sh again")));

fn files() -> TokenizerFiles {
    let cached = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/qwen3");
    let folder = std::env::var_os("WARMPATH_TEST_TOKENIZER").map_or_else(cached, PathBuf::from);
    assert!(
        folder.join("tokenizer.json").is_file(),
        "`{}` has no tokenizer.json: run scripts/fetch-tokenizer.sh, or set WARMPATH_TEST_TOKENIZER to a folder with \
         Qwen3's",
        folder.display()
    );
    TokenizerFiles {
        tokenizer: folder,
        chat_template: None,
        chat_template_kwargs: None,
        model_tokens_max: None,
        check_every: None,
    }
}

#[derive(Deserialize)]
struct Case {
    #[serde(alias = "step")]
    name: String,
    #[serde(default)]
    engine: String,
    #[serde(default)]
    path: Option<String>,
    request: Box<RawValue>,
    prompt_token_ids: Vec<u32>,
}

impl Case {
    fn endpoint(&self) -> Endpoint {
        if self.path.as_deref() == Some("/v1/completions") { Endpoint::Completions } else { Endpoint::Chat }
    }

    fn ids(&self) -> Result<Vec<Vec<u32>>, Reason> {
        let mut view = RequestView::parse(self.endpoint(), self.request.get().as_bytes(), 4096)
            .expect("recorded requests are good");
        TOKENIZER.ids(&mut view, SystemTime::UNIX_EPOCH)
    }
}

fn cases(json_lines: &str) -> Vec<Case> {
    json_lines.lines().map(|line| serde_json::from_str(line).expect("the file has one case a line")).collect()
}

/// Compares each case and returns how many there were on each endpoint: completions, chats.
fn compare(cases: &[Case]) -> (usize, usize) {
    for case in cases {
        assert_eq!(case.ids(), Ok(vec![case.prompt_token_ids.clone()]), "{} {}", case.engine, case.name);
    }
    let chats = cases.iter().filter(|case| case.endpoint() == Endpoint::Chat).count();
    (cases.len() - chats, chats)
}

#[test]
fn ids_equal_those_that_running_engines_reported() {
    assert_eq!(compare(&cases(include_str!("data/chat/engines.jsonl"))), (17, 5));
}

#[test]
fn chats_of_every_shape_have_the_ids_of_the_reference() {
    assert_eq!(compare(&cases(include_str!("data/chat/reference.jsonl"))), (0, 27));
}

/// As engines with `--default-chat-template-kwargs` render it.
#[test]
fn variables_of_the_configuration_are_those_of_a_request_that_has_none() {
    let cases = cases(include_str!("data/chat/reference.jsonl"));
    let case = cases.iter().find(|case| case.name == "thinking off by kwargs").expect("it is there");
    let mut request: serde_json::Value = serde_json::from_str(case.request.get()).unwrap();
    let variables = request.as_object_mut().unwrap().remove("chat_template_kwargs").unwrap().to_string();
    let files = TokenizerFiles { chat_template_kwargs: Some(variables.try_into().unwrap()), ..files() };
    let body = request.to_string();
    let mut view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096).unwrap();
    let ids = load(&files).unwrap().ids(&mut view, SystemTime::UNIX_EPOCH);
    assert_eq!(ids, Ok(vec![case.prompt_token_ids.clone()]));
    assert_ne!(TOKENIZER.ids(&mut view, SystemTime::UNIX_EPOCH), ids);
}

#[tokio::test]
async fn a_tokenizer_loaded_in_the_background_gives_the_same_blocks_for_long_and_short_bodies() {
    let files = files();
    let limits = TokenizeLimits { inline_body_max: 2000, inline_part_max: 400, ..TokenizeLimits::default() };
    let handle = TokenizerHandle::load(move || load(&files), Arc::new(TokenizeShared::new(limits)));
    assert_eq!(handle.settled().await, TokenizerState::Ready);
    let (mut short, mut long) = (0, 0);
    for case in cases(include_str!("data/chat/engines.jsonl")) {
        let body = Bytes::from(case.request.get().to_owned());
        *(if body.len() > limits.inline_part_max { &mut long } else { &mut short }) += 1;
        for times in ["first", "again"] {
            let mut view = RequestView::parse(case.endpoint(), &body, 4096).unwrap();
            let Prompts::Hashed(prompts) = handle.prompts(&body, &mut view, &root(16)).await else { panic!() };
            assert_eq!(told(&prompts), [blocks_of(&case.prompt_token_ids, 16)], "{} {times}", case.name);
        }
    }
    assert!(short > 0 && long > 0, "{short} short and {long} long");
}

/// What a client of the model says, and what its template acts on.
const SAID: [&str; 8] = [
    "Where does the tide come from?",
    "First: \"the moon\".\n\n```rust\nlet tide = moon.pull();\n```",
    "漢字 и ελληνικά",
    "<think>\nThe moon.\n</think>\n\nFrom the moon.",
    " with white space\n",
    "<tool_response>\n12\n</tool_response>",
    "",
    "a <b> c </b> <|endoftext|> d",
];

#[tokio::test]
async fn conversations_of_one_form_have_the_blocks_of_their_ids() {
    let files = files();
    let handle = TokenizerHandle::load(move || load(&files), Arc::new(TokenizeShared::new(TokenizeLimits::default())));
    assert_eq!(handle.settled().await, TokenizerState::Ready);
    for number in 0..400_usize {
        let said = |turn: usize| SAID[(number * 7 + number / 8 * turn + turn * 3) % SAID.len()];
        let role = |turn: usize| ["user", "assistant", "user", "tool"][(turn + usize::from(number % 5 == 0)) % 4];
        let system = (number % 3 > 0).then(|| json!({ "role": "system", "content": format!("Be brief. {number}") }));
        let turns = (0..number % 6 + 1).map(|turn| json!({ "role": role(turn), "content": said(turn) }));
        let messages: Vec<serde_json::Value> = system.into_iter().chain(turns).collect();
        let body = Bytes::from(json!({ "model": "m", "messages": messages, "reasoning_effort": "none" }).to_string());
        let view = || RequestView::parse(Endpoint::Chat, &body, 4096).unwrap();
        let ids = TOKENIZER.ids(&mut view(), SystemTime::now()).expect("the template takes all roles");
        let Prompts::Hashed(prompts) = handle.prompts(&body, &mut view(), &root(16)).await else { panic!() };
        assert_eq!(told(&prompts), [blocks_of(&ids[0], 16)], "{number}");
    }
}

fn root(block: u32) -> Root {
    Root::new(&Namespace::plain("m", BlockSize::new(block).expect("not 0")), DEFAULT_ROOT_SEED)
}

/// What is told of a prompt: its blocks and its tokens.
type Told = (Vec<SequenceHash>, u32);

fn told(prompts: &[Arc<Hashed>]) -> Vec<Told> {
    prompts.iter().map(|hashed| (hashed.blocks.clone(), hashed.tokens)).collect()
}

fn blocks_of(ids: &[u32], block: u32) -> Told {
    let mut blocks = Vec::new();
    hash_blocks(&root(block), ids, &[], &mut blocks);
    (blocks, u32::try_from(ids.len()).expect("a test's prompt is short"))
}

/// An engine that answers one request with `answer` and hands back what it was asked.
async fn asked_once(listener: TcpListener, answer: String) -> String {
    let (mut stream, _) = listener.accept().await.expect("the client connects");
    let mut request = Vec::new();
    while !request.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut request).await.expect("the client sends"), 0, "the client went away");
    }
    // Only fails if the client has seen enough.
    let _ = stream.write_all(answer.as_bytes()).await;
    String::from_utf8(request).expect("the request is text")
}

/// What a handle without a tokenizer of its own gets from an engine that answers so, and what the engine was asked.
async fn remote(answer: String, answer_bytes_max: usize) -> (Prompts, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let authority = listener.local_addr().expect("it is bound").to_string().parse().expect("an address");
    let limits = LinkLimits { connect: Duration::from_secs(1), idle: Duration::from_secs(1), head: HEAD_MAX };
    let links = Links::new(limits, ClientTls::default(), Tasks::new());
    let link = links.link(&http::uri::Scheme::HTTP, &authority).expect("http needs no certificates");
    let tokenizer = RemoteTokenizer::new(Duration::from_secs(10), answer_bytes_max);
    let engine = Fixed { link, authorization: Some(HeaderValue::from_static("Bearer secret")) };
    tokenizer.set_engines(std::iter::once(Arc::new(engine)));
    let handle =
        TokenizerHandle::absent(Arc::new(TokenizeShared::new(TokenizeLimits::default()))).with_remote(tokenizer);
    let body = Bytes::from_static(br#"{"model":"m","prompt":"Hello"}"#);
    let mut view = RequestView::parse(Endpoint::Completions, &body, 4096).expect("the body is good");
    let root = root(16);
    tokio::join!(handle.prompts(&body, &mut view, &root), asked_once(listener, answer))
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn an_engine_is_asked_where_no_tokenizer_is_configured() {
    let answer = http("200 OK", r#"{"count":2,"max_model_len":4096,"tokens":[9707,1879],"token_strs":null}"#);
    let (prompts, request) = remote(answer, 1000).await;
    assert_eq!(prompts, Prompts::Ids(vec![vec![9707, 1879]]));
    assert!(request.starts_with("POST /tokenize HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nauthorization: Bearer secret\r\n"), "{request}");
    assert!(request.ends_with(r#"{"model":"m","prompt":"Hello","add_special_tokens":true}"#), "{request}");
}

#[tokio::test]
async fn an_engines_bad_answers_count_as_none() {
    let long = format!(r#"{{"tokens":[{}1]}}"#, "1,".repeat(1000));
    for answer in
        [http("200 OK", &long), http("200 OK", "[1]"), http("404 Not Found", r#"{"tokens":[1]}"#), String::new()]
    {
        assert_eq!(remote(answer, 1000).await.0, Prompts::Unknown(Reason::Remote));
    }
}
