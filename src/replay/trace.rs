//! Traces: requests by their times, lengths and prefix-unique block ids, read from several forms of JSON lines.
//!
//! [`read`] gives the requests of any form; [`Trace::read`] tells more and takes options; [`Trace::write`] writes our own
//! form, which is also what a gateway records.

use std::io::{BufRead, BufReader, Read, Write};

pub use format::Format;

use size::BYTES_MAX;
use warmpath_simulator::fleet::unnamed_block;

mod bailian;
mod format;
mod json;
mod plain;
mod size;
mod tair;
mod tair_events;

/// The longest line that is read.
const LINE_MAX: u64 = 4 * 1024 * 1024;
/// Ids in a line: a prompt of four million tokens in blocks of 16.
const IDS_MAX: usize = 1 << 18;
/// The latest time, in ms: 278 years, and so long after 1970. Times are counted as real numbers, which have steps: much
/// later a token would take no time, and a replay no end.
const AT_MAX: u64 = 1 << 43;
/// The longest name of a model, session, tenant or class.
const NAME_MAX: usize = 256;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival, in ms since the trace began.
    pub at_ms: u64,
    /// Prompt tokens.
    pub input_length: u32,
    /// Tokens to generate.
    pub output_length: u32,
    /// A name for each block of the prompt together with all before it; the last block may be partial, or left out.
    pub hash_ids: Vec<u64>,
    /// What else is known of it; mostly nothing.
    pub about: Option<Box<About>>,
}

/// What some traces tell of a request besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The model that it asks for; of Tair's manager the instance, which stands for one.
    pub model: Option<String>,
    /// The conversation or agent that it is a turn of.
    pub session: Option<String>,
    /// Who sends it.
    pub tenant: Option<String>,
    /// Its class of urgency, or the kind of its work.
    pub class: Option<String>,
    /// Tokens that an id stands for.
    pub block_size: Option<u32>,
    /// What it does to a cache.
    pub access: Access,
}

/// What a line of a trace does to a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// A request: looks its blocks up, then stores them.
    #[default]
    Request,
    /// Looks them up and stores nothing.
    Read,
    /// Stores them; nobody asked for anything.
    Write,
}

/// How a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Its form; none is detected by the fields of the first line.
    pub format: Option<Format>,
    /// Whether lines that make no sense are passed over and counted.
    pub lenient: bool,
    /// Tokens that an id stands for, where the trace does not say.
    pub block_size: Option<u32>,
}

/// A trace that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its requests, in order of time.
    pub requests: Vec<TraceRequest>,
    /// The form in which it was.
    pub format: Format,
    /// Tokens that an id stands for: as the options say, or the lines do, or what the form is known for. One size for all:
    /// lines that say another make no sense.
    pub block_size: u32,
    /// Lines that were passed over.
    pub skipped: usize,
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
    /// It is larger than anything that fits into memory.
    #[error("the trace takes more than {} MiB", BYTES_MAX >> 20)]
    TooLarge,
}

/// Turns the lines of one form into requests.
trait Lines {
    /// Reads one line and appends what it says.
    ///
    /// # Errors
    /// What is wrong with it.
    fn line(&mut self, text: &[u8], requests: &mut Vec<TraceRequest>) -> Result<Heard, String>;

    /// All lines were read.
    fn end(&mut self, _requests: &mut Vec<TraceRequest>) {}
}

/// Whether a line belongs to the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Used,
    /// Well formed, but of something else.
    Ignored,
}

/// Reads the requests of a trace, gzipped or plain, in any form; what was only written to a cache is left out. O(bytes).
///
/// # Errors
/// With the number of the line that makes no sense; blank lines are passed over.
pub fn read(bytes: &[u8]) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = Trace::read(bytes, &Options::default())?.requests;
    requests.retain(|request| request.access() != Access::Write);
    Ok(requests)
}

