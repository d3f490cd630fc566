//! Views that outlive the router: a file for each (worker, rank), written when the router stops and read once when it
//! starts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmpath_indexer::concurrent::Chains;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::index::{Restored, Writer};
use warmpath_indexer::snapshot::{CHUNK_BYTES, HEADER_BYTES, Mark, SnapshotError, SnapshotFault, chunk_len, owner_of};

use super::EventTask;
use super::nats::stream::KEPT;
use crate::fleet::discovery::registration::key_of;
use crate::wall_clock::now_ms;

/// Files that are read or written at once: a few are as fast as all, take less memory, and leave time for requests.
const AT_ONCE: usize = 4;

/// How long after the start files are read. What was not read by then is not waited for, and not read.
const READING: Duration = Duration::from_secs(30);

/// The largest file that is read: a hundred million blocks.
const FILE_MAX: u64 = 4 << 30;

/// Bytes that are written to find out whether any can be.
const PROBE: usize = 64 << 10;

/// The most of a worker's name that a file's name begins with; file systems allow 255 bytes.
const NAME_MAX: usize = 180;

/// A folder of views. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SnapshotFolder {
    path: PathBuf,
    turns: Arc<Semaphore>,
    /// Files that are still to be read.
    waiting: Arc<AtomicUsize>,
    /// Until when they may be.
    until: Instant,
}

/// A view that is still to be read. Counted until it is dropped.
pub(super) struct Warming(Arc<AtomicUsize>);

impl Drop for Warming {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a file was not believed.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{0}")]
    Faulty(#[from] SnapshotError),
    #[error("byte {at}: {fault}")]
    FaultyHeader { at: u64, fault: SnapshotFault },
    #[error("it is {} minutes old: what happened since may be lost", .0.as_secs() / 60)]
    TooOld(Duration),
    #[error("it has {0} bytes")]
    TooLarge(u64),
    #[error("it is no regular file")]
    NoFile,
    #[error("reading takes too long")]
    TooSlow,
}

impl SnapshotFolder {
    /// The folder at `path`, which is made if it is missing. Reads may begin now.
    ///
    /// # Errors
    /// It cannot be made, or no file can be written into it.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        // Other routers may look at the same moment.
        let probe = path.join(format!(".writable-{}.tmp", std::process::id()));
        // A disk that is full takes a file without anything in it.
        let written = File::create(&probe).and_then(|mut file| {
            file.write_all(&[0; PROBE])?;
            file.sync_all()
        });
        let removed = fs::remove_file(&probe);
        written?;
        removed?;
        let until = Instant::now() + READING;
        Ok(Self { path, turns: Arc::new(Semaphore::new(AT_ONCE)), waiting: Arc::default(), until })
    }

    /// Whether nothing is still to be read, or waited for.
    pub fn is_read(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 || Instant::now() > self.until
    }

    pub(super) fn warming(&self) -> Warming {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Warming(Arc::clone(&self.waiting))
    }

    /// Waits until a file may be read or written.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// The file of a (worker, rank). Names that differ only in case, or behind their first 180 bytes, are told apart by
    /// what stands in the file or by the hash in its name.
    fn file(&self, worker: &str, rank: u32) -> PathBuf {
        let mut name = key_of(worker);
        if name.len() > NAME_MAX {
            name.truncate(NAME_MAX);
            name += &format!("~{:016x}", owner_of(worker, rank));
        }
        self.path.join(format!("{name}.{rank}.snapshot"))
    }

