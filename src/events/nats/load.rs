//! What an engine's load is, as it is told beside its events.
//!
//! A report is one compact JSON object on `<prefix>.load.<worker>`, about two a second while the engine answers:
//! `{"v":1,"worker":"gpu-1","at_ms":1795224792390,"epoch":1795224000000,"blocks":24000,"block_size":16,
//! "started_ms":1795224000000,"ranks":[{"rank":0,"running":3.0,"waiting":0.0,"usage":0.25,"queries":13031,"hits":1280}]}`.
//! Reports are no stream: one that is lost is replaced by the next, and of several that wait only the last is read.

use async_nats::Subscriber;
use futures_util::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize};
use warmpath_core::ids::Rank;
use warmpath_core::units::Blocks;

use super::NatsBus;
use crate::events::subject;
use crate::fleet::scrape::{Scrape, count};

/// The form of reports that is written and read here.
pub const VERSION: u8 = 1;

/// What readings that come from reports are called, where those of the engine's own metrics bear a version's name.
const NAMES: &str = "bridge";

/// The largest report that is read.
const REPORT_BYTES_MAX: usize = 65_536;

/// Ranks of a report at most.
const RANKS_MAX: usize = 1024;

/// What one engine says of itself. Fields that are not known are passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// The form: [`VERSION`].
    pub v: u8,
    /// The worker's id.
    pub worker: String,
    /// When the engine was asked, in milliseconds since 1970.
    pub at_ms: u64,
    /// The epoch of its events; 0 while there were none.
    pub epoch: u64,
    /// Blocks in its KV cache, a rank, where it tells.
    #[serde(default)]
    pub blocks: Option<u32>,
    /// Tokens in a block, where it tells.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// When the engine's process began, in milliseconds since 1970, where it tells.
    #[serde(default)]
    pub started_ms: Option<u64>,
    /// One for each data-parallel rank that it tells of.
    pub ranks: Vec<RankLoad>,
}

/// The load of one rank. What the engine does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankLoad {
    /// The rank.
    pub rank: u32,
    /// Requests that are being computed.
    #[serde(default)]
    pub running: Option<f64>,
    /// Requests that wait for that.
    #[serde(default)]
    pub waiting: Option<f64>,
    /// The share of the KV cache that requests use, from 0 to 1.
    #[serde(default)]
    pub usage: Option<f64>,
    /// Prompt tokens that were looked for in the cache, in total.
    #[serde(default)]
    pub queries: Option<u64>,
    /// Of these, tokens that were found.
    #[serde(default)]
    pub hits: Option<u64>,
}

/// The reports of one worker, as they come.
pub struct LoadReports {
    worker: String,
    messages: Subscriber,
}

/// Why a message is no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Larger than any report that is written, in bytes or in ranks.
    #[error("a report has at most {REPORT_BYTES_MAX} bytes and {RANKS_MAX} ranks")]
    TooLarge,
    /// Not the JSON that is expected.
    #[error("not a load report")]
    Malformed(#[source] serde_json::Error),
    /// Of another form.
    #[error("of form {0}; only {VERSION} is known")]
    Version(u8),
    /// One worker's report on another's subject.
    #[error("it comes from worker `{0}`")]
    Foreign(String),
}

impl LoadReport {
    /// Reads a report that came on the subject of `worker`. Numbers that are none, or negative, are left out.
    ///
    /// # Errors
    /// When it is not what the bridge of this worker would write.
    pub fn read(worker: &str, message: &[u8]) -> Result<Self, LoadError> {
        if message.len() > REPORT_BYTES_MAX {
            return Err(LoadError::TooLarge);
        }
        let mut report: Self = serde_json::from_slice(message).map_err(LoadError::Malformed)?;
        if report.v != VERSION {
            return Err(LoadError::Version(report.v));
        }
        if report.worker != worker {
            return Err(LoadError::Foreign(report.worker.chars().take(64).collect()));
        }
        if report.ranks.len() > RANKS_MAX {
            return Err(LoadError::TooLarge);
        }
        for rank in &mut report.ranks {
            for value in [&mut rank.running, &mut rank.waiting, &mut rank.usage] {
                *value = value.filter(|value| value.is_finite() && *value >= 0.0);
            }
        }
        Ok(report)
    }

    /// What it says of one rank, or of all of them together, as a reading of the engine's own metrics would. None where it
    /// says nothing of that. O(ranks).
    pub fn reading(&self, rank: Option<Rank>) -> Option<Scrape> {
        let mut said = self.ranks.iter().filter(|load| rank.is_none_or(|rank| rank.0 == load.rank)).peekable();
        said.peek()?;
        let engine = Scrape {
            engine: NAMES.into(),
            blocks: self.blocks.map(Blocks),
            block_size: self.block_size,
            process_start_ms: self.started_ms,
            ..Scrape::default()
        };
        Some(said.fold(engine, |engine, load| load.added_to(engine)))
    }

    /// The report as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers make JSON")
    }
}

