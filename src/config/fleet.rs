//! `models` and `workers`: who serves what.

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use warmpath_core::ids::{Rank, WorkerId};
use warmpath_core::units::BlockSize;
use warmpath_core::workers::Role;

use super::address::{BaseUrl, Secret, sent};
use super::endpoint::ZmqEndpoint;
use super::place::Spanned;

/// One model: the pool of the workers that serve it, and how its prompts become tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The name that clients send and that the engines know, since bodies are forwarded as they came.
    pub name: Spanned<String>,
    /// Further names that clients may send; the engines must know them as well (`--served-model-name a b`).
    #[serde(default)]
    pub aliases: Vec<Spanned<String>>,
    /// Where token ids come from; `None`: text prompts are routed by load alone.
    #[serde(default)]
    pub tokenizer: Option<TokenizerSource>,
    /// A file with the Jinja template of chats; `None`: the one beside the tokenizer.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// Variables that the template has where a request does not set them; the engines' `--default-chat-template-kwargs`.
    #[serde(default)]
    pub chat_template_kwargs: Option<TemplateVariables>,
    /// Tokens in a KV-cache block; the engines' `--block-size`.
    #[serde(default = "block_size")]
    pub block_size: BlockSize,
}

/// Where a model's token ids come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenizerSource {
    /// The engines' own `/tokenize`: exact, and a round trip a request.
    Remote,
    /// A token for each byte, as the simulated engine counts.
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    File(PathBuf),
}

/// Variables of a chat template: a JSON object, as the engines take it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateVariables(pub serde_json::Map<String, serde_json::Value>);

impl TryFrom<String> for TemplateVariables {
    type Error = &'static str;

    fn try_from(json: String) -> Result<Self, Self::Error> {
        serde_json::from_str(&json).map(Self).map_err(|_| "must be a JSON object such as {\"enable_thinking\": false}")
    }
}

impl From<TemplateVariables> for String {
    fn from(variables: TemplateVariables) -> Self {
        serde_json::Value::Object(variables.0).to_string()
    }
}

/// One engine replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Its name in metrics, logs and event subjects. Events must carry the same one.
    pub id: Spanned<WorkerId>,
    /// Where it answers.
    pub url: Spanned<BaseUrl>,
    /// The `name` of the model that it serves.
    pub model: Spanned<String>,
    /// Sent as `Authorization: Bearer …` in place of the client's header.
    #[serde(default, deserialize_with = "sent")]
    pub api_key: Option<Secret>,
    /// Data-parallel ranks behind the address, each a routing target of its own.
    #[serde(default = "one", deserialize_with = "ranks")]
    pub dp_ranks: Spanned<NonZeroU16>,
    /// The number of the first of them: where one deployment's ranks are spread over several addresses.
    #[serde(default)]
    pub dp_start_rank: u16,
    /// How its KV-cache events arrive; `None`: see [`Worker::event_source`].
    #[serde(default)]
    pub events: Option<Spanned<EventSource>>,
    /// Where it publishes over ZeroMQ; `None`: `events.zmq` says so.
    #[serde(default)]
    pub zmq_endpoint: Option<Spanned<ZmqEndpoint>>,
    /// Where it replays over ZeroMQ; `None`: `events.zmq` says so.
    #[serde(default)]
    pub zmq_replay: Option<Spanned<ZmqEndpoint>>,
    /// Blocks in its KV cache, a rank; `None`: what the engine reports, else the most that were seen in use.
    #[serde(default)]
    pub capacity_blocks: Option<NonZeroU32>,
    /// Requests that it computes at once, a rank; the engines' `--max-num-seqs`.
    #[serde(default = "max_num_seqs")]
    pub max_num_seqs: NonZeroU32,
    /// Which phases of a request it serves.
    #[serde(default, serialize_with = "write_role", deserialize_with = "read_role")]
    pub role: Role,
}