    /// Fills a view from its file, if there is one. The file is used once: it is renamed before it is read, so that one
    /// that ends the router is never met again, and one that is out of date is never taken for the last; then it is
    /// removed, or left as `….refused`.
    fn read(&self, (worker, rank): (&str, u32), writer: &Writer<Chains>) -> Option<Restored> {
        let file = self.file(worker, rank);
        let begun = file.with_extension("reading");
        match fs::symlink_metadata(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            _ => {}
        }
        let renamed = fs::rename(&file, &begun).map_err(Refusal::Unreadable);
        match renamed.and_then(|()| restore(&begun, owner_of(worker, rank), writer, self.until)) {
            Ok(restored) => {
                if let Err(error) = fs::remove_file(&begun) {
                    tracing::warn!(file = %begun.display(), %error, "a snapshot that was read cannot be removed");
                }
                Some(restored)
            }
            Err(refusal) => {
                let left = file.with_extension("refused");
                let left = if fs::rename(&begun, &left).is_ok() { left } else { file };
                tracing::warn!(worker, rank, file = %left.display(), reason = %refusal, "snapshot refused; starting cold");
                None
            }
        }
    }

    /// Writes a view down, in place of what the file may have held; all of it or nothing. Returns how many names.
    fn write(
        &self,
        (worker, rank): (&str, u32),
        (writer, (position, began)): (&Writer<Chains>, (Position, Began)),
        until: Instant,
    ) -> io::Result<usize> {
        let file = self.file(worker, rank);
        let unfinished = file.with_extension("tmp");
        let mark = Mark { owner: owner_of(worker, rank), position, began, taken_ms: now_ms() };
        let written = write(&unfinished, (writer, mark), until).and_then(|names| {
            fs::rename(&unfinished, &file)?;
            File::open(&self.path)?.sync_all()?;
            Ok(names)
        });
        if written.is_err() {
            // It may not even be there.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

fn age(taken_ms: u64) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(taken_ms))
}

fn write(path: &Path, (writer, mark): (&Writer<Chains>, Mark), until: Instant) -> io::Result<usize> {
    let in_time = || {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no time was left");
        (Instant::now() <= until).then_some(()).ok_or_else(late)
    };
    in_time()?;
    // Hashes tell what was asked to those who can guess it.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut file = BufWriter::new(file);
    let mut snapshot = writer.snapshot(mark, CHUNK_BYTES);
    for chunk in &mut snapshot {
        in_time()?;
        file.write_all(&chunk)?;
    }
    file.into_inner()?.sync_all()?;
    Ok(snapshot.names() - snapshot.left_out().unwrap_or(0))
}

fn restore(path: &Path, owner: u64, writer: &Writer<Chains>, until: Instant) -> Result<Restored, Refusal> {
    // Opening anything else might wait without an end.
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() {
        return Err(Refusal::NoFile);
    }
    if found.len() > FILE_MAX {
        return Err(Refusal::TooLarge(found.len()));
    }
    let mut file = File::open(path)?.take(found.len());
    let (mut restore, mut chunk) = (writer.restore(owner), Vec::new());
    let mut header = [0; HEADER_BYTES];
    while file.limit() > 0 {
        if Instant::now() > until {
            return Err(Refusal::TooSlow);
        }
        let at = found.len() - file.limit();
        file.read_exact(&mut header)?;
        let len = chunk_len(&header).map_err(|fault| Refusal::FaultyHeader { at, fault })?;
        chunk.clear();
        chunk.extend_from_slice(&header);
        chunk.resize(len, 0);
        file.read_exact(&mut chunk[HEADER_BYTES..])?;
        restore.chunk(&chunk)?;
        let age = restore.head().map_or(Duration::ZERO, |head| age(head.mark.taken_ms));
        if age > KEPT {
            return Err(Refusal::TooOld(age));
        }
    }
    Ok(restore.finish()?)
}

impl EventTask {
    /// The task with the view that the run before left, if it is to have that and there is one. None while the process
    /// ends.
    pub(super) async fn warmed(mut self) -> Option<Self> {
        let Some(folder) = self.kept.clone() else { return Some(self) };
        let turn = folder.turn().await;
        let restoring = tokio::task::spawn_blocking(move || {
            // What a panic leaves is not trusted.
            self.at_work = catch_unwind(AssertUnwindSafe(|| self.take_up(&folder))).is_err();
            drop(turn);
            self.warming = None;
            self
        });
        restoring.await.inspect_err(|error| tracing::error!(%error, "a snapshot was not read")).ok()
    }

