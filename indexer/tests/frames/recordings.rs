//! What real engines sent; `tests/data/frames/README.md` tells whence it comes.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use crate::golden::hex;

/// One message of an engine.
pub(crate) struct Message {
    pub(crate) step: String,
    pub(crate) seq: u64,
    pub(crate) payload: Vec<u8>,
}

/// The prompt that made an engine send something.
#[derive(Deserialize)]
pub(crate) struct Prompt {
    pub(crate) step: String,
    pub(crate) model: String,
    #[serde(rename = "cache_salt")]
    pub(crate) salt: Option<String>,
    #[serde(rename = "prompt_token_ids")]
    pub(crate) ids: Vec<u32>,
}

fn lines<T: for<'a> Deserialize<'a>>(folder: &str, file: &str) -> Vec<T> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "tests", "data", "frames", folder, file].iter().collect();
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of the recording")).collect()
}

/// All messages of a recording, in order.
pub(crate) fn recording(folder: &str) -> Vec<Message> {
    #[derive(Deserialize)]
    struct Line {
        step: String,
        frames: [String; 3],
    }
    let message = |line: Line| {
        let [_, seq, payload] = line.frames.map(|frame| hex(&frame));
        Message { step: line.step, seq: u64::from_be_bytes(seq.try_into().expect("8 bytes")), payload }
    };
    lines(folder, "events.jsonl").into_iter().map(message).collect()
}

/// The prompts whose token ids were noted.
pub(crate) fn prompts(folder: &str) -> Vec<Prompt> {
    lines(folder, "prompts.jsonl")
}
