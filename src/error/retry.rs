//! When to try again: how clients are told, and what workers say.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// What a client is told to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: statuses speak for themselves.
    Unsaid,
    /// Not to try again.
    Never,
    /// To try again after this time.
    After(Duration),
}

impl Retry {
    /// Says so in the headers that clients know: `Retry-After`, in whole seconds, is the standard's; OpenAI's clients obey
    /// `retry-after-ms` and `x-should-retry`.
    pub fn tell(self, headers: &mut HeaderMap) {
        match self {
            Retry::Unsaid => {}
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::After(time) => {
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1_000).max(1)));
                headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
            }
        }
    }
}

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Whether OpenAI's clients send a request again.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The longest that a client is told to wait because a worker says so: it may be sent to another one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// When a worker says to come back: `retry-after-ms`, or `Retry-After` in seconds or as a date that is to come.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &HeaderName| text(name)?.parse::<f64>().ok().filter(|number| number.is_finite());
    let millis = number(&RETRY_AFTER_MS).map(|millis| millis / 1_000.0);
    let after = match millis.or_else(|| number(&header::RETRY_AFTER)) {
        Some(seconds) => Duration::try_from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64())).ok()?,
        None => httpdate::parse_http_date(text(&header::RETRY_AFTER)?).ok()?.duration_since(now).ok()?,
    };
    Some(after.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_said_of_when_to_come_back_is_read() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
            retry_after(&pairs.collect(), now).map(|time| time.as_millis())
        };
        // The three forms of a date (RFC 9110, 5.6.7).
        for date in ["Sun, 06 Nov 1994 08:49:40 GMT", "Sunday, 06-Nov-94 08:49:40 GMT", "Sun Nov  6 08:49:40 1994"] {
            assert_eq!(read(&[("retry-after", date)]), Some(3_000), "{date}");
        }
        for long in ["86400", "1e300", "Mon, 06 Nov 2034 08:49:37 GMT"] {
            assert_eq!(read(&[("retry-after", long)]), Some(300_000), "{long}");
        }
        assert_eq!(read(&[("retry-after", "2")]), Some(2_000));
        assert_eq!(read(&[("retry-after", "2"), ("retry-after-ms", "150")]), Some(150));
        for odd in ["", "-1", "soon", "nan", "inf", "Fri, 31 Dec 1993 23:59:59 GMT"] {
            assert_eq!(read(&[("retry-after", odd)]), None, "{odd}");
        }
        assert_eq!(read(&[]), None);
    }
}