impl Trace {
    /// Reads a trace, gzipped or plain. O(bytes).
    ///
    /// # Errors
    /// With the number of the line that makes no sense, unless such lines are passed over.
    pub fn read(bytes: &[u8], options: &Options) -> Result<Self, TraceError> {
        if bytes.starts_with(&[0x1f, 0x8b]) {
            read_lines(BufReader::new(flate2::read::MultiGzDecoder::new(bytes)), options)
        } else {
            read_lines(bytes, options)
        }
    }

    /// Writes the trace in our own form, which reads back as it is. O(its ids).
    ///
    /// # Errors
    /// When `to` cannot be written.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        for request in &self.requests {
            let block = request.block_size().unwrap_or(self.block_size);
            plain::write(request, block, to)?;
        }
        Ok(())
    }
}

/// Writes one request in our own form: a line of JSON, with `block_size` in it.
///
/// # Errors
/// When `to` cannot be written.
pub fn write_line(request: &TraceRequest, block_size: u32, to: &mut impl Write) -> std::io::Result<()> {
    plain::write(request, block_size, to)
}

fn read_lines(reader: impl BufRead, options: &Options) -> Result<Trace, TraceError> {
    read_some(reader, options, BYTES_MAX)
}

fn read_some(mut reader: impl BufRead, options: &Options, bytes_max: usize) -> Result<Trace, TraceError> {
    let (mut requests, mut text, mut skipped, mut total, mut told) = (Vec::new(), Vec::new(), 0, 0, None);
    let mut form: Option<(Format, Box<dyn Lines>)> = None;
    for line in 1.. {
        text.clear();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut text)?;
        if read == 0 {
            break;
        }
        let is_long = u64::try_from(read) == Ok(LINE_MAX) && text.last() != Some(&b'\n');
        if is_long {
            pass_line(&mut reader)?;
        } else if text.trim_ascii().is_empty() {
            continue;
        }
        let before = requests.len();
        let heard = if is_long {
            Err(format!("longer than {LINE_MAX} bytes"))
        } else {
            let heard = judged(&text, options, &mut form, &mut requests);
            heard.and_then(|heard| of_one_size(&requests[before..], &mut told).map(|()| heard))
        };
        match heard {
            Ok(Heard::Used) => {}
            Ok(Heard::Ignored) => skipped += 1,
            Err(_) if options.lenient => {
                requests.truncate(before);
                skipped += 1;
            }
            Err(message) => return Err(TraceError::Line { line, message }),
        }
        let format = form.as_ref().map_or(Format::Warmpath, |(format, _)| *format);
        total += size::bytes(&requests[before..], options, format);
        if total > bytes_max {
            return Err(TraceError::TooLarge);
        }
    }
    let (format, mut lines) = form.unwrap_or_else(|| opened(options.format.unwrap_or(Format::Warmpath), options));
    lines.end(&mut requests);
    // A gateway records requests as they finish.
    requests.sort_by_key(|request| request.at_ms);
    let block_size = options.block_size.or(told).unwrap_or(format.block_size());
    Ok(Trace { requests, format, block_size, skipped })
}

/// Reads one line in the form that is known by now.
fn judged(
    text: &[u8],
    options: &Options,
    form: &mut Option<(Format, Box<dyn Lines>)>,
    requests: &mut Vec<TraceRequest>,
) -> Result<Heard, String> {
    if form.is_none() {
        let format = match options.format {
            Some(format) => format,
            None => Format::detect(text)?,
        };
        *form = Some(opened(format, options));
    }
    let Some((format, lines)) = form else { return Ok(Heard::Ignored) };
    let before = requests.len();
    let heard = lines.line(text, requests)?;
    for request in &requests[before..] {
        if request.hash_ids.len() > IDS_MAX {
            return Err(format!("{} block ids, {IDS_MAX} are allowed", request.hash_ids.len()));
        }
        // Blocks without a name take as much room as those that have one.
        let block = size::block_size(request, options, *format);
        let blocks = request.input_length.div_ceil(block);
        if usize::try_from(blocks).unwrap_or(usize::MAX) > IDS_MAX {
            return Err(format!("a prompt of {blocks} blocks of {block} tokens, {IDS_MAX} are allowed"));
        }
    }
    Ok(heard)
}