/// How a worker's KV-cache events arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// Over the NATS server of `events.nats`.
    Nats,
    /// From its own ZeroMQ socket, as `events.zmq` says.
    Zmq,
    /// From an engine inside this process: demo and tests.
    Local,
    /// Not at all: the worker is routed to by load.
    None,
}

impl Worker {
    /// The numbers of its ranks.
    pub fn ranks(&self) -> Range<u32> {
        let first = u32::from(self.dp_start_rank);
        first..first + u32::from(self.dp_ranks.get())
    }

    /// What a rank is called; none where the worker is one target alone.
    pub fn rank(&self, number: u32) -> Option<Rank> {
        (self.dp_start_rank > 0 || self.dp_ranks.get() > 1).then_some(Rank(number))
    }

    /// Whether both are the same engine: at one address, but for engines whose ranks are listed apart.
    pub fn is_engine_of(&self, other: &Self) -> bool {
        let (these, those) = (self.ranks(), other.ranks());
        let meet = these.start < those.end && those.start < these.end;
        meet && self.url.to_string().eq_ignore_ascii_case(&other.url.to_string())
    }

    /// A worker of which only this is known; everything else has its default.
    pub fn at(id: WorkerId, url: BaseUrl, model: String) -> Self {
        Self {
            id: id.into(),
            url: url.into(),
            model: model.into(),
            api_key: None,
            dp_ranks: one(),
            dp_start_rank: 0,
            events: None,
            zmq_endpoint: None,
            zmq_replay: None,
            capacity_blocks: None,
            max_num_seqs: max_num_seqs(),
            role: Role::default(),
        }
    }

    /// The source of its events: as configured, else ZeroMQ where its socket is named, else NATS where a server is
    /// configured, else none.
    pub fn event_source(&self, has_nats: bool) -> EventSource {
        match &self.events {
            Some(source) => source.value,
            None if self.zmq_endpoint.is_some() => EventSource::Zmq,
            None if has_nats => EventSource::Nats,
            None => EventSource::None,
        }
    }

    /// The same host at another port.
    pub(super) fn zmq_at(&self, port: NonZeroU16) -> Option<ZmqEndpoint> {
        let host = self.url.uri().host()?;
        format!("tcp://{host}:{port}").parse().ok()
    }
}

impl TryFrom<String> for TokenizerSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "" => Err("expected `remote`, `bytes` or the path of a tokenizer.json, got ``".to_owned()),
            "remote" => Ok(Self::Remote),
            "bytes" => Ok(Self::Bytes),
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl From<TokenizerSource> for String {
    fn from(source: TokenizerSource) -> String {
        match source {
            TokenizerSource::Remote => "remote".to_owned(),
            TokenizerSource::Bytes => "bytes".to_owned(),
            TokenizerSource::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

fn block_size() -> BlockSize {
    BlockSize::new(16).expect("16 is not 0")
}

pub(super) fn one() -> Spanned<NonZeroU16> {
    NonZeroU16::MIN.into()
}

/// The most ranks behind one address: far more than any engine has, and few enough that a slip of the pen, or one entry of
/// somebody else's in the bucket of registrations, does not keep everybody busy.
pub const DP_RANKS_MAX: u16 = 1024;

pub(super) fn ranks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<NonZeroU16>, D::Error> {
    let ranks = Spanned::<NonZeroU16>::deserialize(deserializer)?;
    if ranks.get() <= DP_RANKS_MAX {
        return Ok(ranks);
    }
    Err(de::Error::custom(format_args!("must be at most {DP_RANKS_MAX}, got {}", ranks.value)))
}

/// vLLM's default.
pub(super) fn max_num_seqs() -> NonZeroU32 {
    NonZeroU32::new(256).expect("256 is not 0")
}

fn read_role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Role, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "both" => Ok(Role::Both),
        "prefill" | "decode" => Err(de::Error::custom(format_args!("role `{text}` is not served: only `both` is"))),
        _ => Err(de::Error::unknown_variant(&text, &["both"])),
    }
}

fn write_role<S: Serializer>(role: &Role, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match role {
        Role::Both => "both",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    })
}
