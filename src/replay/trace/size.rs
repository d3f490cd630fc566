//! What a trace takes in memory.

use super::{About, TraceRequest};

/// What a trace may take: 2 GiB, as ids and in what stands beside them.
pub(super) const BYTES_MAX: usize = 1 << 31;
/// The bytes of an id.
const ID_BYTES: usize = 8;

impl About {
    fn bytes(&self) -> usize {
        let names = [&self.model, &self.session, &self.tenant, &self.class];
        size_of::<Self>() + names.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

impl TraceRequest {
    /// Memory that it takes. One without ids takes some, too: a few megabytes of gzip have millions of them.
    pub(super) fn bytes(&self) -> usize {
        let about = self.about.as_ref().map_or(0, |about| about.bytes());
        size_of::<Self>() + self.hash_ids.len() * ID_BYTES + about
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
        // 48 bytes each, 848, and some 400.
        assert!(is_read(lines(&bare, 1_000)) && !is_read(lines(&bare, 2_000)));
        assert!(is_read(lines(&ids, 70)) && !is_read(lines(&ids, 90)));
        assert!(is_read(lines(&named, 100)) && !is_read(lines(&named, 250)));
    }
}
