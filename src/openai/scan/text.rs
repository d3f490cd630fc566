//! The text of a string that may have escapes.

use std::borrow::Cow;

use crate::stride::{STRIDE, Stride};

/// The text of the JSON string that `json` begins with, and how long the string is, quotes and all. What JSON forbids inside
/// of strings is not looked for. `None` where the string does not end, or half a surrogate pair stands alone. O(string);
/// what is between two escapes, of which texts have one in every line, is copied at once.
pub(super) fn text(json: &str) -> Option<(Cow<'_, str>, usize)> {
    let inside = json.strip_prefix('"')?;
    let (mut text, mut from, mut behind) = (Vec::new(), 0, 0);
    for (number, stride) in inside.as_bytes().chunks(STRIDE).enumerate() {
        let mut stops = Stride::padded(stride).is_either(b'"', b'\\');
        while stops != 0 {
            let at = number * STRIDE + usize::try_from(stops.trailing_zeros()).ok()?;
            stops &= stops - 1;
            // Of two backslashes the second is what the first one escapes, and so may quotes be.
            if at < behind {
                continue;
            }
            let before = inside.as_bytes().get(from..at)?;
            let Some(escaped) = escaped(&inside.as_bytes()[at..]) else {
                if from == 0 {
                    return Some((Cow::Borrowed(inside.get(..at)?), at + 2));
                }
                text.extend_from_slice(before);
                return Some((Cow::Owned(String::from_utf8(text).ok()?), at + 2));
            };
            if from == 0 {
                // The last member of a message is its text.
                text.reserve(inside.len());
            }
            text.extend_from_slice(before);
            match escaped {
                Escaped::Plain(byte) => text.push(byte),
                // A character by its number, or two of them: rare, but with clients that write ASCII only.
                Escaped::Other => return by_serde(json),
            }
            (from, behind) = (at + 2, at + 2);
        }
    }
    None
}

/// What a backslash and the character behind it stand for.
enum Escaped {
    Plain(u8),
    Other,
}

/// `None` at a quote.
fn escaped(rest: &[u8]) -> Option<Escaped> {
    let (b'\\', behind) = rest.split_first()? else { return None };
    Some(match behind.first() {
        Some(b'n') => Escaped::Plain(b'\n'),
        Some(b't') => Escaped::Plain(b'\t'),
        Some(b'r') => Escaped::Plain(b'\r'),
        Some(b'b') => Escaped::Plain(8),
        Some(b'f') => Escaped::Plain(12),
        Some(plain @ (b'"' | b'\\' | b'/')) => Escaped::Plain(*plain),
        _ => Escaped::Other,
    })
}

fn by_serde(json: &str) -> Option<(Cow<'_, str>, usize)> {
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<String>();
    let text = values.next()?.ok()?;
    Some((Cow::Owned(text), values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    #[test]
    fn a_text_without_escapes_is_not_copied() {
        assert!(matches!(text("\"a\\\\é\"b"), Some((Cow::Owned(_), 7))));
        assert!(matches!(text("\"aé\"b\""), Some((Cow::Borrowed("aé"), 5))));
        for json in ["", "a", "\"", "\"a", "\"a\\\"", "\"a\\", "\"\\ud800\""] {
            assert_eq!(text(json), None, "{json}");
        }
    }

    proptest! {
        #[test]
        fn texts_are_what_serde_makes_of_them(
            pieces in prop::collection::vec(
                select(vec![
                    "a", "é", "字", "\\n", "\\t", "\\r", "\\b", "\\f", "\\\"", "\\\\", "\\/", "\\u00e9", "\\ud83d\\ude00",
                    "\\ud83d", "\\u0000", "n", "u00e9",
                ]),
                0..12,
            ),
        ) {
            let quoted = format!("\"{}\"", pieces.concat());
            let expected = serde_json::from_str(&quoted).ok().map(|text: String| (text.into(), quoted.len()));
            let json = format!("{quoted} , \"");
            prop_assert_eq!(text(&json), expected);
        }
    }
}
