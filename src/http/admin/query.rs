//! The query of an address: pairs, with what `%` and `+` stand for.

use axum::http::Uri;

/// The pairs of a query, in their order.
pub(super) struct Query<'a>(std::str::Split<'a, char>);

impl<'a> Query<'a> {
    /// Those of this address.
    pub(super) fn of(uri: &'a Uri) -> Self {
        Self(uri.query().unwrap_or_default().split('&'))
    }
}

impl Iterator for Query<'_> {
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.0.by_ref().find(|pair| !pair.is_empty())?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(key), decoded(value)))
    }
}

/// What stands for bytes that are no text is replaced.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (first, code.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_their_order() {
        let uri = Uri::from_static("/x?worker=a%2Fb+c&after=7&&flag&bad=%zz%4&e=%C3%A9%ff");
        let pairs: Vec<_> = Query::of(&uri).collect();
        let expected = [("worker", "a/b c"), ("after", "7"), ("flag", ""), ("bad", "%zz%4"), ("e", "é\u{fffd}")];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(Query::of(&Uri::from_static("/x")).count(), 0);
    }
}
