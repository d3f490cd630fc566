//! What an engine's load is, as it is told beside its events.
//!
//! A report is one compact JSON object on `<prefix>.load.<worker>`, about one a second while the engine answers:
//! `{"v":1,"worker":"gpu-1","at_ms":1795224792390,"epoch":1795224000000,"blocks":24000,"ranks":[{"rank":0,"running":3.0,
//! "waiting":0.0,"usage":0.25}]}`. Reports are no stream: one that is lost is replaced by the next, and one that is old says
//! so by `at_ms`.

use serde::{Deserialize, Serialize};

use super::NatsBus;
use crate::events::subject;

/// The form of reports that is written and read here.
pub const VERSION: u8 = 1;

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

    /// The report as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers make JSON")
    }
}

impl NatsBus {
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

    const TEXT: &str = "{\"v\":1,\"worker\":\"gpu-1\",\"at_ms\":5,\"epoch\":7,\"blocks\":24,\"ranks\":[{\"rank\":0,\
                        \"running\":3.0,\"waiting\":0.0,\"usage\":0.25}]}";

    fn report() -> LoadReport {
        let rank = RankLoad { rank: 0, running: Some(3.0), waiting: Some(0.0), usage: Some(0.25) };
        LoadReport { v: 1, worker: "gpu-1".to_owned(), at_ms: 5, epoch: 7, blocks: Some(24), ranks: vec![rank] }
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
}
