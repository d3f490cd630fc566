//! A prompt that nobody has sent before, sent twice: whether the engine tells what it caches, whether it tells again what
//! was missed, and whether it finds what the router would predict.

use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::time::sleep;
use warmpath_core::ids::{Rank, TokenId};
use warmpath_core::trust::PrefixCounters;
use warmpath_core::units::{BlockSize, Blocks};

use super::ear::Notes;
use super::engine::Engine;
use super::finding::{Check, Finding};
use super::listening::Listening;
use super::remedy;
use crate::config::{Config, EventSource, Model, Worker};
use crate::events::{Ask, AskId};

/// Whole blocks of a probe, at least; and its tokens, so that short blocks make a prompt that is nobody else's.
const BLOCKS: u32 = 4;
const TOKENS: u32 = 64;

/// Ids that mean ordinary text in every vocabulary of more than 2 000 tokens.
const ORDINARY: std::ops::Range<TokenId> = 1000..2000;

/// How long engines that connect to us are waited for: libzmq tries again after 100 ms.
const ARRIVAL: Duration = Duration::from_secs(2);

/// How long an engine's counters may lag behind its answer.
const COUNTING: Duration = Duration::from_secs(2);
const COUNTING_LOOK: Duration = Duration::from_millis(50);

/// One rank of a worker, about to be probed.
pub(super) struct Probe<'a> {
    pub(super) engine: &'a Engine,
    pub(super) listening: &'a Listening,
    pub(super) config: &'a Config,
    pub(super) worker: &'a Worker,
    pub(super) model: &'a Model,
    pub(super) rank: Option<Rank>,
    /// The most tokens that the engine takes.
    pub(super) longest: Option<u64>,
    pub(super) patience: Duration,
}

/// What came of it.
pub(super) struct Probed {
    pub(super) events: Finding,
    pub(super) replay: Finding,
    pub(super) prediction: Finding,
    /// Tokens in a block, as the events have it.
    pub(super) carried: Option<u32>,
}

/// One sending of the prompt.
struct Sent {
    /// Cached tokens that the router would have predicted.
    predicted: u32,
    /// Cached tokens that were reported; or why they are unknown.
    reported: Result<u32, &'static str>,
}

/// A prompt of whole blocks and a bit, so that the last block is never the one that engines compute anew in any case.
/// None where the engine takes fewer than two blocks.
fn prompt(block_size: BlockSize, longest: Option<u64>) -> Option<Vec<TokenId>> {
    let size = block_size.get();
    let room = longest.map_or(u32::MAX, |longest| u32::try_from(longest).unwrap_or(u32::MAX).saturating_sub(1));
    let rest = size / 2;
    let blocks = BLOCKS.max(TOKENS.div_ceil(size)).min(room.saturating_sub(rest) / size);
    if blocks < 2 {
        return None;
    }
    let mut rng = rand::rng();
    Some((0..blocks * size + rest).map(|_| rng.random_range(ORDINARY)).collect())
}

/// What an engine finds of `held` blocks: at least one token is always computed.
fn capped(held: Blocks, prompt: &[TokenId], size: BlockSize) -> u32 {
    let most = u32::try_from(prompt.len()).unwrap_or(u32::MAX).saturating_sub(1) / size.get();
    held.0.min(most) * size.get()
}

impl Probed {
    /// Without events nothing else can be found out.
    fn only(events: Finding) -> Self {
        let why = "no events to go by";
        let (replay, prediction) = (Finding::skipped(Check::Replay, why), Finding::skipped(Check::Prediction, why));
        Self { events, replay, prediction, carried: None }
    }

    /// There is nothing to listen to.
    pub(super) fn unheard(why: &str, remedy: String) -> Self {
        Self::only(Finding::failed(Check::Events, why, remedy))
    }
}

