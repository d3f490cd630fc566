//! What is kept of earlier requests changes nothing of what later ones are told, and saves what it should.

use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::hf::{HfTokenizer, load};
use warmpath::tokenize::{
    ChatTemplate, ModelTokenizer, Prompts, TokenizeLimits, TokenizeShared, Tokenizer, TokenizerHandle,
};

use super::{Told, blocks_of, files, root, told};

/// The reference, which keeps nothing.
static PLAIN: LazyLock<HfTokenizer> =
    LazyLock::new(|| HfTokenizer::from_file(&files().tokenizer.join("tokenizer.json")).expect("the file is there"));

/// The same with the model's template.
static PLAIN_MODEL: LazyLock<ModelTokenizer> = LazyLock::new(|| {
    let folder = files().tokenizer;
    let config = std::fs::read_to_string(folder.join("tokenizer_config.json")).expect("the file is there");
    let config: Value = serde_json::from_str(&config).expect("it is JSON");
    let template = ChatTemplate::new(config["chat_template"].as_str().expect("there is one")).expect("it compiles");
    let tokenizer = HfTokenizer::from_file(&folder.join("tokenizer.json")).expect("the file is there");
    ModelTokenizer::new(tokenizer, Some(template))
});

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads can be had"));

fn plain(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    PLAIN.encode(text, true, &mut ids).expect("any text is encoded");
    ids
}

/// A handle of its own memory, as all share one tokenizer here.
fn handle(limits: TokenizeLimits) -> TokenizerHandle {
    static LOADED: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADED.lock();
    TokenizerHandle::ready(load(&files()).expect("the files are there"), Arc::new(TokenizeShared::new(limits)))
}

fn ask(handle: &TokenizerHandle, endpoint: Endpoint, body: &Value, block: u32) -> Vec<Told> {
    let body = Bytes::from(body.to_string());
    let mut view = RequestView::parse(endpoint, &body, 4096).expect("the body is good");
    match RUNTIME.block_on(handle.prompts(&body, &mut view, &root(block))) {
        Prompts::Hashed(prompts) => told(&prompts),
        other => panic!("{other:?}"),
    }
}

/// Cuts at every safe place; keeps much, or next to nothing, or nothing for long.
static HANDLES: LazyLock<[TokenizerHandle; 3]> = LazyLock::new(|| {
    let everywhere = TokenizeLimits { part_min: 1, ..TokenizeLimits::default() };
    let evicting = TokenizeLimits { cache_bytes: 200 << 10, part_min: 40, ..everywhere };
    [handle(everywhere), handle(evicting), handle(TokenizeLimits { part_min: 300, ..everywhere })]
});

