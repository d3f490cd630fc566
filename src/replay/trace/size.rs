//! What a trace takes in memory.

use super::{About, Format, Options, TraceRequest};

/// What a trace may take: 2 GiB, as ids and in what stands beside them.
pub(super) const BYTES_MAX: usize = 1 << 31;
/// The bytes of an id.
const ID_BYTES: usize = 8;
/// The bytes of a block that no id names: whoever replays the trace gives it an id and two hashes.
const UNNAMED_BYTES: usize = 24;

/// Tokens in a block of this request, in a trace of this form.
pub(super) fn block_size(request: &TraceRequest, options: &Options, format: Format) -> u32 {
    options.block_size.or(request.block_size()).unwrap_or(format.block_size()).max(1)
}

/// Memory that requests take which were read in this form.
pub(super) fn bytes(read: &[TraceRequest], options: &Options, format: Format) -> usize {
    read.iter().map(|request| request.bytes(block_size(request, options, format))).sum()
}

impl About {
    fn bytes(&self) -> usize {
        let names = [&self.model, &self.session, &self.tenant, &self.class];
        size_of::<Self>() + names.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

impl TraceRequest {
    /// Memory that it takes, where a block has so many tokens. One without ids takes some, too, and so do the blocks that
    /// nobody names: a few megabytes of gzip have millions of them.
    fn bytes(&self, block: u32) -> usize {
        let about = self.about.as_ref().map_or(0, |about| about.bytes());
        let blocks = usize::try_from(self.input_length.div_ceil(block)).unwrap_or(usize::MAX);
        let unnamed = blocks.saturating_sub(self.hash_ids.len());
        size_of::<Self>() + self.hash_ids.len() * ID_BYTES + unnamed * UNNAMED_BYTES + about
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, read_some};

    const LINE: &str = "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n";

    #[test]
    fn a_trace_takes_as_much_as_it_may_whatever_it_is_made_of() {
        let lines = |line: &str, count: usize| line.repeat(count).into_bytes();
        let is_read = |bytes: Vec<u8>| read_some(&*bytes, &Options::default(), 64 << 10).is_ok();
        let (bare, model) = (LINE.replace("[1]", "[]"), LINE.replace("\"timestamp\"", "\"model\":\"M\",\"timestamp\""));
        let ids = LINE.replace("[1]", &format!("[{}]", vec!["1"; 100].join(",")));
        let named = model.replace('M', &"m".repeat(200));
        let unnamed = bare.replace(":5,", ":51200,");
        // 72 bytes each, of which 24 are for a block without an id, 2 448 for a hundred of them, 848, and some 400.
        assert!(is_read(lines(&bare, 900)) && !is_read(lines(&bare, 950)));
        assert!(is_read(lines(&unnamed, 26)) && !is_read(lines(&unnamed, 27)));
        assert!(is_read(lines(&ids, 70)) && !is_read(lines(&ids, 90)));
        assert!(is_read(lines(&named, 100)) && !is_read(lines(&named, 250)));
    }
}
