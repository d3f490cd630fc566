//! Writes down what a gateway keeps of finished requests, in our own form of traces, so that they can be replayed.
//!
//! The file is written as requests finish, in whole lines. When it would exceed its limit it becomes `FILE.1`, in place of
//! the one before, and a new one begins; so does what an earlier process left, since times are since the start. Of lines that
//! cannot be written whole, as the disk is full, nothing stays.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::trace::{About, TraceRequest, write_line};
use crate::telemetry::metrics::RecordMetrics;
use crate::upstream::record::Finished;

/// Finished requests that wait to be written.
pub const QUEUE: usize = 1_024;
/// Requests that are written at once.
const BATCH: usize = 64;

/// Where recordings go.
pub struct Journal {
    path: PathBuf,
    limit: u64,
    file: File,
    /// All of it lines that were written whole.
    written: u64,
    /// Whether a part of a line may stand behind them.
    torn: bool,
    metrics: RecordMetrics,
    obstacle: Obstacle,
}

/// Why finished requests could not be written, when that was tried last. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Obstacle(Arc<Mutex<Option<String>>>);

impl Obstacle {
    /// In words; none where they could.
    pub fn told(&self) -> Option<String> {
        self.why().clone()
    }

    fn why(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    /// Begins a file of at most `limit` bytes, and makes the folder that it lies in.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn begin(path: &Path, limit: u64, metrics: RecordMetrics) -> io::Result<Self> {
        let asked = path.to_owned();
        let refused = tokio::task::spawn_blocking(move || refusal(&asked)).await.map_err(io::Error::other)?;
        if let Some(why) = refused? {
            return Err(io::Error::other(why));
        }
        let file = fresh(path).await?;
        let (path, obstacle) = (path.to_owned(), Obstacle::default());
        Ok(Self { path, limit, file, written: 0, torn: false, metrics, obstacle })
    }

    /// What keeps it from being written, from now on.
    pub fn obstacle(&self) -> Obstacle {
        self.obstacle.clone()
    }

    /// Writes what comes, until `stop`; then what waits by then.
    pub async fn keep(mut self, mut from: mpsc::Receiver<Finished>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                count = from.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    self.write(&mut batch).await;
                }
                // Looked at only when nothing waits.
                () = stop.cancelled() => return,
            }
        }
    }

    async fn write(&mut self, batch: &mut Vec<Finished>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let mut lines = Vec::new();
        for finished in batch.drain(..) {
            // Memory takes every byte.
            let _ = line(finished, &mut lines);
        }
        match self.append(&lines).await {
            Ok(()) => {
                *self.obstacle.why() = None;
                self.metrics.add("written", count);
            }
            Err(error) => {
                let why = format!("requests cannot be recorded in {}: {error}", self.path.display());
                if self.obstacle.why().replace(why).is_none() {
                    tracing::warn!(file = %self.path.display(), %error, "requests cannot be recorded");
                }
                self.metrics.add("failed", count);
            }
        }
    }

    async fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.torn {
            self.mend().await?;
        }
        let len = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if self.written > 0 && self.written.saturating_add(len) > self.limit {
            self.file = fresh(&self.path).await?;
            self.written = 0;
        }
        let put = self.put(lines).await;
        match put {
            Ok(()) => self.written += len,
            Err(_) => {
                self.torn = true;
                // At once, for whoever reads it meanwhile; where that fails, before the next lines.
                let _ = self.mend().await;
            }
        }
        put
    }

    async fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).await?;
        self.file.flush().await
    }

    /// Takes back what was written of lines that could not be written whole. Where nothing can be taken back, as from a
    /// pipe, the next line is at least one of its own.
    async fn mend(&mut self) -> io::Result<()> {
        let found = self.file.metadata().await?;
        // Others may have emptied it.
        let is_behind = found.is_file() && found.len() >= self.written;
        if !is_behind || self.file.set_len(self.written).await.is_err() {
            self.put(b"\n").await?;
            self.written = found.len() + 1;
        }
        self.torn = false;
        Ok(())
    }
}

/// Why what is at `path` must stay as it is; none where there is nothing, or a recording. Who names another file, such as the
/// configuration, must not lose it. What is neither file nor folder, as a pipe, is written to.
///
/// # Errors
/// It cannot be read.
pub fn refusal(path: &Path) -> io::Result<Option<&'static str>> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if found.is_dir() {
        return Ok(Some("it is a folder"));
    }
    if !found.is_file() || found.len() == 0 {
        return Ok(None);
    }
    let mut line = Vec::new();
    let file = std::io::BufReader::new(std::fs::File::open(path)?);
    file.take(LINE_MAX).read_until(b'\n', &mut line)?;
    // A run that broke off may have left a part of its first line.
    let is_ours = match line.ends_with(b"\n") {
        true => line.starts_with(BEGINNING) && has_part(&line, BLOCK_SIZE),
        false => line.starts_with(BEGINNING) || BEGINNING.starts_with(&line),
    };
    Ok((!is_ours).then_some("it holds something else than a recording"))
}

fn has_part(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

/// What every line of ours begins with, and what other traces of such lines do not tell.
const BEGINNING: &[u8] = b"{\"timestamp\":";
const BLOCK_SIZE: &[u8] = b"\"block_size\":";

/// The longest line that is looked at.
const LINE_MAX: u64 = 4 << 20;

/// An empty file at `path`; one that is there and not empty becomes `….1`.
async fn fresh(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).await?;
    }
    if fs::metadata(path).await.is_ok_and(|found| found.len() > 0) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        fs::rename(path, PathBuf::from(old)).await?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    // Who sends what when is nobody else's business.
    options.mode(0o600);
    options.open(path).await
}