/// What tokenizers stumble over, and what ends words for some patterns and not for others.
const PIECES: [&str; 64] = [
    "a",
    "Z",
    "word",
    " word",
    " the",
    "'s",
    "'LL",
    "don't",
    " I'M",
    "\"",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    " \n",
    "\n ",
    "\n/",
    "/\n",
    "!\n",
    "! ",
    "1",
    " 12",
    "1234567",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    ".",
    "...",
    "?!",
    "</",
    "/>",
    "<|",
    "|>",
    "<|im_end|>",
    "<|im_start|>",
    "<|im_start",
    "<tool_call>",
    "</think>",
    "<|endoftext|>",
    "é",
    "e\u{301}",
    "\u{301}",
    "\n\u{301}",
    "A\u{30a}",
    "\u{1100}",
    "\u{1161}",
    "漢字",
    "字。",
    "。",
    "，",
    "カナ、",
    "ﬁ",
    "😀",
    "👩\u{200d}👧",
    "\u{200b}",
    "\u{0}",
    "مرحبا",
    "ไทย",
];

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        20 => select(PIECES.as_slice()).prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => (select(PIECES.as_slice()), 2..40_usize).prop_map(|(piece, times)| piece.repeat(times)),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Texts that begin like earlier ones, repeat parts of them, or repeat them whole.
fn conversation() -> impl Strategy<Value = Vec<String>> {
    let turn = (text(), any::<Index>(), any::<Index>(), 0..4_u8);
    prop::collection::vec(turn, 1..6).prop_map(|turns| {
        let mut texts: Vec<String> = Vec::new();
        for (new, which, place, how) in turns {
            let Some(earlier) = (!texts.is_empty()).then(|| texts[which.index(texts.len())].clone()) else {
                texts.push(new);
                continue;
            };
            let ends: Vec<usize> = earlier.char_indices().map(|(at, _)| at).chain([earlier.len()]).collect();
            let (before, behind) = earlier.split_at(ends[place.index(ends.len())]);
            texts.push(match how {
                0 => earlier.clone(),
                1 => earlier.clone() + &new,
                2 => format!("{before}{new}"),
                _ => format!("{before}{new}{behind}"),
            });
        }
        texts.retain(|text| !text.is_empty());
        texts
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn texts_have_the_blocks_of_the_plain_tokenizer_whatever_was_seen_before(texts in conversation(), block in 1..40_u32) {
        for text in &texts {
            let expected = [blocks_of(&plain(text), block)];
            for handle in &*HANDLES {
                let body = json!({"model": "m", "prompt": text});
                prop_assert_eq!(&ask(handle, Endpoint::Completions, &body, block)[..], &expected[..]);
            }
        }
    }

    #[test]
    fn chats_have_the_blocks_of_the_plain_tokenizer_turn_by_turn(
        contents in prop::collection::vec(text(), 1..6),
        system in select(vec!["", "Be terse.", "<|im_end|>\n"]),
        thinking in any::<Option<bool>>(),
    ) {
        let mut messages = vec![json!({"role": "system", "content": system})];
        for (turn, content) in contents.iter().enumerate() {
            let role = ["user", "assistant", "tool"][turn % 3];
            messages.push(json!({"role": role, "content": content}));
            let mut body = json!({"model": "m", "messages": messages});
            if let Some(thinking) = thinking {
                body["chat_template_kwargs"] = json!({"enable_thinking": thinking});
            }
            let bytes = body.to_string();
            let mut view = RequestView::parse(Endpoint::Chat, bytes.as_bytes(), 4096).unwrap();
            let ids = PLAIN_MODEL.ids(&mut view, std::time::SystemTime::now()).unwrap();
            let expected = [blocks_of(&ids[0], 16)];
            for handle in &*HANDLES {
                prop_assert_eq!(&ask(handle, Endpoint::Chat, &body, 16)[..], &expected[..]);
                prop_assert_eq!(&ask(handle, Endpoint::Chat, &body, 16)[..], &expected[..], "again");
            }
        }
    }
}

/// Prose of about so many bytes, different for each seed.
fn prose(seed: usize, bytes: usize) -> String {
    let words = ["river", "stone", "of", "the", "light", "and", "Bern,", "walked", "it.\n", "42"];
    let mut text = String::new();
    let mut place = seed;
    while text.len() < bytes {
        place = place.wrapping_mul(31).wrapping_add(7) % 1009;
        text.push_str(words[place % words.len()]);
        text.push(' ');
    }
    text
}

/// Bytes that were encoded, and those that were not.
fn bytes(handle: &TokenizerHandle) -> (u64, u64) {
    let figures = handle.figures(std::time::Instant::now());
    (figures.encoded_bytes, figures.found_bytes + figures.repeated_bytes)
}

#[test]
fn a_conversation_is_encoded_once_and_each_turn_only_by_what_is_new() {
    let handle = handle(TokenizeLimits::default());
    let mut messages = vec![json!({"role": "system", "content": prose(1, 6000)})];
    // What the template puts round a turn's messages, and the beginning of the answer that follows.
    let around = 120;
    for turn in 0..10_usize {
        let (question, answer) = (prose(turn + 100, 700), prose(turn + 200, 1500));
        messages.push(json!({"role": "user", "content": question}));
        let (before, body) = (bytes(&handle).0, json!({"model": "m", "messages": messages}));
        ask(&handle, Endpoint::Chat, &body, 16);
        let new = bytes(&handle).0 - before;
        let told = if turn == 0 { 6000 + 700 } else { 700 + 1500 };
        let told = u64::try_from(told).unwrap();
        assert!((told..told + around).contains(&new), "turn {turn}: {new} bytes for {told}");
        // A retry costs nothing.
        ask(&handle, Endpoint::Chat, &body, 16);
        assert_eq!(bytes(&handle).0, before + new);
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    let (encoded, known) = bytes(&handle);
    assert!(known > 9 * encoded, "{known} known, {encoded} encoded");
    assert!(handle.figures(std::time::Instant::now()).known_share > 0.9);
}

#[test]
fn a_conversation_goes_on_from_its_last_turn_even_if_its_parts_are_gone() {
    let handle = handle(TokenizeLimits { cache_bytes: 2 << 20, ..TokenizeLimits::default() });
    let turn = |role: &str, text: String| json!({"role": role, "content": text});
    let begun =
        |seed: usize, bytes: usize| vec![turn("system", prose(seed, bytes)), turn("user", prose(seed + 50, 700))];
    let gone_on = |seed: usize, bytes: usize| {
        let more = [turn("assistant", prose(seed + 60, 700)), turn("user", prose(seed + 70, 700))];
        begun(seed, bytes).into_iter().chain(more).collect::<Vec<_>>()
    };
    let chat_with = |messages: Vec<Value>, variables: Value| {
        let before = bytes(&handle).0;
        let body = json!({"model": "m", "messages": messages, "chat_template_kwargs": variables});
        let told = ask(&handle, Endpoint::Chat, &body, 16);
        let body = body.to_string();
        let mut view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096).expect("the body is good");
        let ids = PLAIN_MODEL.ids(&mut view, std::time::SystemTime::now()).expect("the template takes them");
        assert_eq!(told, [blocks_of(&ids[0], 16)]);
        bytes(&handle).0 - before
    };
    let chat = |messages| chat_with(messages, json!({}));
    // Conversations of these forms are known then.
    for seed in 0..4 {
        chat(begun(seed, 300));
        chat(gone_on(seed, 300));
    }
    assert!(chat(begun(9, 16_000)) > 16_000);
    for seed in 0..900 {
        ask(&handle, Endpoint::Completions, &json!({"model": "m", "prompt": prose(seed, 8_000)}), 16);
    }
    // The last part of the first text and the texts behind it.
    let new = chat(gone_on(9, 16_000));
    assert!(new < 7_000, "{new} bytes");
    // The parts were let go: what has another form begins anew, up to those that were just made.
    let anew = chat_with(gone_on(9, 16_000), json!({"other": 1}));
    assert!(anew > 7_000, "{anew} bytes");
}

#[test]
fn a_system_prompt_that_many_share_is_encoded_once() {
    let handle = handle(TokenizeLimits::default());
    let system = prose(1, 20_000);
    for user in 0..20_usize {
        let question = prose(user + 100, 300);
        let body = json!({"model": "m", "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": question}]});
        let before = bytes(&handle).0;
        ask(&handle, Endpoint::Chat, &body, 16);
        let new = bytes(&handle).0 - before;
        let most = if user == 0 { 21_000 } else { 450 };
        assert!(new < most, "user {user}: {new} bytes");
    }
}

