//! The header fields of a head, as `httparse` finds them and as HTTP/1.1 writes them (RFC 9112, 5).

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

/// A field of the head that `said` begins with, its value a part of `copy`, which is a copy of `said`; none if it is none that
/// may be handed on.
pub(crate) fn copied(copy: &Bytes, said: &[u8], (name, value): (&str, &[u8])) -> Option<(HeaderName, HeaderValue)> {
    let from = value.as_ptr().addr().saturating_sub(said.as_ptr().addr()).min(copy.len());
    let value = copy.slice(from..copy.len().min(from + value.len()));
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_maybe_shared(value).ok()?))
}

/// Writes a field.
pub(crate) fn line(head: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// The elements of a field that is a list.
pub(crate) fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// A number of digits alone.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_digits_and_nothing_else() {
        for (digits, expected) in [("12", Some(12)), ("012", Some(12)), ("0", Some(0))] {
            assert_eq!(number(digits.as_bytes()), expected, "{digits:?}");
        }
        for none in ["", "+1", "-1", "0x1", "1 2", " 1", "99999999999999999999"] {
            assert_eq!(number(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn a_value_is_a_part_of_the_copy() {
        let said = b"x: 1, 2 ,3\r\n";
        let copy = Bytes::copy_from_slice(said);
        let (name, value) = copied(&copy, said, ("x", &said[3..10])).unwrap();
        assert_eq!((name.as_str(), tokens(&value).collect::<Vec<_>>()), ("x", vec![&b"1"[..], b"2", b"3"]));
        assert_eq!(value.as_bytes().as_ptr(), copy[3..].as_ptr());
        assert!(copied(&copy, said, ("x y", b"1")).is_none() && copied(&copy, said, ("x", &said[3..12])).is_none());
    }
}