impl Probe<'_> {
    /// Sends the prompt twice, and listens.
    pub(super) async fn run(&self) -> Probed {
        let Some(prompt) = prompt(self.model.block_size, self.longest) else {
            return Probed::only(Finding::skipped(Check::Events, "the engine takes no prompt of two blocks"));
        };
        if let Some(finding) = self.disconnected().await {
            return Probed::only(finding);
        }
        self.listening.seek(&prompt);
        let (begun, before) = (Instant::now(), self.listening.notes().batches);
        let cold = match self.send(&prompt, Blocks(0)).await {
            Ok(cold) => cold,
            Err(why) => {
                return Probed::only(Finding::failed(
                    Check::Events,
                    format!("the probe got no answer: {why}"),
                    unanswered(&why),
                ));
            }
        };
        let events = self.events(&prompt, begun, before).await;
        let carried = self.listening.notes().carried;
        if events.has_failed() {
            return Probed { carried, ..Probed::only(events) };
        }
        let replay = self.replay().await;
        let prediction = if carried.is_some_and(|carried| carried != self.model.block_size.get()) {
            Finding::skipped(Check::Prediction, "the block size is another one")
        } else if replay.has_failed() && self.listening.is_incomplete() {
            Finding::skipped(Check::Prediction, "until a replay succeeds or is given up, the view promises nothing new")
        } else {
            self.prediction(&prompt, &cold).await
        };
        Probed { events, replay, prediction, carried }
    }

    /// Why events cannot arrive.
    async fn disconnected(&self) -> Option<Finding> {
        let connected = |notes: &Notes| notes.connected && notes.pending == 0;
        if self.listening.is_awaited() {
            // Who connects to us is known only once it speaks.
            self.listening.until(ARRIVAL.min(self.patience), connected).await;
            let why = self.listening.trouble()?;
            let finding = Finding::skipped(Check::Events, format!("engines cannot connect here: {why}"));
            return Some(
                finding.with_remedy("stop the router for the time of the examination, or run it on another machine"),
            );
        }
        // A long history may still be on its way: what is live is heard behind it.
        let up = self.listening.until(self.patience, connected).await || self.listening.notes().connected;
        if up {
            return None;
        }
        let why = self.listening.trouble().unwrap_or_else(|| format!("no connection within {:?}", self.patience));
        let remedy = remedy::connection(self.config, self.worker, self.rank);
        Some(Finding::failed(Check::Events, format!("not connected ({why})"), remedy))
    }

    /// Whether the prompt's blocks are told of, since it was sent and so many batches had come.
    async fn events(&self, prompt: &[TokenId], begun: Instant, before: u64) -> Finding {
        let found = async {
            self.listening.until(self.patience, |notes| notes.found.is_some()).await;
        };
        let held = self.listening.held(prompt, Blocks(1), self.patience);
        // Publishers that tell hashes alone are known by what the index makes of them.
        let indexed = tokio::select! {
            () = found => false,
            held = held => held.0 > 0,
        };
        let mut notes = self.listening.notes();
        notes.batches -= before;
        let rank = self.rank.unwrap_or_default();
        match notes.found {
            Some(found) if found.rank.is_some_and(|of| of != rank.0) => {
                let finding = format!("its events name rank {}, not {}", found.rank.unwrap_or_default(), rank.0);
                let remedy =
                    "let workers[].dp_ranks be the engine's --data-parallel-size, and each rank have its own port";
                Finding::failed(Check::Events, finding, remedy)
            }
            Some(found) => {
                let ms = u64::try_from(found.at.duration_since(begun).as_millis()).unwrap_or(u64::MAX);
                let finding = format!("the probe's blocks were told {ms} ms after it was sent");
                Finding::ok(Check::Events, finding).with("ms", ms).with("batches", notes.batches)
            }
            None if indexed => {
                Finding::ok(Check::Events, "the probe's blocks were told").with("batches", notes.batches)
            }
            None => self.silent(&notes),
        }
    }

    fn silent(&self, notes: &Notes) -> Finding {
        let patience = self.patience;
        let finding = match (notes.batches, &notes.unreadable) {
            (0, _) => format!("connected, but nothing came within {patience:?} of an answered prompt"),
            (batches, Some(why)) => format!("{batches} batches came, and the last could not be read: {why}"),
            (batches, None) => format!("{batches} batches came, none of them with the blocks of an answered prompt"),
        };
        let (others, seen) = (notes.batches > 0 && notes.unreadable.is_none(), self.config.event_source(self.worker));
        let more: String = self.listening.complaints().iter().map(|complaint| format!("; {complaint}")).collect();
        let remedy = match (others, seen) {
            (true, EventSource::Zmq) => remedy::OTHERS_SOCKET.to_owned(),
            (true, EventSource::Nats) => remedy::OTHERS_BRIDGE.to_owned(),
            _ => remedy::events(self.config, self.worker, self.rank),
        };
        Finding::failed(Check::Events, finding + &more, remedy).with("batches", notes.batches)
    }

    /// Sends the prompt; the view is to hold `least` blocks of it before, if it does in time.
    async fn send(&self, prompt: &[TokenId], least: Blocks) -> Result<Sent, String> {
        let size = self.model.block_size;
        let before = if least.0 > 0 { self.counters().await } else { None };
        let predicted = capped(self.listening.held(prompt, least, self.patience).await, prompt, size);
        let reply = self.engine.complete(&self.model.name.value, prompt, self.rank).await;
        let reply = reply.map_err(|error| error.to_string())?;
        if !reply.is_good() {
            return Err(reply.refusal());
        }
        let reported = match reply.usage().cached {
            Some(cached) => Ok(cached.0),
            None => self.counted(before, prompt.len()).await,
        };
        Ok(Sent { predicted, reported })
    }

    async fn counters(&self) -> Option<PrefixCounters> {
        self.engine.scrape(self.rank).await?.prefix()
    }

    /// What the engine's totals say of the one prompt of `tokens` tokens that was answered since `before`.
    async fn counted(&self, before: Option<PrefixCounters>, tokens: usize) -> Result<u32, &'static str> {
        let before = before.ok_or("its usage does not tell cached tokens, nor do its metrics")?;
        let tokens = u64::try_from(tokens).unwrap_or(u64::MAX);
        let deadline = Instant::now() + COUNTING;
        loop {
            let now = self.counters().await.ok_or("its metrics no longer tell cached tokens")?;
            let asked = now.queries.saturating_sub(before.queries);
            if asked == tokens {
                return Ok(u32::try_from(now.hits.saturating_sub(before.hits)).unwrap_or(u32::MAX));
            }
            if asked > tokens {
                return Err("its usage does not tell cached tokens, and its metrics count others' requests too");
            }
            if Instant::now() >= deadline {
                return Err("its usage does not tell cached tokens, and its metrics did not count the probe");
            }
            sleep(COUNTING_LOOK).await;
        }
    }

    /// Whether both sendings found what the router would have predicted.
    async fn prediction(&self, prompt: &[TokenId], cold: &Sent) -> Finding {
        let check = Check::Prediction;
        let size = self.model.block_size;
        let least = Blocks(capped(Blocks(u32::MAX), prompt, size) / size.get());
        let warm = match self.send(prompt, least).await {
            Ok(warm) => warm,
            Err(why) => {
                let remedy = "see the engine's log: it answered the same prompt before";
                return Finding::failed(check, format!("the probe's repetition got no answer: {why}"), remedy);
            }
        };
        // Unknown where the usage does not tell: then the second sending alone must do.
        if let Ok(reported) = cold.reported
            && reported != cold.predicted
        {
            return mismatch("the probe was new", cold.predicted, reported);
        }
        match warm.reported {
            Err(why) => {
                Finding::skipped(check, why).with_remedy(remedy::DETAILS).with("predicted_tokens", warm.predicted)
            }
            Ok(0) if warm.predicted == 0 => {
                let finding = "nothing of a repeated prompt was cached";
                Finding::failed(check, finding, "start the engine with prefix caching (vLLM: --enable-prefix-caching)")
            }
            Ok(reported) if reported == warm.predicted => {
                let finding = format!("{reported} of {} tokens, predicted and reported", prompt.len());
                Finding::ok(check, finding).with("predicted_tokens", reported).with("reported_tokens", reported)
            }
            Ok(reported) => mismatch("the probe was repeated", warm.predicted, reported),
        }
    }

    /// Whether the batch with the prompt can be had again.
    async fn replay(&self) -> Finding {
        let check = Check::Replay;
        let notes = self.listening.notes();
        let Some(seq) = notes.found.map_or(notes.last_seq, |found| found.seq) else {
            return Finding::skipped(check, "its events have no numbers to ask for");
        };
        if notes.history == Some(false) {
            return self.snapshot().await;
        }
        let over_zmq = notes.history.is_none();
        if over_zmq && self.config.zmq_replay(self.worker).is_none() {
            let finding = "no replay socket is configured: after a lost connection or a restart of the router the view \
                begins empty";
            return Finding::failed(check, finding, remedy::replay(self.config, self.worker));
        }
        let answer = self.listening.ask(Ask::Replay { id: AskId::default(), from: seq }, self.patience).await;
        match answer {
            Some(answer) if answer.first == Some(seq) => {
                Finding::ok(check, "the probe's batch was told again").with("batches", answer.parts)
            }
            answer => {
                let why = match answer {
                    Some(answer) if answer.parts > 0 => vec!["what came again lacks the probe's batch".to_owned()],
                    _ => self.listening.complaints(),
                };
                let why = if why.is_empty() { "nothing came again".to_owned() } else { why.join("; ") };
                let remedy = if over_zmq {
                    remedy::replay(self.config, self.worker)
                } else {
                    "see that the NATS account may create consumers on the stream (docker/nats/nats.conf shows how)"
                        .to_owned()
                };
                Finding::failed(check, why, remedy)
            }
        }
    }

    /// Core NATS keeps nothing; a bridge may.
    async fn snapshot(&self) -> Finding {
        let answer =
            self.listening.ask(Ask::Snapshot { id: AskId::default() }, self.patience).await.unwrap_or_default();
        let parts = answer.parts;
        if answer.refused {
            let finding = "the bridge sent a snapshot of another model, block size or seed, which routers refuse";
            let remedy = format!(
                "start the bridge with --model {} --block-size {} --index-seed {}",
                self.model.name.value,
                self.model.block_size.get(),
                self.config.index.seed
            );
            return Finding::failed(Check::Replay, finding, remedy).with("parts", parts);
        }
        if parts > 0 {
            let finding = "the server keeps no stream; the bridge sent a snapshot";
            return Finding::ok(Check::Replay, finding).with("parts", parts);
        }
        let finding = "the server keeps no stream, and no bridge sends snapshots";
        let remedy =
            "start nats-server with -js and leave events.nats.jetstream at auto, or give the bridge --block-size";
        Finding::failed(Check::Replay, finding, remedy)
    }
}

