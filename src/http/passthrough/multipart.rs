//! One short field of a `multipart/form-data` body (RFC 7578), found without copying any of it.

use memchr::memmem;

/// Fields that are looked at; forms of OpenAI's endpoints have a dozen.
const FIELDS_MAX: usize = 64;

/// The longest head of a field that is looked at.
const HEAD_MAX: usize = 4096;

/// The longest value.
const VALUE_MAX: usize = 1024;

/// The longest boundary that there may be (RFC 2046, 5.1.1).
const BOUNDARY_MAX: usize = 70;

/// The field is there twice: whoever comes next might read the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Twice;

/// The boundary that a `Content-Type` names, if it is one of forms.
pub(super) fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    const KIND: &[u8] = b"multipart/form-data";
    let kind = content_type.get(..KIND.len())?;
    if !kind.eq_ignore_ascii_case(KIND) {
        return None;
    }
    let value = parameter(content_type.get(KIND.len()..)?, b"boundary")?;
    (1..=BOUNDARY_MAX).contains(&value.len()).then_some(value)
}

/// The value of a field, if it is there and short, and text. O(body).
///
/// # Errors
/// [`Twice`].
pub(super) fn field<'a>(body: &'a [u8], boundary: &[u8], name: &str) -> Result<Option<&'a str>, Twice> {
    let delimiter = [b"--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    let mut found = None;
    let mut rest = match finder.find(body) {
        Some(at) => &body[at + delimiter.len()..],
        None => return Ok(None),
    };
    for _ in 0..FIELDS_MAX {
        let Some(end) = finder.find(rest) else { break };
        let (part, next) = (&rest[..end], &rest[end + delimiter.len()..]);
        if let Some(value) = value_of(part, name)
            && found.replace(value).is_some()
        {
            return Err(Twice);
        }
        rest = next;
    }
    Ok(found)
}

/// The value of a part that begins behind its delimiter, if this is its name and it is no file.
fn value_of<'a>(part: &'a [u8], name: &str) -> Option<&'a str> {
    let part = part.strip_prefix(b"\r\n")?;
    let head_end = memmem::find(&part[..part.len().min(HEAD_MAX)], b"\r\n\r\n")?;
    let (head, value) = (&part[..head_end], part[head_end + 4..].strip_suffix(b"\r\n")?);
    let disposition = head.split(|byte| *byte == b'\n').find_map(|line| {
        const KEY: &[u8] = b"content-disposition:";
        line.get(..KEY.len()).filter(|key| key.eq_ignore_ascii_case(KEY))?;
        line.get(KEY.len()..)
    })?;
    let is_meant =
        parameter(disposition, b"name") == Some(name.as_bytes()) && parameter(disposition, b"filename").is_none();
    if !is_meant || value.len() > VALUE_MAX {
        return None;
    }
    std::str::from_utf8(value).ok()
}

/// The value of `; key=value` or `; key="value"`.
fn parameter<'a>(header: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    header.split(|byte| *byte == b';').skip(1).find_map(|pair| {
        let pair = pair.trim_ascii();
        let split = memchr::memchr(b'=', pair)?;
        let (name, value) = (pair[..split].trim_ascii_end(), pair[split + 1..].trim_ascii_start());
        let value = value.strip_prefix(b"\"").map_or(Some(value), |value| value.strip_suffix(b"\""))?;
        name.eq_ignore_ascii_case(key).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(disposition: &str, value: &str) -> String {
        format!("--b\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; {disposition}\r\n\r\n{value}\r\n")
    }

    fn read(parts: &[String]) -> Result<Option<String>, Twice> {
        let body = parts.concat() + "--b--\r\n";
        Ok(field(body.as_bytes(), b"b", "model")?.map(str::to_owned))
    }

    #[test]
    fn a_boundary_may_be_quoted() {
        assert_eq!(boundary(b"multipart/form-data; boundary=abc"), Some(&b"abc"[..]));
        assert_eq!(boundary(b"Multipart/Form-Data; charset=x;Boundary=\"a b\""), Some(&b"a b"[..]));
        for other in ["multipart/form-data", "multipart/mixed; boundary=a", "", "multipart/form-data; boundary="] {
            assert_eq!(boundary(other.as_bytes()), None, "{other}");
        }
        assert_eq!(boundary(format!("multipart/form-data; boundary={}", "x".repeat(71)).as_bytes()), None);
    }

    #[test]
    fn the_field_is_found_between_others() {
        let file = part("name=\"file\"; filename=\"model\"", "RIFF\r\nname=\"model\"\r\n\r\n");
        let parts = [file, part("name=\"model\"", "whisper"), part("name=language", "de")];
        assert_eq!(read(&parts), Ok(Some("whisper".to_owned())));
        assert_eq!(read(&[part("name=model", "")]), Ok(Some(String::new())));
        assert_eq!(read(&[part("name=\"language\"", "de")]), Ok(None));
    }

    #[test]
    fn a_file_of_that_name_and_a_long_value_are_none() {
        assert_eq!(read(&[part("name=\"model\"; filename=\"x\"", "whisper")]), Ok(None));
        assert_eq!(read(&[part("name=\"model\"", &"x".repeat(VALUE_MAX + 1))]), Ok(None));
    }

    #[test]
    fn a_field_that_is_there_twice_is_an_error() {
        assert_eq!(read(&[part("name=model", "a"), part("name=model", "b")]), Err(Twice));
    }

    #[test]
    fn broken_forms_neither_panic_nor_tell() {
        for body in [
            "",
            "--b",
            "--b\r\n",
            "--b--",
            "--b\r\n\r\n\r\n--b",
            "--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b",
            "b--b--b--b",
        ] {
            assert_eq!(field(body.as_bytes(), b"b", "model"), Ok(None), "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(body in "[-b\r\n:;=\"a-n ]{0,200}") {
            let _ = field(body.as_bytes(), b"b", "model");
            let _ = boundary(body.as_bytes());
        }
    }
}
