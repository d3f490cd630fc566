//! The text of a string that may have escapes.

use std::borrow::Cow;

use crate::stride::{STRIDE, Stride, place};

/// The text of the JSON string that `json` begins with, and how long the string is, quotes and all. What JSON forbids inside
/// of strings is not looked for. `None` where the string does not end, or half a surrogate pair stands alone. O(string);
/// what is between two escapes, of which texts have one in every line, is copied at once.
pub(super) fn text(json: &str) -> Option<(Cow<'_, str>, usize)> {
    let inside = json.strip_prefix('"')?;
    let bytes = inside.as_bytes();
    let (mut text, mut from) = (Vec::new(), 0);
    for (number, stride) in bytes.chunks(STRIDE).enumerate() {
        let mut stops = Stride::padded(stride).is_either(b'"', b'\\');
        while stops != 0 {
            let at = number * STRIDE + place(stops);
            stops &= stops - 1;
            // What a backslash escapes may be another one, or a quote.
            if at < from {
                continue;
            }
            if bytes[at] == b'"' {
                if from == 0 {
                    return Some((Cow::Borrowed(inside.get(..at)?), at + 2));
                }
                text.extend_from_slice(&bytes[from..at]);
                return Some((Cow::Owned(String::from_utf8(text).ok()?), at + 2));
            }
            // A character by its number, or two of them: rare, but with clients that write ASCII only.
            let Some(escaped) = bytes.get(at + 1).and_then(|byte| escaped(*byte)) else { return by_serde(json) };
            if from == 0 {
                // The last member of a message is its text.
                text.reserve(inside.len());
            }
            text.extend_from_slice(&bytes[from..at]);
            text.push(escaped);
            from = at + 2;
        }
    }
    None
}

/// What a backslash makes of the byte behind it, if that is one byte.
fn escaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        b'"' | b'\\' | b'/' => byte,
        _ => return None,
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
                    "\\ud83d", "\\u0000", "n", "u00e9", "sixty-one bytes, so that what follows lies across two strides",
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
