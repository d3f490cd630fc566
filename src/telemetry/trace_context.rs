//! Which trace a request belongs to: W3C Trace Context, as the header `traceparent` carries it.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Trace and span of the sender.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What tracing systems say of it besides; worth nothing without the other.
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Bytes of `00-TRACE-SPAN-FLAGS`; later versions may say more behind them.
const LEN: usize = 55;

/// Where the trace's number stands.
const TRACE: std::ops::Range<usize> = 3..35;

/// A valid `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    header: HeaderValue,
    /// Whether the client sent none that is valid.
    made: bool,
}

impl TraceContext {
    /// The client's, or the beginning of a trace where it sends none that can be followed. One that we begin is marked as
    /// sampled, since an engine that traces would have recorded a request without one, too. Allocates where it begins one.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        match (given.next(), given.next()) {
            (Some(only), None) if is_valid(only.as_bytes()) => Self { header: only.clone(), made: false },
            _ => Self::begin(rand::random(), rand::random()),
        }
    }

    fn begin(trace: u128, span: u64) -> Self {
        // Zero is no number of a trace, nor of a span.
        let text = format!("00-{:032x}-{:016x}-01", trace.max(1), span.max(1));
        Self { header: HeaderValue::try_from(text).expect("digits make a header"), made: true }
    }

    /// The trace's number, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        self.header.to_str().ok().and_then(|text| text.get(TRACE)).unwrap_or_default()
    }

    /// Says so in what goes to the worker.
    pub fn tell(&self, headers: &mut HeaderMap) {
        if self.made {
            headers.insert(TRACEPARENT, self.header.clone());
            headers.remove(TRACESTATE);
        }
    }
}

/// Whether a `traceparent` can be followed: of any version but the forbidden one, with numbers that are not zero.
fn is_valid(bytes: &[u8]) -> bool {
    let hex = |range: std::ops::Range<usize>| {
        bytes[range].iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
    };
    let some = |range: std::ops::Range<usize>| bytes[range].iter().any(|byte| *byte != b'0');
    let is_long = bytes.len() >= LEN && [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
    if !is_long || ![0..2, TRACE, 36..52, 53..LEN].into_iter().all(hex) || !some(TRACE) || !some(36..52) {
        return false;
    }
    match &bytes[..2] {
        b"ff" => false,
        b"00" => bytes.len() == LEN,
        _ => bytes.get(LEN).is_none_or(|byte| *byte == b'-') && bytes.is_ascii(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_the_client_sends_is_followed_and_stays_as_it_is() {
        let mut given = headers(&[(TRACEPARENT, GIVEN), (TRACESTATE, "a=1")]);
        let context = TraceContext::of(&given);
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        let before = given.clone();
        context.tell(&mut given);
        assert_eq!(given, before);
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert_eq!(TraceContext::of(&headers(&[(TRACEPARENT, later)])).trace_id(), "0af7651916cd43dd8448eb211c80319c");
    }

    #[test]
    fn where_there_is_none_or_a_wrong_one_a_trace_begins() {
        let wrong = [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for value in wrong {
            let mut given = headers(&[(TRACEPARENT, value), (TRACESTATE, "a=1")]);
            let context = TraceContext::of(&given);
            context.tell(&mut given);
            assert_eq!(given.get_all(TRACESTATE).iter().count(), 0, "{value}");
            let told = TraceContext::of(&given);
            assert!(!told.made && told.trace_id() == context.trace_id() && context.made, "{value}");
            assert!(!value.contains(context.trace_id()), "{value}");
        }
        let twice = headers(&[(TRACEPARENT, GIVEN), (TRACEPARENT, GIVEN)]);
        assert!(TraceContext::of(&twice).made);
    }

    #[test]
    fn a_trace_that_begins_has_no_number_that_means_nothing() {
        let begun = TraceContext::begin(0, 0);
        assert_eq!(begun.header, "00-00000000000000000000000000000001-0000000000000001-01");
        assert_eq!(TraceContext::begin(0xabc, 0xd).header, "00-00000000000000000000000000000abc-000000000000000d-01");
        assert!(is_valid(begun.header.as_bytes()));
    }
}
