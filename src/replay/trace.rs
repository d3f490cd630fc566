//! Traces in Mooncake's form: JSON lines of times, lengths and prefix-unique block ids.

use std::io::{BufRead, BufReader, Read};

use serde::Deserialize;

/// The longest line that is read: a million-token request names some two thousand blocks.
const LINE_MAX: u64 = 4 * 1024 * 1024;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TraceRequest {
    /// Arrival, in ms since the trace began.
    #[serde(rename = "timestamp")]
    pub at_ms: u64,
    /// Prompt tokens.
    pub input_length: u32,
    /// Tokens to generate.
    pub output_length: u32,
    /// A name for each block of the prompt together with all before it; the last block may be partial.
    pub hash_ids: Vec<u64>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("the trace cannot be read")]
    Io(#[from] std::io::Error),
    /// A line makes no sense.
    #[error("line {line}: {message}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
}

/// Reads a trace, gzipped or plain. O(bytes).
///
/// # Errors
/// With the number of the line that makes no sense; blank lines are passed over.
pub fn read(bytes: &[u8]) -> Result<Vec<TraceRequest>, TraceError> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        lines(BufReader::new(flate2::read::GzDecoder::new(bytes)))
    } else {
        lines(bytes)
    }
}

fn lines(mut reader: impl BufRead) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = Vec::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut text)?;
        if read == 0 {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let request =
            serde_json::from_slice(&text).map_err(|error| TraceError::Line { line, message: error.to_string() })?;
        requests.push(request);
    }
    Ok(requests)
}

impl TraceRequest {
    /// The same request with blocks of `to` tokens in place of `from`, its output shortened alike. Lengths are kept in
    /// whole and partial blocks, so that what was shared stays shared.
    pub fn scaled(&self, from: u32, to: u32) -> TraceRequest {
        let scale = |tokens: u32| {
            let (whole, rest) = (tokens / from, tokens % from);
            whole * to + (rest * to).div_ceil(from)
        };
        TraceRequest {
            at_ms: self.at_ms,
            input_length: scale(self.input_length).max(1),
            output_length: scale(self.output_length).max(1),
            hash_ids: self.hash_ids.clone(),
        }
    }

    /// The same request with `parts` ids in place of each, so that an id stands for a smaller block.
    pub fn split(&self, parts: u32) -> TraceRequest {
        let parts = u64::from(parts);
        let split = |id: u64| (0..parts).map(move |part| id.wrapping_mul(parts).wrapping_add(part));
        TraceRequest { hash_ids: self.hash_ids.iter().copied().flat_map(split).collect(), ..self.clone() }
    }

    /// The prompt as token ids: each block id becomes the same tokens every time, whatever request it is in.
    pub fn tokens(&self, block: u32, vocabulary: u32) -> Vec<u32> {
        let length = usize::try_from(self.input_length).unwrap_or(usize::MAX);
        let ids = self.hash_ids.iter().flat_map(|id| (0..block).map(move |place| token(*id, place, vocabulary)));
        ids.take(length).collect()
    }
}

/// The `place`-th token of a block.
fn token(block: u64, place: u32, vocabulary: u32) -> u32 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..].copy_from_slice(&place.to_le_bytes());
    let hash = xxhash_rust::xxh3::xxh3_64(&bytes) % u64::from(vocabulary.max(1));
    u32::try_from(hash).expect("less than a u32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let text = b"{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n\n{\"timestamp\":1}\n";
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with("line 3: missing field `input_length`"), "{error}");
    }

    #[test]
    fn equal_blocks_are_equal_tokens_and_the_last_one_may_be_partial() {
        let request = |ids: &[u64], input_length| TraceRequest {
            at_ms: 0,
            input_length,
            output_length: 3,
            hash_ids: ids.to_vec(),
        };
        let (a, b) = (request(&[1, 2], 6).tokens(4, 1000), request(&[1, 3], 8).tokens(4, 1000));
        assert_eq!((a.len(), b.len()), (6, 8));
        assert_eq!(a[..4], b[..4]);
        assert_ne!(a[4..6], b[4..6]);
    }

    #[test]
    fn scaling_keeps_whole_blocks_whole() {
        let request = TraceRequest { at_ms: 9, input_length: 1200, output_length: 100, hash_ids: vec![1, 2, 3] };
        let scaled = request.scaled(512, 64);
        // Two blocks of 64, and 176 of 512 tokens as 22 of 64.
        assert_eq!((scaled.input_length, scaled.output_length), (150, 13));
        assert_eq!(request.scaled(512, 512), request);
    }
}
