//! The conversation trace: for each request the ids of its 512-token blocks.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use serde::Deserialize;

/// A longer line is no line of a trace.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The ids of all requests, in the order of their arrival.
pub(crate) struct Trace(Vec<Vec<u64>>);

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

impl Trace {
    /// Reads a gzipped trace: JSON lines with `hash_ids`.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let fault = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let file = File::open(path).map_err(|error| fault(&error))?;
        let mut lines = BufReader::new(GzDecoder::new(file));
        let mut requests = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            let read = std::io::Read::take(&mut lines, LINE_BYTES_MAX).read_line(&mut line);
            if read.map_err(|error| fault(&error))? == 0 {
                break;
            }
            let parsed: Line = serde_json::from_str(&line).map_err(|error| fault(&error))?;
            requests.push(parsed.hash_ids);
        }
        if requests.is_empty() { Err(fault(&"it has no requests")) } else { Ok(Self(requests)) }
    }

    /// A trace of these requests.
    #[cfg(test)]
    pub(crate) fn of(requests: Vec<Vec<u64>>) -> Self {
        Self(requests)
    }

    /// The ids of each request.
    pub(crate) fn requests(&self) -> &[Vec<u64>] {
        &self.0
    }
}