    fn take_up(&mut self, folder: &SnapshotFolder) {
        let of = (self.worker.id.as_str(), self.worker.rank.unwrap_or_default().0);
        let Some(restored) = folder.read(of, &self.index) else { return };
        if !self.repair.resume((restored.position, restored.began), Instant::now(), &mut self.steps) {
            self.index.forget();
            return;
        }
        self.restored = true;
        self.worker.metrics.restored.increment(u64::try_from(restored.names).unwrap_or(u64::MAX));
        let age_s = age(restored.taken_ms).as_secs();
        let Restored { names, over_limit, left_out, .. } = restored;
        tracing::info!(worker = of.0, rank = of.1, blocks = names, over_limit, left_out, age_s, "snapshot restored");
    }

    /// Leaves the view to the next run, unless nothing would tell that run what was missed.
    pub(super) fn put_down(&self, folder: &SnapshotFolder, until: Instant) {
        let of = (self.worker.id.as_str(), self.worker.rank.unwrap_or_default().0);
        if self.unnumbered || self.is_torn || self.index.names() == 0 {
            return;
        }
        let left = (self.repair.feed().position(), self.repair.began());
        match folder.write(of, (&self.index, left), until) {
            Ok(blocks) => tracing::info!(worker = of.0, rank = of.1, blocks, "snapshot written"),
            Err(error) => tracing::warn!(worker = of.0, rank = of.1, %error, "snapshot not written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_core::blocks::DEFAULT_ROOT_SEED;
    use warmpath_core::ids::{BlockHash, EngineHash, Slot};
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::{BlockSize, Tier};
    use warmpath_indexer::concurrent::ConcurrentIndex;
    use warmpath_indexer::event::{Attention, CacheEvent, Content, Stored};
    use warmpath_indexer::view::ViewSettings;

    /// A folder of a test's own, and a view of 100 blocks.
    struct Bench {
        folder: SnapshotFolder,
        writer: Writer<Chains>,
    }

    const POSITION: Position = Position { epoch: Some(2), next: 9, newest: Some(3.5) };

    impl Bench {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("warmpath-folder-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            let index = Arc::new(ConcurrentIndex::new(1000));
            let pool = Namespace::plain("m", BlockSize::new(4).unwrap());
            let writer = index.writer(Slot(0), &ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 });
            let stored = Stored {
                hashes: (1..=100).map(EngineHash).collect(),
                parent: None,
                content: Content::Hashes((1..=100).map(BlockHash).collect()),
                block_size: None,
                tier: Tier::Device,
                group: None,
                attention: Attention::Unstated,
                adapter: None,
                salt: None,
                media: Vec::new(),
                cut: 0,
            };
            writer.apply(&[CacheEvent::from(stored)]);
            Self { folder: SnapshotFolder::open(path).unwrap(), writer }
        }

        fn until(&self) -> Instant {
            Instant::now() + Duration::from_secs(60)
        }

        fn write(&self, worker: &str) -> io::Result<usize> {
            self.folder.write((worker, 0), (&self.writer, (POSITION, Began::AtStart)), self.until())
        }

        fn read(&self, worker: &str) -> Option<(Position, usize)> {
            self.writer.forget();
            let restored = self.folder.read((worker, 0), &self.writer)?;
            assert_eq!((self.writer.names(), restored.over_limit), (restored.names, 0));
            Some((restored.position, restored.names))
        }

        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.folder.path).unwrap();
            let mut files: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            files.sort_unstable();
            files
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder.path);
        }
    }

    #[test]
    fn what_was_written_is_read_once() {
        let bench = Bench::new("once");
        assert_eq!((bench.write("a/b").unwrap(), bench.files()), (100, vec!["a=2Fb.0.snapshot".to_owned()]));
        assert_eq!(bench.read("a/b"), Some((POSITION, 100)));
        assert_eq!((bench.files(), bench.read("a/b")), (vec![], None));
    }