/// What to do where an engine refuses a prompt, or says nothing.
fn unanswered(why: &str) -> &'static str {
    let refuses = |status: &str| why.starts_with(&format!("HTTP {status}"));
    if refuses("400") && (why.contains("data_parallel_rank") || why.contains("data parallel")) {
        "let workers[].dp_ranks be the engine's --data-parallel-size"
    } else if refuses("401") || refuses("403") {
        "set workers[].api_key to the engine's --api-key"
    } else if refuses("4") {
        "see what the engine says: it must take a prompt of token ids by /v1/completions"
    } else if refuses("") {
        "see the engine's log"
    } else {
        "see the engine's log, or raise --timeout if it is busy"
    }
}

fn mismatch(when: &str, predicted: u32, reported: u32) -> Finding {
    let finding = format!("when {when}, {predicted} cached tokens were predicted and {reported} reported");
    let remedy = if reported > predicted {
        "the engine has more than it tells: look for lost events in its log and in warmpath_kv_events_total, and for \
         another cache behind it (offloading, LMCache) whose events go elsewhere"
    } else {
        "the engine finds less than it told: a cache that is full at once, layers whose blocks cannot be used alone \
         (sliding window, state space), speculative decoding that computes the last block anew, or data-parallel ranks of \
         which workers[].dp_ranks says nothing"
    };
    Finding::failed(Check::Prediction, finding, remedy)
        .with("predicted_tokens", predicted)
        .with("reported_tokens", reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(tokens: u32) -> BlockSize {
        BlockSize::new(tokens).unwrap()
    }

    #[test]
    fn a_probe_has_whole_blocks_and_a_bit_and_fits_the_engine() {
        let len = |block_size, longest| prompt(size(block_size), longest).map(|prompt| prompt.len());
        assert_eq!([16, 32, 4, 1].map(|block| len(block, None)), [Some(72), Some(144), Some(66), Some(64)]);
        assert_eq!(
            (len(16, Some(73)), len(16, Some(72)), len(16, Some(41)), len(16, Some(40))),
            (Some(72), Some(56), Some(40), None)
        );
        assert_eq!(len(16, Some(0)), None);
        assert_ne!(prompt(size(16), None), prompt(size(16), None));
    }

    #[test]
    fn at_least_one_token_is_computed() {
        let prompt = vec![0; 64];
        let cap = |held| capped(Blocks(held), &prompt, size(16));
        assert_eq!((cap(0), cap(3), cap(4), cap(u32::MAX)), (0, 48, 48, 48));
        assert_eq!(capped(Blocks(9), &vec![0; 72], size(16)), 64);
    }

    #[test]
    fn a_mismatch_tells_both_figures_and_which_way() {
        let finding = mismatch("the probe was repeated", 64, 0);
        let expected = "when the probe was repeated, 64 cached tokens were predicted and 0 reported";
        assert_eq!(finding.finding, expected);
        assert!(finding.remedy.unwrap().starts_with("the engine finds less than it told"));
        assert!(mismatch("", 0, 16).remedy.unwrap().starts_with("the engine has more than it tells"));
    }
}
