//! Names of requests, by which their clients, their workers and the log know them.

use std::fmt::Display;
use std::io::{Cursor, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The name of a request, as its client and its worker see it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most of a client's own name.
const LEN_MAX: usize = 128;

/// The most of one of ours.
const OWN_MAX: usize = 48;

/// What the ids of this process begin with: it tells them from those of others, and of its own earlier lives.
static RUN: LazyLock<String> = LazyLock::new(|| format!("wp-{:x}-", rand::random::<u32>()));

/// Requests that were refused before they got a number.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The name that the client gave, if it can be kept: it is shown to operators, on terminals too.
pub(crate) fn given(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_seen = |byte: &u8| matches!(byte, b' '..=b'~');
    let is_kept = |id: &[u8]| !id.is_empty() && id.len() <= LEN_MAX && id.iter().all(is_seen);
    headers.get(REQUEST_ID).filter(|id| is_kept(id.as_bytes())).cloned()
}

/// One of ours for the request of this number.
pub(crate) fn numbered(number: u64) -> HeaderValue {
    named(number)
}

/// One of ours for a request that is refused before it has a number.
pub(crate) fn refused() -> HeaderValue {
    named(format_args!("r{}", REFUSED.fetch_add(1, Ordering::Relaxed)))
}

fn named(name: impl Display) -> HeaderValue {
    let mut text = Cursor::new([0; OWN_MAX]);
    write!(text, "{}{name}", *RUN).expect("there is room for all digits");
    let len = usize::try_from(text.position()).unwrap_or(OWN_MAX);
    HeaderValue::from_bytes(&text.get_ref()[..len]).expect("digits and letters make a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_name_is_kept_unless_it_is_empty_or_too_long() {
        let of = |id: &str| {
            let headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::try_from(id).unwrap())]);
            given(&headers)
        };
        let kept = ["mine".to_owned(), "x".repeat(128)].map(|id| Some(HeaderValue::try_from(id).unwrap()));
        assert_eq!([of("mine"), of(&"x".repeat(128))], kept);
        assert_eq!([of(""), of(&"x".repeat(129)), given(&HeaderMap::new())], [const { None }; 3]);
        assert_eq!([of("\u{9b}31m"), of("a\u{202e}b"), of("a\tb")], [const { None }; 3]);
    }

    #[test]
    fn names_differ_whoever_gives_them() {
        let names = [numbered(1), numbered(2), refused(), refused()];
        let names: std::collections::HashSet<&[u8]> = names.iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| name.starts_with(b"wp-")));
    }
}
