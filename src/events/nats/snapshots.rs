//! Snapshots over NATS: a router asks the bridge for a worker's blocks, chunk by chunk.
//!
//! A request on `<prefix>.snapshot.<worker>` is `{"rank":0,"reads":2}` for a new snapshot of a form up to this version,
//! and `{"rank":0,"id":5,"chunk":1}` for the next chunk of the snapshot 5. Who says nothing of versions reads the
//! first. The answer's payload is the chunk; its headers say which it is: `Warmpath-Snapshot` the id, `Warmpath-Chunk`
//! the number, `Warmpath-Epoch` and `Warmpath-Seq` where the events go on behind it, and `Warmpath-Last: 1` stands with
//! the last. An answer with `Warmpath-Error` says why there is none. The reader asks for one after the other, so nobody
//! is sent more than it takes.

use std::sync::Arc;

use async_nats::{HeaderMap, Request};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use warmpath_indexer::snapshot::NEWEST_VERSION;

use super::follow::Line;
use super::{ANSWERED_WITHIN, NatsBus, RETRY, TRIES, stream};
use crate::events::source::{AskId, Heard};
use crate::events::subject;

/// Bytes of a chunk at most: half of what servers take by default.
pub const CHUNK_BYTES_MAX: usize = 512 << 10;

/// Chunks of a snapshot at most, for a reader: two gigabytes.
const CHUNKS_MAX: u32 = 4096;

/// The largest request that is read.
const REQUEST_BYTES_MAX: usize = 512;

const ID_HEADER: &str = "Warmpath-Snapshot";
const CHUNK_HEADER: &str = "Warmpath-Chunk";
const LAST_HEADER: &str = "Warmpath-Last";
const ERROR_HEADER: &str = "Warmpath-Error";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Of which rank.
    pub rank: u32,
    /// The snapshot that is being read; none begins one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The chunk's number.
    #[serde(default)]
    pub chunk: u32,
    /// The newest version of snapshots that the asker reads.
    #[serde(default = "first_version")]
    pub reads: u16,
}

fn first_version() -> u16 {
    1
}

/// One chunk, with what its reader has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotAnswer {
    /// The snapshot.
    pub id: u64,
    /// The chunk's number.
    pub chunk: u32,
    /// Whether it is the last.
    pub last: bool,
    /// Epoch and number of the batch that comes next.
    pub position: (u64, u64),
    /// The chunk.
    pub bytes: Bytes,
}

/// Answers requests for snapshots.
pub trait SnapshotKeeper: Send + Sync + 'static {
    /// The chunk that is asked for.
    ///
    /// # Errors
    /// Why there is none, in words for the asker.
    fn answer(&self, request: SnapshotRequest) -> Result<SnapshotAnswer, String>;
}

impl SnapshotAnswer {
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ID_HEADER, self.id.to_string().as_str());
        headers.insert(CHUNK_HEADER, self.chunk.to_string().as_str());
        headers.insert(subject::EPOCH_HEADER, self.position.0.to_string().as_str());
        headers.insert(subject::SEQUENCE_HEADER, self.position.1.to_string().as_str());
        if self.last {
            headers.insert(LAST_HEADER, "1");
        }
        headers
    }
}

impl NatsBus {
    /// Answers requests for the snapshots of `worker`, as long as there is a client.
    pub async fn serve_snapshots(self, worker: String, keeper: Arc<dyn SnapshotKeeper>) {
        let subject = subject::snapshot_of(&self.settings.prefix, &worker);
        while self.connected().await {
            match self.client.subscribe(subject.clone()).await {
                Ok(mut requests) => {
                    while let Some(request) = requests.next().await {
                        if let Some(reply) = request.reply {
                            self.reply(reply, &request.payload, keeper.as_ref()).await;
                        }
                    }
                }
                Err(error) => tracing::warn!(worker, error = %error, "snapshots are not served; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn reply(&self, reply: async_nats::Subject, request: &[u8], keeper: &dyn SnapshotKeeper) {
        let read = match request.len() {
            0..=REQUEST_BYTES_MAX => serde_json::from_slice(request).map_err(|_| "not a snapshot request".to_owned()),
            _ => Err("not a snapshot request".to_owned()),
        };
        let (headers, bytes) = match read.and_then(|request| keeper.answer(request)) {
            Ok(answer) => (answer.headers(), answer.bytes),
            Err(why) => {
                let mut headers = HeaderMap::new();
                headers.insert(ERROR_HEADER, why.as_str());
                (headers, Bytes::new())
            }
        };
        if let Err(error) = self.client.publish_with_headers(reply, headers, bytes).await {
            tracing::warn!(error = %error, "a snapshot was not sent");
        }
    }

    /// Hands on every chunk of a new snapshot.
    pub(super) async fn fetch_snapshot(&self, line: &Line, id: AskId) -> Result<(), async_nats::Error> {
        let mut request = SnapshotRequest { rank: line.rank, id: None, chunk: 0, reads: NEWEST_VERSION };
        while request.chunk < CHUNKS_MAX {
            let answer = self.ask_for_chunk(&line.worker, request).await?;
            let headers = answer.headers.as_ref();
            if let Some(why) = headers.and_then(|headers| headers.get(ERROR_HEADER)) {
                return Err(why.as_str().chars().take(200).collect::<String>().into());
            }
            let snapshot = stream::number(headers, ID_HEADER).ok_or("an answer without an id")?;
            let is_due = stream::number(headers, CHUNK_HEADER) == Some(request.chunk.into());
            if !is_due || request.id.is_some_and(|due| due != snapshot) {
                return Err("an answer to something else".into());
            }
            if answer.payload.len() > CHUNK_BYTES_MAX {
                return Err("a chunk that is too large".into());
            }
            line.to.send(Heard::SnapshotChunk(id, answer.payload.clone())).await?;
            if headers.is_some_and(|headers| headers.get(LAST_HEADER).is_some()) {
                return Ok(());
            }
            request = SnapshotRequest { id: Some(snapshot), chunk: request.chunk + 1, ..request };
        }
        Err("a snapshot without an end".into())
    }

    async fn ask_for_chunk(
        &self,
        worker: &str,
        request: SnapshotRequest,
    ) -> Result<async_nats::Message, async_nats::Error> {
        let subject = subject::snapshot_of(&self.settings.prefix, worker);
        let payload = Bytes::from(serde_json::to_vec(&request)?);
        let mut tried = 1;
        loop {
            let ask = Request::new().payload(payload.clone()).timeout(Some(ANSWERED_WITHIN));
            match self.client.send_request(subject.clone(), ask).await {
                Err(error) if tried < TRIES && error.kind() == async_nats::RequestErrorKind::TimedOut => tried += 1,
                answered => return Ok(answered?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_two_forms() {
        let first = SnapshotRequest { rank: 1, id: None, chunk: 0, reads: 2 };
        assert_eq!(serde_json::to_string(&first).unwrap(), "{\"rank\":1,\"chunk\":0,\"reads\":2}");
        let next = SnapshotRequest { id: Some(5), chunk: 2, ..first };
        assert_eq!(serde_json::to_string(&next).unwrap(), "{\"rank\":1,\"id\":5,\"chunk\":2,\"reads\":2}");
        // As routers ask that know the first version alone.
        let before = SnapshotRequest { reads: 1, ..first };
        assert_eq!(serde_json::from_str::<SnapshotRequest>("{\"rank\":1,\"chunk\":0}").unwrap(), before);
    }
}
