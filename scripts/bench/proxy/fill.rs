//! The prefixes that the workers hold, as events that the router fetches over ZeroMQ when it starts.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use warmpath::config::ZmqEndpoint;
use warmpath::events::Message;
use warmpath::events::publish::zmq::{Envelope, ZmqOutlet, ZmqPublisher};
use warmpath::openai::Endpoint;
use warmpath::shutdown::Tasks;
use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;
use warmpath_indexer::codec::encode::{self, Form, HashForm};
use warmpath_indexer::event::{Attention, Content, EventBatch, Stored};

use super::router::Router;
use crate::bodies::{BLOCK, Bodies, Body, CHAT_BYTES, CONVERSATIONS, ID_PROMPTS, IDS_KNOWN, Kind, ids_known};
use crate::corpus::Corpus;
use crate::draws::{Draws, splitmix64};
use crate::tokens::Tokens;

/// Batches that are kept for the router.
const BATCHES_MAX: usize = 65_536;

/// The sending side of the workers' events.
pub(crate) struct Fleet {
    publishers: Vec<ZmqPublisher>,
    tasks: Tasks,
    runtime: tokio::runtime::Runtime,
    batches: u64,
    /// Blocks that each worker holds.
    pub(crate) blocks: usize,
}

impl Fleet {
    /// Opens the sockets of so many workers, which hold nothing yet.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) fn start(workers: usize) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let tasks = Tasks::new();
        let any = || ZmqEndpoint::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let mut publishers = Vec::new();
        for _ in 0..workers {
            let outlet = ZmqOutlet {
                bind: Some(any()),
                connect: None,
                replay: Some(any()),
                envelope: Envelope::Topic,
                kept: BATCHES_MAX,
                topic: String::new(),
            };
            publishers.push(runtime.block_on(ZmqPublisher::start(outlet, &tasks))?);
        }
        Ok(Self { publishers, tasks, runtime, batches: 0, blocks: 0 })
    }

    /// Each worker's sockets, for events and for replays.
    ///
    /// # Errors
    /// Never: both were asked for.
    pub(crate) fn endpoints(&self) -> anyhow::Result<Vec<(String, String)>> {
        let told = |endpoint: &Option<ZmqEndpoint>| Some(endpoint.as_ref()?.to_string());
        let both = |publisher: &ZmqPublisher| Some((told(&publisher.events)?, told(&publisher.replay)?));
        self.publishers.iter().map(both).collect::<Option<_>>().context("a socket without an address")
    }

    /// Every worker stores the full blocks of `ids`, the prompt of this number.
    fn store(&mut self, prompt: u64, ids: &[u32]) -> anyhow::Result<()> {
        let block = usize::try_from(BLOCK)?;
        let ids = &ids[..ids.len() / block * block];
        let names = (0_u64..).take(ids.len() / block).map(|at| EngineHash(splitmix64(prompt << 20 | at)));
        let stored = Stored {
            hashes: names.collect(),
            parent: None,
            content: Content::Tokens(ids.to_vec()),
            block_size: Some(BLOCK),
            tier: Tier::Device,
            group: Some(0),
            attention: Attention::Prefix,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        };
        let ts = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let batch = EventBatch { ts: Some(ts), dp_rank: Some(0), events: vec![stored.into()], ..EventBatch::default() };
        let payload = encode::encode(&batch, Form::Map, HashForm::Int)?;
        let message = Message { payload: payload.into(), seq: Some(self.batches), epoch: None };
        for publisher in &self.publishers {
            publisher.keep(message.clone());
        }
        self.batches += 1;
        self.blocks += ids.len() / block;
        Ok(())
    }

    /// Every worker holds the conversations, the prompts of token ids, and others up to `blocks` in all. Returns how many
    /// tokens of each conversation they hold.
    ///
    /// # Errors
    /// When a conversation cannot be tokenized.
    pub(crate) fn fill(&mut self, conversations: &[Vec<u32>], blocks: usize) -> anyhow::Result<Vec<u32>> {
        let mut cached = Vec::new();
        for (number, ids) in (0_u64..).zip(conversations) {
            self.store(number, ids)?;
            cached.push(u32::try_from(ids.len())? / BLOCK * BLOCK);
        }
        for number in 0..ID_PROMPTS {
            self.store(1_000 + number, &ids_known(number))?;
        }
        let mut draws = Draws::started_at(0xf111);
        for number in 10_000.. {
            if self.blocks >= blocks {
                break;
            }
            let ids: Vec<u32> = (0..IDS_KNOWN).map(|_| draws.token()).collect();
            self.store(number, &ids)?;
        }
        Ok(cached)
    }

    /// Whether the router's view of every worker is what the worker holds.
    pub(crate) fn is_known_to(&self, router: &Router) -> Option<()> {
        let workers = router.workers().ok()?;
        let whole = workers.iter().all(|worker| worker["index_blocks"].as_u64() == u64::try_from(self.blocks).ok());
        (whole && workers.len() == self.publishers.len()).then_some(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.cancel();
        self.runtime.block_on(self.tasks.drain(std::time::Duration::from_secs(1)));
    }
}

/// Counts the tokens of a chat beside its texts, checks the count of whole requests, and tells the ids with which each
/// conversation begins, whatever its last turn.
///
/// # Errors
/// When the corpus does not know how many tokens a request has.
pub(crate) fn conversations(tokens: &Tokens, corpus: &mut Corpus) -> anyhow::Result<Vec<Vec<u32>>> {
    corpus.chat_overhead = 0;
    let none = vec![0; usize::try_from(CONVERSATIONS)?];
    let mut warm = Bodies::new(Kind::ChatWarm, false, corpus.clone(), 1, &none);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut overheads = Vec::new();
    for turns in [&mut first, &mut second] {
        for _ in 0..CONVERSATIONS {
            let mut body = Body::default();
            warm.write(&mut body);
            let (size, counted) = (body.json.len(), body.prompt_tokens);
            anyhow::ensure!(size.abs_diff(CHAT_BYTES) < CHAT_BYTES / 20, "a chat of {size} bytes");
            let ids = tokens.reference(Endpoint::Chat, &Bytes::from(body.json))?;
            overheads.push(u32::try_from(ids.len())?.checked_sub(counted).context("too many counted")?);
            turns.push(ids);
        }
    }
    corpus.chat_overhead = overheads[0];
    anyhow::ensure!(
        overheads.iter().all(|other| *other == overheads[0]),
        "chats are not counted exactly: {overheads:?}"
    );
    let common = |(a, b): (Vec<u32>, Vec<u32>)| {
        let length = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        a[..length].to_vec()
    };
    Ok(first.into_iter().zip(second).map(common).collect())
}
