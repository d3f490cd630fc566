//! A request's JSON as a template's values.

use memchr::memchr2;
use serde::de::DeserializeOwned;

use crate::tokenize::Reason;

/// Reads what engines read by Python's `json`. O(bytes).
///
/// # Errors
/// [`Reason::TemplateError`] if it is none, or has an integer that is none of 64 bits or minus zero: Python keeps those as they
/// are, and here they would be floats, which templates write otherwise.
pub(super) fn read<T: DeserializeOwned>(json: &str) -> Result<T, Reason> {
    let value = serde_json::from_str(json).map_err(|_| Reason::TemplateError)?;
    if keeps_integers(json) { Ok(value) } else { Err(Reason::TemplateError) }
}

/// Whether all integers of a document keep their values.
fn keeps_integers(json: &str) -> bool {
    let mut rest = json.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = match first {
            b'"' => behind_string(behind),
            b'-' | b'0'..=b'9' => {
                let of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = rest.iter().position(|byte| !of_number(byte)).unwrap_or(rest.len());
                let (number, behind) = rest.split_at(end);
                if !is_kept(number) {
                    return false;
                }
                behind
            }
            _ => behind,
        };
    }
    true
}

/// What follows a string whose opening quote is passed.
fn behind_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        let is_end = rest[at] == b'"';
        rest = rest.get(at + if is_end { 1 } else { 2 }..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

fn is_kept(number: &[u8]) -> bool {
    let is_float = || number.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    let text = || std::str::from_utf8(number).unwrap_or_default();
    match number {
        b"-0" => false,
        // Whatever has so few digits is one of 64 bits.
        _ if number.len() < 19 || is_float() => true,
        [b'-', ..] => text().parse::<i64>().is_ok(),
        _ => text().parse::<u64>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Value;

    use super::*;

    #[test]
    fn integers_that_would_be_floats_here_are_left_to_engines() {
        for json in [
            "-0",
            r#"{"a": [1, -0]}"#,
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"\"": 99999999999999999999}"#,
        ] {
            assert_eq!(read::<Value>(json).err(), Some(Reason::TemplateError), "{json}");
        }
        for json in [
            "0",
            "-1",
            "-0.0",
            "-0e1",
            "18446744073709551615",
            "-9223372036854775808",
            "99999999999999999999.5",
            "1e300",
            r#""-0""#,
            r#"["\\", "99999999999999999999", "\" -0 ", 5]"#,
            r#"{"-0": "\\\""}"#,
        ] {
            assert!(read::<Value>(json).is_ok(), "{json}");
        }
        assert_eq!(read::<Value>("{").err(), Some(Reason::TemplateError));
    }
}