/// Holds what lines say of their blocks against what those before them `told`: read with another size, all that a prompt
/// shares with others would be wrong.
fn of_one_size(read: &[TraceRequest], told: &mut Option<u32>) -> Result<(), String> {
    for size in read.iter().filter_map(TraceRequest::block_size) {
        let first = *told.get_or_insert(size);
        if first != size {
            return Err(format!(
                "blocks of {size} tokens behind ones of {first}: a trace has one size, so give each model's lines a file \
                 of their own, or pass over those of other sizes with --lenient"
            ));
        }
    }
    Ok(())
}

fn opened(format: Format, options: &Options) -> (Format, Box<dyn Lines>) {
    let block = options.block_size.unwrap_or(format.block_size());
    let lines: Box<dyn Lines> = match format {
        Format::Mooncake | Format::Warmpath => Box::new(plain::Plain),
        Format::Bailian => Box::new(bailian::Bailian::default()),
        Format::TairEvents => Box::new(tair_events::Events::new(block)),
        Format::TairOptimizer => Box::new(tair::Schema::new(block)),
    };
    (format, lines)
}

/// Goes to the end of a line without keeping it.
fn pass_line(reader: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let (used, ended) = match memchr::memchr(b'\n', buffer) {
            Some(at) => (at + 1, true),
            None => (buffer.len(), false),
        };
        reader.consume(used);
        if ended {
            return Ok(());
        }
    }
}

impl TraceRequest {
    /// What it does to a cache.
    pub fn access(&self) -> Access {
        self.about.as_ref().map_or(Access::Request, |about| about.access)
    }

    /// Tokens that an id stands for, where the line tells.
    pub fn block_size(&self) -> Option<u32> {
        self.about.as_ref()?.block_size
    }

    /// Whether it has whole blocks that no id names, where an id stands for `block` tokens; the last one may be left out.
    pub fn is_short_of_ids(&self, block: u32) -> bool {
        let named = u64::try_from(self.hash_ids.len()).unwrap_or(u64::MAX);
        named.saturating_add(1).saturating_mul(u64::from(block)) < u64::from(self.input_length)
    }

    /// Whether it has ids for more blocks of `block` tokens than the prompt fills, the last of them partly.
    pub fn has_ids_beyond(&self, block: u32) -> bool {
        let blocks = usize::try_from(self.input_length.div_ceil(block.max(1))).unwrap_or(usize::MAX);
        self.hash_ids.len() > blocks
    }

    /// The model that it asks for, where the trace tells.
    pub fn model(&self) -> Option<&str> {
        self.about.as_ref()?.model.as_deref()
    }

    /// The conversation or agent that it is a turn of, where the trace tells.
    pub fn session(&self) -> Option<&str> {
        self.about.as_ref()?.session.as_deref()
    }

    /// The same request with blocks of `to` tokens in place of `from`, its output shortened alike. Lengths are kept in
    /// whole and partial blocks, so that what was shared stays shared.
    pub fn scaled(&self, from: u32, to: u32) -> TraceRequest {
        let scale = |tokens: u32| {
            let (whole, rest) = (tokens / from, tokens % from);
            whole * to + (rest * to).div_ceil(from)
        };
        TraceRequest {
            input_length: scale(self.input_length).max(1),
            output_length: scale(self.output_length).max(1),
            ..self.clone()
        }
    }

    /// The same request with `parts` ids in place of each, so that an id stands for a smaller block.
    pub fn split(&self, parts: u32) -> TraceRequest {
        let parts = u64::from(parts);
        let split = |id: u64| (0..parts).map(move |part| id.wrapping_mul(parts).wrapping_add(part));
        TraceRequest { hash_ids: self.hash_ids.iter().copied().flat_map(split).collect(), ..self.clone() }
    }

