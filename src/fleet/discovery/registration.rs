//! What a worker says of itself in the bucket of registrations: written beside the engine, read by every router.
//!
//! The bucket is a NATS key-value bucket named by [`bucket`]. A worker's entry stands under [`key_of`] its id and is written
//! anew every [`REFRESH`]; whoever reads it lets the worker go [`LEASE`] after it was last refreshed, by the reader's own
//! clock. The bucket's own age is the same, so that a router that starts does not see workers that are long gone.

use std::fmt::Write;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warmpath_core::ids::WorkerId;
use warmpath_core::units::BlockSize;

use crate::config::{BaseUrl, DP_RANKS_MAX};

/// How often a worker's entry is written anew.
pub const REFRESH: Duration = Duration::from_secs(5);

/// How long a worker counts as present after its entry was last written. Three refreshes: two may be lost.
pub const LEASE: Duration = Duration::from_secs(15);

/// The form of entries that is written and read here.
pub const VERSION: u8 = 1;

/// The largest entry that is read: ids and names have at most 128 bytes, a URL somewhat more.
const ENTRY_BYTES_MAX: usize = 4096;

/// The most bytes of an id or a model's name, as in the configuration.
const NAME_BYTES_MAX: usize = 128;

/// One worker, as it describes itself. As JSON:
/// `{"v":1,"id":"gpu-1","model":"m","url":"http://10.0.0.1:8000","block_size":16,"dp_ranks":1,"epoch":7,
/// "capacity_blocks":null,"max_num_seqs":null,"events":"nats"}`. Fields that are not known are passed over, so that
/// newer workers may say more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The form: [`VERSION`].
    pub v: u8,
    /// The worker's name, as in its event subjects.
    pub id: WorkerId,
    /// The model that it serves, by the name that the router's configuration has for it.
    pub model: String,
    /// Where it answers, as routers reach it.
    pub url: BaseUrl,
    /// Tokens in a block of its KV cache.
    pub block_size: BlockSize,
    /// Data-parallel ranks behind the address.
    pub dp_ranks: NonZeroU16,
    /// Raised whenever the engine's process changed; the same as in the headers of its events.
    pub epoch: u64,
    /// Blocks in its KV cache, a rank, where known.
    #[serde(default)]
    pub capacity_blocks: Option<NonZeroU32>,
    /// Requests that it computes at once, a rank, where known.
    #[serde(default)]
    pub max_num_seqs: Option<NonZeroU32>,
    /// How its KV-cache events arrive.
    pub events: RegisteredEvents,
}

/// How the events of a registered worker arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisteredEvents {
    /// Over the NATS server that has the bucket.
    Nats,
    /// Not at all.
    None,
}

/// Why an entry is no registration.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// Larger than any entry that is written.
    #[error("{0} bytes; an entry has at most {ENTRY_BYTES_MAX}")]
    TooLarge(usize),
    /// Not the JSON that is expected.
    #[error("not a registration")]
    Malformed(#[source] serde_json::Error),
    /// Of a form that is not known here.
    #[error("of form {0}; only {VERSION} is known")]
    Version(u8),
    /// An id or a name that could be no label or subject.
    #[error("the {0} must have 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name(&'static str),
    /// More ranks than any engine has.
    #[error("`dp_ranks` must be at most {DP_RANKS_MAX}, got {0}")]
    Ranks(NonZeroU16),
    /// One worker's entry under another's key.
    #[error("worker `{0}` is registered under a key that is not its own")]
    ForeignKey(WorkerId),
}

impl Registration {
    /// Reads the entry under `key`.
    ///
    /// # Errors
    /// When it is not what the worker of this key would write.
    pub fn read(key: &str, entry: &[u8]) -> Result<Self, RegistrationError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(RegistrationError::TooLarge(entry.len()));
        }
        let form: Form = serde_json::from_slice(entry).map_err(RegistrationError::Malformed)?;
        if form.v != VERSION {
            return Err(RegistrationError::Version(form.v));
        }
        let read: Self = serde_json::from_slice(entry).map_err(RegistrationError::Malformed)?;
        for (what, name) in [("id", read.id.as_str()), ("model", &read.model)] {
            if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
                return Err(RegistrationError::Name(what));
            }
        }
        if read.dp_ranks.get() > DP_RANKS_MAX {
            return Err(RegistrationError::Ranks(read.dp_ranks));
        }
        if key_of(read.id.as_str()) != key {
            return Err(RegistrationError::ForeignKey(read.id));
        }
        Ok(read)
    }

    /// The entry's key.
    pub fn key(&self) -> String {
        key_of(self.id.as_str())
    }

    /// The entry's text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers make JSON")
    }
}

