//! Lines of the log that come close together, written at once.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes of lines that are written together at most.
const TOGETHER: usize = 64 * 1024;

/// How long lines gather once some have been written. A line that comes alone is written at once, and whoever logs while
/// others gather need not wake anybody.
const GATHERING: Duration = Duration::from_millis(1);

/// Writes lines that come close together at once, and counts those that cannot be written: whoever is to write them behind the
/// requests passes over them without a word.
pub(super) struct Gathering<W> {
    writer: W,
    waiting: Vec<u8>,
    lines: u64,
    unwritten: &'static AtomicU64,
}

impl<W: Write> Gathering<W> {
    pub(super) fn new(writer: W, unwritten: &'static AtomicU64) -> Self {
        Self { writer, waiting: Vec::with_capacity(TOGETHER), lines: 0, unwritten }
    }

    fn send(&mut self) -> io::Result<()> {
        let written = self.writer.write_all(&self.waiting).and_then(|()| self.writer.flush());
        if written.is_err() {
            self.unwritten.fetch_add(self.lines, Ordering::Relaxed);
        }
        self.waiting.clear();
        self.lines = 0;
        written
    }
}

impl<W: Write> Write for Gathering<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// A whole line.
    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let sent = if self.waiting.len() + line.len() > TOGETHER { self.send() } else { Ok(()) };
        self.waiting.extend_from_slice(line);
        self.lines += 1;
        sent
    }

    /// No line waits for now.
    fn flush(&mut self) -> io::Result<()> {
        let sent = self.send();
        thread::sleep(GATHERING);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_taken_are_counted() {
        static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
        let mut room = [0; 8];
        let mut lines = Gathering::new(&mut room[..], &UNWRITTEN);
        let mut take = |together: &[&str]| {
            together.iter().for_each(|line| lines.write_all(line.as_bytes()).unwrap());
            lines.flush().is_ok()
        };
        assert_eq!([take(&["one\n", "two\n"]), take(&["three\n", "four\n"])], [true, false]);
        assert_eq!((&room, UNWRITTEN.load(Ordering::Relaxed)), (b"one\ntwo\n", 2));
    }

    #[test]
    fn lines_that_gather_are_written_as_they_came_and_in_pieces_of_bounded_size() {
        static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
        let mut log = Vec::new();
        let line = [b"x".repeat(TOGETHER / 3), b"\n".to_vec()].concat();
        let mut lines = Gathering::new(&mut log, &UNWRITTEN);
        for _ in 0..5 {
            lines.write_all(&line).unwrap();
            assert!(lines.waiting.len() <= TOGETHER);
        }
        lines.write_all(&b"y".repeat(2 * TOGETHER)).unwrap();
        lines.flush().unwrap();
        assert!(lines.waiting.is_empty());
        assert_eq!(log, [line.repeat(5), b"y".repeat(2 * TOGETHER)].concat());
    }
}