    /// The prompt as token ids: each block id becomes the same tokens every time, whatever request it is in. Blocks for
    /// which there is no id are like no others but those of the same `number`, which is the request's place in its trace.
    pub fn tokens(&self, number: usize, block: u32, vocabulary: u32) -> Vec<u32> {
        let length = usize::try_from(self.input_length).unwrap_or(usize::MAX);
        let ids = (0..).map(|place| self.hash_ids.get(place).copied().unwrap_or_else(|| unnamed_block(number, place)));
        let tokens = ids.flat_map(|id| (0..block.max(1)).map(move |place| token(id, place, vocabulary)));
        tokens.take(length).collect()
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

/// A time as it is kept.
///
/// # Errors
/// It is too late.
fn at(ms: u64) -> Result<u64, String> {
    let wrong = || format!("a time of {ms} ms, {AT_MAX} are allowed: it may be in another unit");
    (ms <= AT_MAX).then_some(ms).ok_or_else(wrong)
}

/// A name as it is kept: none where it is empty.
///
/// # Errors
/// It is too long.
fn name(text: Option<String>, field: &str) -> Result<Option<String>, String> {
    match text {
        Some(text) if text.len() > NAME_MAX => Err(format!("`{field}` is longer than {NAME_MAX} bytes")),
        Some(text) if text.is_empty() => Ok(None),
        text => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n";

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let error = read(format!("{LINE}\n{{\"timestamp\":1}}\n").as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 3: missing field `input_length`");
        let error = read(format!("{LINE}{}", LINE.replace(":5,", ":\"5\",")).as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 2: `input_length`: invalid type: string \"5\", expected u32");
        let error = read(LINE.replace("[1]", "[1,-1]").as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: `hash_ids[1]`: invalid value: integer `-1`, expected u64");
        let error = read(b"{\"timestamp\"").unwrap_err().to_string();
        assert_eq!(error, "line 1: EOF while parsing an object");
    }

    #[test]
    fn a_time_that_is_later_than_any_is_refused_in_every_form() {
        for (format, line) in [
            (Format::Mooncake, r#"{"timestamp":MS,"input_length":5,"output_length":1,"hash_ids":[1]}"#),
            (Format::Bailian, r#"{"timestamp":MSe-3,"input_length":5,"output_length":1,"hash_ids":[1]}"#),
            (Format::TairOptimizer, r#"{"timestamp_us":MS000,"keys":[1],"type":"get"}"#),
            (Format::TairEvents, r#"{"type":"GetCacheLocation","trigger_time_us":MS000,"keys":[1]}"#),
            (
                Format::TairEvents,
                r#"{"type":"StartWriteCache","trigger_time_us":MS000,"keys":[1],"write_session_id":"s"}"#,
            ),
        ] {
            let options = Options { format: Some(format), ..Options::default() };
            let read = |ms: u64| Trace::read(line.replace("MS", &ms.to_string()).as_bytes(), &options);
            assert!(read(AT_MAX).is_ok(), "{format}");
            let expected =
                format!("line 1: a time of {} ms, {AT_MAX} are allowed: it may be in another unit", AT_MAX + 1);
            assert_eq!(read(AT_MAX + 1).unwrap_err().to_string(), expected, "{format}");
        }
    }

    #[test]
    fn lenient_reading_counts_what_it_passes_over() {
        let text = format!("{LINE}nonsense\n{LINE}{{\"timestamp\":1}}\n{LINE}");
        let trace = Trace::read(text.as_bytes(), &Options { lenient: true, ..Options::default() }).unwrap();
        assert_eq!((trace.requests.len(), trace.skipped), (3, 2));
    }

    #[test]
    fn a_line_that_is_too_long_or_has_too_many_ids_is_refused_by_its_number() {
        let long = format!("{LINE}{{\"timestamp\":0,\"pad\":\"{}\"}}\n{LINE}", " ".repeat(5 << 20));
        let error = read(long.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 2: longer than 4194304 bytes");
        let trace = Trace::read(long.as_bytes(), &Options { lenient: true, ..Options::default() }).unwrap();
        assert_eq!((trace.requests.len(), trace.skipped), (2, 1));
        let ids = vec!["1"; IDS_MAX + 1].join(",");
        let many = format!("{{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[{ids}]}}");
        assert_eq!(read(many.as_bytes()).unwrap_err().to_string(), "line 1: 262145 block ids, 262144 are allowed");
    }

    #[test]
    fn an_empty_trace_has_no_requests_and_a_zipped_one_reads_like_a_plain_one() {
        assert_eq!(read(b"\n \n").unwrap(), []);
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zipped.write_all(LINE.as_bytes()).unwrap();
        assert_eq!(read(&zipped.finish().unwrap()).unwrap(), read(LINE.as_bytes()).unwrap());
    }

    #[test]
    fn equal_blocks_are_equal_tokens_and_the_last_one_may_be_partial() {
        let request =
            |ids: &[u64], input_length| TraceRequest { input_length, hash_ids: ids.to_vec(), ..Default::default() };
        let (a, b) = (request(&[1, 2], 6).tokens(0, 4, 1000), request(&[1, 3], 8).tokens(1, 4, 1000));
        assert_eq!((a.len(), b.len()), (6, 8));
        assert_eq!(a[..4], b[..4]);
        assert_ne!(a[4..6], b[4..6]);
    }

    #[test]
    fn a_prompt_has_all_its_tokens_and_those_without_a_name_are_its_own() {
        let request = |ids: &[u64]| TraceRequest { input_length: 11, hash_ids: ids.to_vec(), ..Default::default() };
        let (a, b) = (request(&[1, 2]).tokens(0, 4, 100_000), request(&[1, 2]).tokens(1, 4, 100_000));
        assert_eq!((a.len(), b.len()), (11, 11));
        assert_eq!(a[..8], b[..8]);
        assert_ne!(a[8..], b[8..]);
        assert_eq!(a, request(&[1, 2]).tokens(0, 4, 100_000));
        assert_eq!(request(&[]).tokens(0, 4, 100_000).len(), 11);
    }

    #[test]
    fn a_trace_of_several_block_sizes_is_refused_by_the_first_line_that_has_another() {
        let line = |size: u32| LINE.replace("]}", &format!("],\"block_size\":{size}}}"));
        let text = [line(16), line(16), line(64), line(16)].concat();
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 3: blocks of 64 tokens behind ones of 16: "), "{error}");
        let trace = Trace::read(text.as_bytes(), &Options { lenient: true, ..Options::default() }).unwrap();
        assert_eq!((trace.requests.len(), trace.skipped, trace.block_size), (3, 1, 16));
    }

    #[test]
    fn blocks_that_no_id_names_are_counted_like_those_that_have_one() {
        let text = LINE.replace(":5,", ":4294967295,");
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: a prompt of 8388608 blocks of 512 tokens, 262144 are allowed");
    }

    #[test]
    fn only_whole_blocks_without_an_id_are_missing() {
        let request = |input_length| TraceRequest { input_length, hash_ids: vec![1, 2], ..Default::default() };
        let missing = [8, 11, 12, 13].map(|length| request(length).is_short_of_ids(4));
        assert_eq!(missing, [false, false, false, true]);
    }

    #[test]
    fn an_id_beyond_the_partial_block_is_one_too_many() {
        let request = |input_length| TraceRequest { input_length, hash_ids: vec![1, 2], ..Default::default() };
        let beyond = [1, 4, 5, 8, 9].map(|length| request(length).has_ids_beyond(4));
        assert_eq!(beyond, [true, true, false, false, false]);
    }

    #[test]
    fn scaling_keeps_whole_blocks_whole() {
        let request = TraceRequest { input_length: 1200, output_length: 100, ..TraceRequest::default() };
        let scaled = request.scaled(512, 64);
        // Two blocks of 64, and 176 of 512 tokens as 22 of 64.
        assert_eq!((scaled.input_length, scaled.output_length), (150, 13));
        assert_eq!(request.scaled(512, 512), request);
    }
}