fn line(finished: Finished, to: &mut Vec<u8>) -> io::Result<()> {
    let about = About { model: Some(finished.model.to_string()), ..About::default() };
    let request = TraceRequest {
        at_ms: u64::try_from(finished.at.as_millis()).unwrap_or(u64::MAX),
        input_length: finished.input_length,
        output_length: finished.output_length,
        hash_ids: finished.hashes,
        about: Some(Box::new(about)),
    };
    write_line(&request, finished.block_size, to)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::super::trace::{Options, Trace};
    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn finished(at_ms: u64) -> Finished {
        Finished {
            at: Duration::from_millis(at_ms),
            model: "m".into(),
            block_size: 16,
            input_length: 40,
            output_length: 7,
            hashes: vec![1, u64::MAX],
        }
    }

    #[tokio::test]
    async fn what_waits_at_the_stop_is_written_and_reads_back() {
        let folder = std::env::temp_dir().join(format!("warmpath-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("trace.jsonl");
        std::fs::write(&path, "{\"timestamp\":0,\"block_size\":16}\n").unwrap();
        let metrics = Metrics::new("w");
        let journal = Journal::begin(&path, 1 << 20, metrics.record()).await.unwrap();
        let (to, from) = mpsc::channel(200);
        // In the order in which they finished; a trace is in the order in which they came.
        for at_ms in (0..100).rev() {
            to.send(finished(at_ms)).await.unwrap();
        }
        let stop = CancellationToken::new();
        stop.cancel();
        journal.keep(from, stop).await;
        let trace = Trace::read(&std::fs::read(&path).unwrap(), &Options::default()).unwrap();
        assert_eq!((trace.requests.len(), trace.block_size), (100, 16));
        assert_eq!((trace.requests[7].at_ms, trace.requests[7].output_length), (7, 7));
        assert_eq!(trace.requests[7].hash_ids, [1, u64::MAX]);
        assert_eq!(trace.requests[7].about.as_ref().unwrap().model.as_deref(), Some("m"));
        assert_eq!(std::fs::read(folder.join("trace.jsonl.1")).unwrap(), b"{\"timestamp\":0,\"block_size\":16}\n");
        assert!(metrics.render().contains("w_recorded_requests_total{outcome=\"written\"} 100"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn of_lines_that_are_not_written_whole_nothing_stays() {
        let path = std::env::temp_dir().join(format!("warmpath-journal-torn-{}", std::process::id()));
        let metrics = Metrics::new("w");
        let half = || {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"{\"timestamp\":5,\"hash_ids\":[1")
        };
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        let mut journal = Journal::begin(&path, 1 << 20, metrics.record()).await.unwrap();
        let obstacle = journal.obstacle();
        journal.write(&mut vec![finished(1)]).await;
        // A disk that is full takes a part of a line, and the rest fails.
        half().unwrap();
        let writable = std::mem::replace(&mut journal.file, File::open(&path).await.unwrap());
        journal.write(&mut vec![finished(2), finished(3)]).await;
        assert!(obstacle.told().is_some_and(|why| why.starts_with("requests cannot be recorded in /")), "{obstacle:?}");
        assert_eq!((journal.torn, lines()), (true, 2));
        // There is room again.
        journal.file = writable;
        journal.write(&mut vec![finished(4)]).await;
        assert_eq!((obstacle.told(), lines()), (None, 2));
        // Where nothing can be taken back, since others have emptied the file, the next line is one of its own.
        std::fs::write(&path, "").unwrap();
        half().unwrap();
        journal.torn = true;
        journal.write(&mut vec![finished(6)]).await;
        let told = std::fs::read_to_string(&path).unwrap();
        assert!(told.starts_with("{\"timestamp\":5,\"hash_ids\":[1\n{\"timestamp\":6,"), "{told}");
        assert_eq!((journal.torn, journal.written), (false, u64::try_from(told.len()).unwrap()));
        assert!(metrics.render().contains("w_recorded_requests_total{outcome=\"failed\"} 2"));
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_made() {
        let folder = std::env::temp_dir().join(format!("warmpath-journal-made-{}", std::process::id()));
        let path = folder.join("below/trace.jsonl");
        Journal::begin(&path, 300, Metrics::new("w").record()).await.unwrap();
        assert!(path.is_file());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_file_that_is_no_recording_stays_as_it_is() {
        let path = std::env::temp_dir().join(format!("warmpath-journal-other-{}", std::process::id()));
        let begun = async || Journal::begin(&path, 300, Metrics::new("w").record()).await.map(drop);
        let other = "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1]}\n";
        for text in ["models: [{name: m}]\n", other] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(begun().await.unwrap_err().to_string(), "it holds something else than a recording");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        // One of ours that broke off.
        std::fs::write(&path, "{\"timestamp\":12,\"inp").unwrap();
        begun().await.unwrap();
        std::fs::remove_file(format!("{}.1", path.display())).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(begun().await.unwrap_err().to_string(), "it is a folder");
        std::fs::remove_dir(&path).unwrap();
        // Nobody reads the pipe: what is written waits, and the router begins.
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        begun().await.unwrap();
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn a_full_file_makes_room_for_the_next_and_only_two_are_kept() {
        let folder = std::env::temp_dir().join(format!("warmpath-journal-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("trace.jsonl");
        let metrics = Metrics::new("w");
        let mut journal = Journal::begin(&path, 300, metrics.record()).await.unwrap();
        for at_ms in 0..20 {
            journal.write(&mut vec![finished(at_ms)]).await;
        }
        let lens: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(lens.len(), 2);
        assert!(lens.iter().all(|len| (1..=300).contains(len)), "{lens:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().last().unwrap().contains("\"timestamp\":19,"), "{text}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
