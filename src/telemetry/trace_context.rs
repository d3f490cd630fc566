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

/// Where the sender's span and the flags stand.
const SPAN: std::ops::Range<usize> = 36..52;
const FLAGS: std::ops::Range<usize> = 53..55;

/// A valid `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// What the worker is told.
    header: HeaderValue,
    /// Whether the client sent none that is valid.
    begun: bool,
    place: Option<Place>,
}

/// The place that a request's own span has in a trace that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The span's number.
    pub span: u64,
    /// The span that it is part of, in hexadecimal; none where the trace begins here.
    pub parent: Option<String>,
}

impl TraceContext {
    /// The client's, or the beginning of a trace where it sends none that can be followed. Of those that we begin the share
    /// `sample` is marked as sampled, all by default, since an engine that traces would have recorded a request without one,
    /// too; the client's says for itself whether it is. Where the router `takes_part` and the trace is sampled, its own span
    /// stands between those of client and worker. Allocates where it writes one.
    pub fn of(headers: &HeaderMap, takes_part: bool, sample: f64) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        match (given.next(), given.next()) {
            (Some(only), None) if is_valid(only.as_bytes()) => takes_part
                .then(|| Self::join(only, rand::random()))
                .flatten()
                .unwrap_or_else(|| Self { header: only.clone(), begun: false, place: None }),
            // From 0 to just below 1: a share of 0 takes none, and 1 takes all.
            _ => Self::begin((rand::random(), rand::random()), takes_part, rand::random::<f64>() < sample),
        }
    }

    fn begin((trace, span): (u128, u64), takes_part: bool, sampled: bool) -> Self {
        // Zero is no number of a trace, nor of a span.
        let (trace, span) = (trace.max(1), span.max(1));
        let text = format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(sampled));
        let header = HeaderValue::try_from(text).expect("digits make a header");
        Self { header, begun: true, place: (takes_part && sampled).then_some(Place { span, parent: None }) }
    }

    /// A span of ours below that of `given`, which is valid; none where that is not sampled.
    fn join(given: &HeaderValue, span: u64) -> Option<Self> {
        let (text, span) = (given.to_str().ok()?, span.max(1));
        let flags = u8::from_str_radix(&text[FLAGS], 16).ok().filter(|flags| flags & 1 == 1)?;
        let header = HeaderValue::try_from(format!("00-{}-{span:016x}-{flags:02x}", &text[TRACE])).ok()?;
        let place = Place { span, parent: Some(text[SPAN].to_owned()) };
        Some(Self { header, begun: false, place: Some(place) })
    }

    /// The trace's number, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        self.header.to_str().ok().and_then(|text| text.get(TRACE)).unwrap_or_default()
    }

    /// Where the request's own span stands; none where it has none.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Says so in what goes to the worker.
    pub fn tell(&self, headers: &mut HeaderMap) {
        if self.begun || self.place.is_some() {
            headers.insert(TRACEPARENT, self.header.clone());
        }
        if self.begun {
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
    if !is_long || ![0..2, TRACE, SPAN, FLAGS].into_iter().all(hex) || !some(TRACE) || !some(SPAN) {
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
        let context = TraceContext::of(&given, false, 1.0);
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        let before = given.clone();
        context.tell(&mut given);
        assert_eq!(given, before);
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert_eq!(
            TraceContext::of(&headers(&[(TRACEPARENT, later)]), false, 1.0).trace_id(),
            "0af7651916cd43dd8448eb211c80319c"
        );
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
            let context = TraceContext::of(&given, false, 1.0);
            context.tell(&mut given);
            assert_eq!(given.get_all(TRACESTATE).iter().count(), 0, "{value}");
            let told = TraceContext::of(&given, false, 1.0);
            assert!(!told.begun && told.trace_id() == context.trace_id() && context.begun, "{value}");
            assert!(!value.contains(context.trace_id()), "{value}");
        }
        let twice = headers(&[(TRACEPARENT, GIVEN), (TRACEPARENT, GIVEN)]);
        assert!(TraceContext::of(&twice, false, 1.0).begun);
    }

    #[test]
    fn a_trace_that_begins_has_no_number_that_means_nothing() {
        let begun = TraceContext::begin((0, 0), false, true);
        assert_eq!(begun.header, "00-00000000000000000000000000000001-0000000000000001-01");
        assert_eq!(
            TraceContext::begin((0xabc, 0xd), false, false).header,
            "00-00000000000000000000000000000abc-000000000000000d-00"
        );
        assert!(is_valid(begun.header.as_bytes()));
    }

    #[test]
    fn a_share_of_the_traces_that_begin_is_sampled_and_others_say_for_themselves() {
        let flags = |given: &HeaderMap, sample| {
            let mut told = given.clone();
            TraceContext::of(given, true, sample).tell(&mut told);
            told[TRACEPARENT].to_str().unwrap()[FLAGS].to_owned()
        };
        let sampled = headers(&[(TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]);
        let (none, unsampled) = (HeaderMap::new(), headers(&[(TRACEPARENT, GIVEN)]));
        for (sample, begun) in [(0.0, "00"), (1.0, "01")] {
            for _ in 0..100 {
                assert_eq!(flags(&none, sample), begun);
            }
            assert_eq!((flags(&sampled, sample).as_str(), flags(&unsampled, sample).as_str()), ("01", "00"));
        }
        let half = (0..10_000).filter(|_| flags(&none, 0.5) == "01").count();
        // Ten standard deviations to either side.
        assert!((4_500..5_500).contains(&half), "{half}");
    }

    #[test]
    fn who_takes_part_has_a_span_between_client_and_worker_in_what_is_sampled() {
        let sampled = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03");
        let joined = TraceContext::join(&sampled, 0xab).unwrap();
        let parent = Some("b7ad6b7169203331".to_owned());
        assert_eq!(joined.place(), Some(&Place { span: 0xab, parent }));
        let mut headers = headers(&[(TRACEPARENT, GIVEN), (TRACESTATE, "a=1")]);
        joined.tell(&mut headers);
        assert_eq!(headers[TRACEPARENT], "00-0af7651916cd43dd8448eb211c80319c-00000000000000ab-03");
        assert_eq!(headers[TRACESTATE], "a=1");
        assert_eq!(
            TraceContext::join(&HeaderValue::from_static(GIVEN), 1),
            None,
            "its client does not want it recorded"
        );
        assert_eq!(TraceContext::begin((7, 8), true, true).place(), Some(&Place { span: 8, parent: None }));
        assert_eq!(TraceContext::begin((7, 8), true, false).place(), None, "it is not recorded");
        assert_eq!(TraceContext::of(&HeaderMap::new(), false, 1.0).place(), None);
    }
}
