//! Requests become the token ids that real engines make of them. Needs `scripts/fetch-tokenizer.sh`.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::hf::{TokenizerFiles, load};
use warmpath::tokenize::{ModelTokenizer, Prompts, TokenizeLimits, TokenizerHandle, TokenizerState};

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
    TokenizerFiles { tokenizer: folder, chat_template: None, model_tokens_max: None }
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

    fn prompts(&self) -> Prompts {
        let mut view = RequestView::parse(self.endpoint(), self.request.get().as_bytes(), 4096)
            .expect("recorded requests are good");
        TOKENIZER.prompts(&mut view, SystemTime::UNIX_EPOCH)
    }
}

fn cases(json_lines: &str) -> Vec<Case> {
    json_lines.lines().map(|line| serde_json::from_str(line).expect("the file has one case a line")).collect()
}

/// Compares each case and returns how many there were on each endpoint: completions, chats.
fn compare(cases: &[Case]) -> (usize, usize) {
    for case in cases {
        let expected = Prompts::Ids(vec![case.prompt_token_ids.clone()]);
        assert_eq!(case.prompts(), expected, "{} {}", case.engine, case.name);
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

#[tokio::test]
async fn a_tokenizer_loaded_in_the_background_gives_the_same_ids_for_long_and_short_bodies() {
    let files = files();
    let limits = TokenizeLimits { inline_bytes_max: 600, ..TokenizeLimits::default() };
    let handle = TokenizerHandle::load(move || load(&files), limits);
    assert_eq!(handle.settled().await, TokenizerState::Ready);
    let (mut short, mut long) = (0, 0);
    for case in cases(include_str!("data/chat/engines.jsonl")) {
        let body = Bytes::from(case.request.get().to_owned());
        *(if body.len() > limits.inline_bytes_max { &mut long } else { &mut short }) += 1;
        let mut view = RequestView::parse(case.endpoint(), &body, 4096).unwrap();
        assert_eq!(handle.prompts(&body, &mut view).await, Prompts::Ids(vec![case.prompt_token_ids]), "{}", case.name);
    }
    assert!(short > 0 && long > 0, "{short} short and {long} long");
}