/// What can be read of an entry of any form.
#[derive(Deserialize)]
struct Form {
    v: u8,
}

/// The bucket of a fleet whose subjects begin with `prefix`: `warmpath_workers` for the prefix `warmpath`.
pub fn bucket(prefix: &str) -> String {
    let word: String = prefix.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    format!("{word}_workers")
}

/// A worker's id as a key, which is also one token of a subject: every byte outside `A–Z a–z 0–9 _ -` becomes `=XX`.
pub fn key_of(id: &str) -> String {
    let mut token = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            token.push(char::from(byte));
        } else {
            let _ = write!(token, "={byte:02X}");
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            v: VERSION,
            id: WorkerId::from("gpu 1"),
            model: "Qwen/Qwen3-0.6B".to_owned(),
            url: BaseUrl::try_from("http://10.0.0.1:8000".to_owned()).unwrap(),
            block_size: BlockSize::new(16).unwrap(),
            dp_ranks: NonZeroU16::MIN,
            epoch: 7,
            capacity_blocks: None,
            max_num_seqs: NonZeroU32::new(64),
            events: RegisteredEvents::Nats,
        }
    }

    const TEXT: &str = "{\"v\":1,\"id\":\"gpu 1\",\"model\":\"Qwen/Qwen3-0.6B\",\"url\":\"http://10.0.0.1:8000\",\
                        \"block_size\":16,\"dp_ranks\":1,\"epoch\":7,\"capacity_blocks\":null,\"max_num_seqs\":64,\
                        \"events\":\"nats\"}";

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        assert_eq!(registration().to_json(), TEXT);
        assert_eq!(registration().key(), "gpu=201");
        assert_eq!(Registration::read("gpu=201", TEXT.as_bytes()).unwrap(), registration());
    }

    #[test]
    fn what_a_newer_worker_says_besides_is_passed_over() {
        let text = TEXT.replace("\"epoch\":7,", "\"epoch\":7,\"zone\":\"a\",");
        assert_eq!(Registration::read("gpu=201", text.as_bytes()).unwrap(), registration());
    }

    #[test]
    fn what_no_worker_would_write_is_refused_with_a_reason() {
        let refusal = |key: &str, text: &str| Registration::read(key, text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refusal("gpu=201", &" ".repeat(5000)), "5000 bytes; an entry has at most 4096");
        assert_eq!(refusal("gpu=201", "{}"), "not a registration");
        assert_eq!(refusal("gpu=201", "{\"v\":2}"), "of form 2; only 1 is known");
        assert_eq!(refusal("gpu=201", &TEXT.replace("\"dp_ranks\":1", "\"dp_ranks\":0")), "not a registration");
        assert_eq!(refusal("gpu=201", &TEXT.replace("http:", "ftp:")), "not a registration");
        let ranks = |ranks: u16| TEXT.replace("\"dp_ranks\":1", &format!("\"dp_ranks\":{ranks}"));
        assert_eq!(refusal("gpu=201", &ranks(1025)), "`dp_ranks` must be at most 1024, got 1025");
        assert!(Registration::read("gpu=201", ranks(1024).as_bytes()).is_ok());
        assert_eq!(refusal("gpu-1", TEXT), "worker `gpu 1` is registered under a key that is not its own");
        assert_eq!(
            refusal("", &TEXT.replace("gpu 1", "")),
            "the id must have 1 to 128 bytes and no control characters"
        );
    }

    #[test]
    fn a_fleet_has_a_bucket_by_its_prefix() {
        assert_eq!((bucket("warmpath"), bucket("a.b")), ("warmpath_workers".to_owned(), "a_b_workers".to_owned()));
    }
}
