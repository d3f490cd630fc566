//! Values that are not plain ones and that engines take all the same: pydantic's lax mode. Few requests come here.

use serde_json::Value;

/// The words for a boolean, in any case.
const TRUE: [&str; 6] = ["true", "1", "t", "y", "yes", "on"];
const FALSE: [&str; 6] = ["false", "0", "f", "n", "no", "off"];

/// The boolean that a number or a word stands for.
#[cold]
pub(super) fn flag(json: &str) -> Option<bool> {
    let is_among = |words: [&str; 6], said: &str| words.iter().any(|word| word.eq_ignore_ascii_case(said));
    match serde_json::from_str(json).ok()? {
        Value::Bool(flag) => Some(flag),
        Value::Number(number) => [false, true].into_iter().find(|flag| number.as_f64() == Some(f64::from(*flag))),
        Value::String(word) if is_among(TRUE, &word) => Some(true),
        Value::String(word) if is_among(FALSE, &word) => Some(false),
        _ => None,
    }
}

/// The integer that a number without a fraction, a text of digits or a boolean stands for. Beyond 64 bits the last one counts.
#[cold]
pub(super) fn integer(json: &str) -> Option<i64> {
    match serde_json::from_str(json).ok()? {
        Value::Bool(flag) => Some(i64::from(flag)),
        Value::Number(number) => whole(number.as_f64()?),
        Value::String(text) => decimal(text.trim()),
        _ => None,
    }
}

/// The integer that a number without a fraction is.
#[cold]
pub(super) fn whole(number: f64) -> Option<i64> {
    (number.trunc() == number).then(|| saturating(&format!("{number:.0}")))
}

/// Python's integers, with zeros behind a point.
fn decimal(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (number, zeros) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0');
    let sign = if text.starts_with('-') { "-" } else { "" };
    (number.split('_').all(is_digits) && is_whole).then(|| saturating(&format!("{sign}{}", number.replace('_', ""))))
}

fn saturating(number: &str) -> i64 {
    number.parse().unwrap_or(if number.starts_with('-') { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_for_yes_and_no_are_booleans() {
        for json in ["true", "1", "1.0", r#""true""#, r#""TRUE""#, r#""1""#, r#""t""#, r#""Y""#, r#""yes""#, r#""On""#]
        {
            assert_eq!(flag(json), Some(true), "{json}");
        }
        for json in ["false", "0", "-0.0", r#""False""#, r#""0""#, r#""f""#, r#""n""#, r#""NO""#, r#""off""#] {
            assert_eq!(flag(json), Some(false), "{json}");
        }
        for json in ["2", "0.5", "-1", r#""""#, r#"" true""#, r#""ja""#, "[]", "{}", "[true]"] {
            assert_eq!(flag(json), None, "{json}");
        }
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        for (json, expected) in [
            ("16.0", 16),
            ("1.6e1", 16),
            ("-2.0", -2),
            ("1e30", i64::MAX),
            ("-99999999999999999999", i64::MIN),
            ("true", 1),
            (r#""16""#, 16),
            (r#"" +16 ""#, 16),
            (r#""-016.000""#, -16),
            (r#""1_000""#, 1000),
            (r#""\u0031""#, 1),
            (r#""99999999999999999999""#, i64::MAX),
        ] {
            assert_eq!(integer(json), Some(expected), "{json}");
        }
        for json in
            ["1.5", "1e999", r#""""#, r#""1.5""#, r#""1e1""#, r#""_1""#, r#""1__0""#, r#""- 1""#, r#""--1""#, "[]"]
        {
            assert_eq!(integer(json), None, "{json}");
        }
        assert_eq!([r#""+-1""#, r#""x""#, r#""1.""#, "{}"].map(integer), [None; 4]);
    }
}