impl RankLoad {
    /// Ranks that are one target: their counts together, and the fullest cache.
    fn added_to(&self, engine: Scrape) -> Scrape {
        let sum = |before: Option<u32>, more: Option<f64>| match more.and_then(count) {
            Some(more) => Some(before.unwrap_or_default().saturating_add(u32::try_from(more).unwrap_or(u32::MAX))),
            None => before,
        };
        let total = |before: Option<u64>, more: Option<u64>| match more {
            Some(more) => Some(before.unwrap_or_default().saturating_add(more)),
            None => before,
        };
        let usage = self.usage.map(|usage| usage.min(1.0).max(engine.kv_usage.unwrap_or_default()));
        Scrape {
            running: sum(engine.running, self.running),
            waiting: sum(engine.waiting, self.waiting),
            kv_usage: usage.or(engine.kv_usage),
            prefix_queries: total(engine.prefix_queries, self.queries),
            prefix_hits: total(engine.prefix_hits, self.hits),
            ..engine
        }
    }
}

impl LoadReports {
    /// The next one; of several that wait, the last. None when the client is closed.
    ///
    /// # Errors
    /// Each time that something came that is no report of this worker.
    pub async fn next(&mut self) -> Option<Result<LoadReport, LoadError>> {
        let mut message = self.messages.next().await?;
        while let Some(Some(later)) = self.messages.next().now_or_never() {
            message = later;
        }
        Some(LoadReport::read(&self.worker, &message.payload))
    }
}

impl NatsBus {
    /// Listens for a worker's reports, now and after each lost connection.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn load_reports(&self, worker: &str) -> Result<LoadReports, async_nats::Error> {
        let messages = self.client.subscribe(subject::load_of(&self.settings.prefix, worker)).await?;
        Ok(LoadReports { worker: worker.to_owned(), messages })
    }

    /// Tells a worker's load, if the connection is up; a report that came late would be no help.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn tell_load(&self, report: &LoadReport) -> Result<(), async_nats::Error> {
        if self.is_up() {
            let subject = subject::load_of(&self.settings.prefix, &report.worker);
            self.client.publish(subject, report.to_json().into()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"v\":1,\"worker\":\"gpu-1\",\"at_ms\":5,\"epoch\":7,\"blocks\":24,\"block_size\":16,\
                        \"started_ms\":9,\"ranks\":[{\"rank\":0,\"running\":3.0,\"waiting\":0.0,\"usage\":0.25,\
                        \"queries\":70,\"hits\":30}]}";

    fn report() -> LoadReport {
        let rank = RankLoad {
            rank: 0,
            running: Some(3.0),
            waiting: Some(0.0),
            usage: Some(0.25),
            queries: Some(70),
            hits: Some(30),
        };
        LoadReport {
            v: 1,
            worker: "gpu-1".to_owned(),
            at_ms: 5,
            epoch: 7,
            blocks: Some(24),
            block_size: Some(16),
            started_ms: Some(9),
            ranks: vec![rank],
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        assert_eq!(report().to_json(), TEXT);
        assert_eq!(LoadReport::read("gpu-1", TEXT.as_bytes()).unwrap(), report());
    }

    #[test]
    fn what_no_bridge_would_write_is_refused_with_a_reason() {
        let refusal = |worker: &str, text: &str| LoadReport::read(worker, text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refusal("gpu-2", TEXT), "it comes from worker `gpu-1`");
        assert_eq!(refusal("gpu-1", &TEXT.replace("\"v\":1", "\"v\":2")), "of form 2; only 1 is known");
        assert_eq!(refusal("gpu-1", "{}"), "not a load report");
        let long = " ".repeat(REPORT_BYTES_MAX + 1);
        assert_eq!(refusal("gpu-1", &long), "a report has at most 65536 bytes and 1024 ranks");
    }

    #[test]
    fn what_is_no_amount_is_left_out() {
        let text = TEXT.replace("3.0", "-3.0").replace("0.25", "null");
        let rank = LoadReport::read("gpu-1", text.as_bytes()).unwrap().ranks[0];
        assert_eq!((rank.running, rank.waiting, rank.usage), (None, Some(0.0), None));
    }

    #[test]
    fn what_older_bridges_do_not_say_is_absent() {
        let text = "{\"v\":1,\"worker\":\"gpu-1\",\"at_ms\":5,\"epoch\":7,\"ranks\":[{\"rank\":0,\"running\":3.0}]}";
        let reading = LoadReport::read("gpu-1", text.as_bytes()).unwrap().reading(None).unwrap();
        assert_eq!(reading, Scrape { engine: "bridge".into(), running: Some(3), ..Scrape::default() });
    }

    #[test]
    fn a_rank_is_read_by_itself_and_all_of_them_together() {
        let first = report().ranks[0];
        let second =
            RankLoad { rank: 1, running: Some(2.0), waiting: Some(5.0), usage: Some(1.5), queries: None, hits: None };
        let report = LoadReport { ranks: vec![first, second], ..report() };
        let one = report.reading(Some(Rank(1))).unwrap();
        let shape = (Some(Blocks(24)), Some(16), Some(9));
        assert_eq!((one.blocks, one.block_size, one.process_start_ms), shape);
        assert_eq!((one.running, one.waiting, one.kv_usage, one.prefix()), (Some(2), Some(5), Some(1.0), None));
        let all = report.reading(None).unwrap();
        assert_eq!((all.running, all.waiting, all.kv_usage), (Some(5), Some(5), Some(1.0)));
        assert_eq!((all.prefix_queries, all.prefix_hits), (Some(70), Some(30)));
        assert_eq!(report.reading(Some(Rank(2))), None);
    }
}
