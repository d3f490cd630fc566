//! What clients ask: the four sorts of bodies, each with what an engine would say of it in `usage`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::corpus::Corpus;
use crate::draws::Draws;

/// The model of all requests.
pub(crate) const MODEL: &str = "bench";
/// Tokens in a block.
pub(crate) const BLOCK: u32 = 16;
/// Bytes of a long chat.
pub(crate) const CHAT_BYTES: usize = 32 << 10;
/// Conversations that go on, and prompts of token ids that come again with another end.
pub(crate) const CONVERSATIONS: u64 = 16;
pub(crate) const ID_PROMPTS: u64 = 256;
/// Token ids of a prompt; all but the last block of it are known to the workers.
pub(crate) const IDS: u32 = 2_048;
pub(crate) const IDS_KNOWN: u32 = IDS - BLOCK;

/// Bytes of a message in a long chat, and of the new turn of one that goes on.
const MESSAGE_BYTES: usize = 3_270;
const TURN_BYTES: usize = 700;

/// A sort of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A completion of one line of text.
    Short,
    /// A chat of 32 KiB of which all but the last turn was seen before.
    ChatWarm,
    /// A chat of 32 KiB that nobody has seen before.
    ChatCold,
    /// A completion of 2 048 token ids, all but the last 16 of which the workers hold.
    Ids,
}

impl Kind {
    /// Where it is sent.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Short | Self::Ids => "/v1/completions",
            Self::ChatWarm | Self::ChatCold => "/v1/chat/completions",
        }
    }
}

/// A request's body, and what the engine says of it.
#[derive(Default)]
pub(crate) struct Body {
    /// The bytes.
    pub(crate) json: String,
    /// Tokens of the prompt; 0 where they were not counted.
    pub(crate) prompt_tokens: u32,
    /// How many of them the engine finds in its cache.
    pub(crate) cached_tokens: u32,
}

/// Makes bodies of one sort, no two of them alike.
pub(crate) struct Bodies {
    kind: Kind,
    stream: bool,
    corpus: Corpus,
    draws: Draws,
    next: usize,
    /// What bodies that go on begin with, the tokens of their texts, and how many of them the workers hold.
    beginnings: Vec<(String, u32, u32)>,
}

impl Bodies {
    /// `cached` has for each conversation the tokens of it that the workers hold.
    pub(crate) fn new(kind: Kind, stream: bool, corpus: Corpus, seed: u64, cached: &[u32]) -> Self {
        let beginnings = match kind {
            Kind::Short | Kind::ChatCold => Vec::new(),
            Kind::ChatWarm => (0..CONVERSATIONS)
                .zip(cached)
                .map(|(number, &cached)| {
                    let (json, tokens) = chat_beginning(&corpus, CHAT_BYTES - TURN_BYTES, &mut conversation(number));
                    (json, tokens, cached)
                })
                .collect(),
            Kind::Ids => (0..ID_PROMPTS).map(|number| (ids_beginning(number), IDS, IDS_KNOWN)).collect(),
        };
        Self { kind, stream, corpus, draws: Draws::started_at(seed), next: 0, beginnings }
    }

    /// Writes the next one over `body`.
    pub(crate) fn write(&mut self, body: &mut Body) {
        body.json.clear();
        body.cached_tokens = 0;
        match self.kind {
            Kind::Short => {
                let _ = write!(body.json, r#"{{"model":"{MODEL}","prompt":""#);
                body.prompt_tokens = self.corpus.message(&mut self.draws, 1, &mut body.json);
                body.json.push('"');
            }
            Kind::ChatCold => {
                let (beginning, tokens) = chat_beginning(&self.corpus, CHAT_BYTES - TURN_BYTES, &mut self.draws);
                body.json = beginning;
                self.end_chat(tokens, body);
            }
            Kind::ChatWarm => {
                let (beginning, tokens, cached) = &self.beginnings[self.next % self.beginnings.len()];
                body.json.push_str(beginning);
                body.cached_tokens = *cached;
                self.end_chat(*tokens, body);
            }
            Kind::Ids => {
                let (beginning, tokens, cached) = &self.beginnings[self.next % self.beginnings.len()];
                body.json.push_str(beginning);
                (body.prompt_tokens, body.cached_tokens) = (*tokens, *cached);
                for _ in 0..BLOCK {
                    let _ = write!(body.json, ",{}", self.draws.token());
                }
                body.json.push(']');
            }
        }
        self.next += 1;
        body.json.push_str(if self.stream { r#","max_tokens":50,"stream":true}"# } else { r#","max_tokens":16}"# });
    }

    fn end_chat(&mut self, beginning_tokens: u32, body: &mut Body) {
        let turn = self.corpus.message(&mut self.draws, TURN_BYTES - 100, &mut body.json);
        body.json.push_str("\"}]");
        body.prompt_tokens = self.corpus.chat_overhead + beginning_tokens + turn;
    }
}

/// The draws of a conversation that every process knows.
pub(crate) fn conversation(number: u64) -> Draws {
    Draws::started_at(0xc0_0000 + number)
}

/// The known token ids of a prompt that every process knows.
pub(crate) fn ids_known(number: u64) -> Vec<u32> {
    let mut draws = Draws::started_at(0x1d_0000 + number);
    (0..IDS_KNOWN).map(|_| draws.token()).collect()
}

fn ids_beginning(number: u64) -> String {
    let ids: Vec<String> = ids_known(number).iter().map(u32::to_string).collect();
    format!(r#"{{"model":"{MODEL}","prompt":[{}"#, ids.join(","))
}

/// A chat of about `bytes`, up to where the text of its last message begins, and the tokens of the texts before.
pub(crate) fn chat_beginning(corpus: &Corpus, bytes: usize, draws: &mut Draws) -> (String, u32) {
    // A system prompt, then pairs of question and answer, then the last question.
    let pairs = (bytes / MESSAGE_BYTES).saturating_sub(1).div_ceil(2);
    let messages = 1 + 2 * pairs;
    let each = bytes / messages;
    let mut json = String::with_capacity(bytes + 1_024);
    let _ = write!(json, r#"{{"model":"{MODEL}","messages":["#);
    let mut tokens = 0;
    for number in 0..messages {
        let role = match number {
            0 => "system",
            odd if odd % 2 == 1 => "user",
            _ => "assistant",
        };
        let _ = write!(json, r#"{{"role":"{role}","content":""#);
        tokens += corpus.message(draws, each.saturating_sub(90), &mut json);
        json.push_str(r#""},"#);
    }
    json.push_str(r#"{"role":"user","content":""#);
    (json, tokens)
}