#[test]
fn a_text_without_turns_is_encoded_from_the_last_part_on() {
    let handle = handle(TokenizeLimits::default());
    let mut text = prose(1, 30_000);
    for turn in 0..10_usize {
        let before = bytes(&handle).0;
        ask(&handle, Endpoint::Completions, &json!({"model": "m", "prompt": text}), 16);
        let new = bytes(&handle).0 - before;
        assert!(turn == 0 || new < 800 + 4096 + 20, "turn {turn}: {new} bytes");
        text.push_str(&prose(turn + 100, 800));
    }
}

#[test]
fn what_was_let_go_is_encoded_again_and_comes_to_the_same() {
    let limits = TokenizeLimits { cache_bytes: 100 << 10, ..TokenizeLimits::default() };
    let handle = handle(limits);
    let texts: Vec<String> = (0..100).map(|seed| prose(seed, 8_000)).collect();
    let rounds = [(); 2].map(|()| {
        let before = bytes(&handle).0;
        for text in &texts {
            let expected = [blocks_of(&plain(text), 16)];
            assert_eq!(ask(&handle, Endpoint::Completions, &json!({"model": "m", "prompt": text}), 16), expected);
            assert!(handle.figures(std::time::Instant::now()).cache_bytes <= limits.cache_bytes);
        }
        bytes(&handle).0 - before
    });
    assert!(rounds[1] > rounds[0] / 2, "{rounds:?} bytes");
}

#[test]
fn the_fast_way_is_the_one_that_is_tested_here() {
    let figures = handle(TokenizeLimits::default()).figures(std::time::Instant::now());
    assert_eq!((figures.fast, figures.cuts), (Some(true), Some(true)));
}

#[test]
fn namespaces_keep_apart_what_they_hash() {
    let handle = handle(TokenizeLimits::default());
    let body = json!({"model": "m", "prompt": prose(1, 5000)});
    let ids = plain(body["prompt"].as_str().unwrap());
    for block in [16, 32, 16] {
        assert_eq!(ask(&handle, Endpoint::Completions, &body, block), [blocks_of(&ids, block)]);
    }
}
