//! Token ids of texts and chats against those of a real engine with the same tokenizer.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::value::RawValue;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::{ModelTokenizer, Prompts, Reason};

#[derive(Deserialize)]
struct Recorded {
    engine: String,
    step: String,
    chat: bool,
    request: Box<RawValue>,
    prompt_token_ids: Vec<Vec<u32>>,
}

fn qwen3() -> PathBuf {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/qwen3/tokenizer.json");
    assert!(file.exists(), "{} is missing: run scripts/fetch-tokenizer.sh", file.display());
    file
}

fn recorded() -> Vec<Recorded> {
    let text = include_str!("data/chat/prompts.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn every_recorded_prompt_becomes_the_engines_own_tokens() {
    let tokenizer = ModelTokenizer::load_file(&qwen3()).unwrap();
    let (mut texts, mut chats) = (0, 0);
    for record in recorded() {
        let endpoint = if record.chat { Endpoint::Chat } else { Endpoint::Completions };
        let view = RequestView::parse(endpoint, record.request.get().as_bytes(), 100).unwrap();
        let prompts = tokenizer.prompts(&view).await;
        assert_eq!(prompts, Prompts::Ids(record.prompt_token_ids), "{} of {}", record.step, record.engine);
        if record.chat { chats += 1 } else { texts += 1 }
    }
    assert!(texts >= 10 && chats >= 4, "{texts} texts, {chats} chats");
}

/// Qwen3's template knows tools, calls and their results; the text is the template's own.
#[tokio::test]
async fn a_conversation_with_tools_is_rendered() {
    let tokenizer = ModelTokenizer::load_file(&qwen3()).unwrap();
    let body = serde_json::json!({
        "messages": [
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
                "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
    });
    let body = body.to_string();
    let view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 100).unwrap();
    let Prompts::Ids(ids) = tokenizer.prompts(&view).await else { panic!("no ids") };
    let text = tokenizers::Tokenizer::from_file(qwen3()).unwrap().decode(&ids[0], false).unwrap();
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    let tool = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": null, \"parameters\": {\"type\": \"object\"}}}";
    let result = "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    for part in [call, tool, result] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[tokio::test]
async fn until_it_is_loaded_and_when_it_cannot_be_requests_are_routed_by_load() {
    let view = RequestView::parse(Endpoint::Completions, br#"{"prompt": "x"}"#, 10).unwrap();
    let missing = ModelTokenizer::load_in_background(&PathBuf::from("/nowhere/tokenizer.json"), None);
    while missing.prompts(&view).await == Prompts::Unknown(Reason::Loading) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(missing.prompts(&view).await, Prompts::Unknown(Reason::Broken));
    assert_eq!(missing.complaint(), Some("could not be loaded"));
    let present = ModelTokenizer::load_in_background(&qwen3(), None);
    while present.complaint().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(matches!(present.prompts(&view).await, Prompts::Ids(_)));
}