    #[test]
    fn names_of_any_length_and_kind_are_names_of_files() {
        let bench = Bench::new("names");
        let long = "/".repeat(128);
        let names = [long.clone() + "a", long + "b", "..".to_owned(), String::new()];
        for (number, name) in (1..).zip(&names) {
            bench.write(name).unwrap();
            assert_eq!(bench.files().len(), number);
        }
        names.iter().for_each(|name| assert_eq!(bench.read(name), Some((POSITION, 100))));
    }

    #[test]
    fn another_workers_file_is_refused_and_left() {
        let bench = Bench::new("other");
        bench.write("A").unwrap();
        fs::rename(bench.folder.file("A", 0), bench.folder.file("a", 0)).unwrap();
        assert_eq!((bench.read("a"), bench.files()), (None, vec!["a.0.refused".to_owned()]));
        assert_eq!(bench.writer.names(), 0);
    }

    #[test]
    fn a_file_that_is_older_than_what_streams_keep_is_refused() {
        let bench = Bench::new("old");
        let written = |age: Duration| {
            let taken_ms = now_ms() - u64::try_from(age.as_millis()).unwrap();
            let mark = Mark { owner: owner_of("a", 0), position: POSITION, began: Began::AtStart, taken_ms };
            let path = bench.folder.file("a", 0);
            write(&path, (&bench.writer, mark), bench.until()).unwrap();
            restore(&path, mark.owner, &bench.writer, bench.until())
        };
        assert_eq!(written(KEPT - Duration::from_secs(60)).unwrap().names, 100);
        let refusal = written(KEPT + Duration::from_secs(90)).unwrap_err();
        assert_eq!(refusal.to_string(), "it is 61 minutes old: what happened since may be lost");
        assert_eq!(bench.writer.names(), 0);
    }

    #[test]
    fn whatever_lies_there_is_refused_without_waiting() {
        let bench = Bench::new("odd");
        let refusal = |bytes: &[u8]| {
            let path = bench.folder.file("a", 0);
            fs::write(&path, bytes).unwrap();
            restore(&path, 1, &bench.writer, bench.until()).unwrap_err().to_string()
        };
        assert_eq!(refusal(b"x"), "it cannot be read: failed to fill whole buffer");
        assert_eq!(refusal(&[7; 200]), "byte 0: this is no snapshot");
        assert_eq!(refusal(b""), "chunk 0, byte 0: the last chunk is missing");
        fs::remove_file(bench.folder.file("a", 0)).unwrap();
        fs::create_dir(bench.folder.file("a", 0)).unwrap();
        assert_eq!((bench.read("a"), bench.files()), (None, vec!["a.0.refused".to_owned()]));
    }

    #[test]
    fn what_does_not_fit_into_its_time_is_not_done() {
        let bench = Bench::new("late");
        bench.write("a").unwrap();
        let kept = fs::read(bench.folder.file("a", 0)).unwrap();
        let past = Instant::now();
        std::hint::spin_loop();
        while Instant::now() == past {}
        let late = bench.folder.write(("a", 0), (&bench.writer, (POSITION, Began::AtStart)), past).unwrap_err();
        assert_eq!((late.kind(), bench.files()), (io::ErrorKind::TimedOut, vec!["a.0.snapshot".to_owned()]));
        assert_eq!(fs::read(bench.folder.file("a", 0)).unwrap(), kept);
        let refusal = restore(&bench.folder.file("a", 0), owner_of("a", 0), &bench.writer, past).unwrap_err();
        assert_eq!(refusal.to_string(), "reading takes too long");
    }

    #[test]
    fn a_folder_is_read_when_nobody_is_about_to_read_it() {
        let bench = Bench::new("count");
        let (one, other) = (bench.folder.warming(), bench.folder.clone().warming());
        drop(one);
        assert!(!bench.folder.is_read());
        drop(other);
        assert!(bench.folder.is_read());
    }
}
