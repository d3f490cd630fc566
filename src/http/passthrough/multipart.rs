//! One short field of a `multipart/form-data` body (RFC 7578), found without copying any of it.

use memchr::memmem;

/// Fields that are looked at: as many as engines' own readers take (Starlette). Forms of OpenAI's endpoints have a dozen.
const FIELDS_MAX: usize = 1000;

/// The longest head of a field that is looked at.
const HEAD_MAX: usize = 4096;

/// The longest value.
const VALUE_MAX: usize = 1024;

/// The longest boundary that there may be (RFC 2046, 5.1.1).
const BOUNDARY_MAX: usize = 70;

/// Why nobody can say what the field is: whoever comes next might read another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    /// It is there twice.
    #[error("`model` is there twice")]
    Twice,
    /// Its value is longer than is read.
    #[error("`model` has more than {VALUE_MAX} bytes")]
    TooLong,
    /// What ends a field is longer than the standard allows.
    #[error("the form's boundary has more than {BOUNDARY_MAX} characters")]
    LongBoundary,
    /// It may stand behind what is looked at.
    #[error("the form has more than {FIELDS_MAX} fields")]
    TooMany,
}

/// The boundary that a `Content-Type` names, if it is one of forms.
pub(super) fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    const KIND: &[u8] = b"multipart/form-data";
    let kind = content_type.get(..KIND.len())?;
    if !kind.eq_ignore_ascii_case(KIND) {
        return None;
    }
    parameter(content_type.get(KIND.len()..)?, b"boundary").filter(|boundary| !boundary.is_empty())
}

/// The value of a field, if it is there, and text. O(body).
///
/// # Errors
/// [`Unclear`].
pub(super) fn field<'a>(body: &'a [u8], boundary: &[u8], name: &str) -> Result<Option<&'a str>, Unclear> {
    if boundary.len() > BOUNDARY_MAX {
        return Err(Unclear::LongBoundary);
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // It begins a line, and the first one may begin the body.
    let first = body.strip_prefix(&delimiter[2..]).or_else(|| behind(body, finder.find(body), delimiter.len()));
    let (mut rest, mut fields, mut found) = (first, 0, None);
    while let Some(here) = rest.filter(|rest| !rest.starts_with(b"--")) {
        let end = finder.find(here);
        if let Some(end) = end
            && let Some(value) = value_of(&here[..end], name)?
            && found.replace(value).is_some()
        {
            return Err(Unclear::Twice);
        }
        fields += 1;
        if fields > FIELDS_MAX {
            return Err(Unclear::TooMany);
        }
        rest = behind(here, end, delimiter.len());
    }
    Ok(found)
}

/// What is behind so many bytes from a place on.
fn behind(bytes: &[u8], at: Option<usize>, len: usize) -> Option<&[u8]> {
    bytes.get(at? + len..)
}

/// The value of a part that begins behind its delimiter, if this is its name and it is no file.
fn value_of<'a>(part: &'a [u8], name: &str) -> Result<Option<&'a str>, Unclear> {
    let Some((head, value)) = parted(part) else { return Ok(None) };
    let disposition = head.split(|byte| *byte == b'\n').find_map(|line| {
        const KEY: &[u8] = b"content-disposition:";
        line.get(..KEY.len()).filter(|key| key.eq_ignore_ascii_case(KEY))?;
        line.get(KEY.len()..)
    });
    let is_meant = disposition.is_some_and(|disposition| {
        parameter(disposition, b"name") == Some(name.as_bytes()) && parameter(disposition, b"filename").is_none()
    });
    match value.len() {
        _ if !is_meant => Ok(None),
        ..=VALUE_MAX => Ok(std::str::from_utf8(value).ok()),
        _ => Err(Unclear::TooLong),
    }
}

/// The head and the body of a part.
fn parted(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let part = part.strip_prefix(b"\r\n")?;
    let end = memmem::find(&part[..part.len().min(HEAD_MAX)], b"\r\n\r\n")?;
    Some((&part[..end], &part[end + 4..]))
}

/// The value of `; key=value` or `; key="value"`.
fn parameter<'a>(header: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut is_quoted = false;
    let pairs = header.split(|byte| {
        is_quoted ^= *byte == b'"';
        *byte == b';' && !is_quoted
    });
    pairs.skip(1).find_map(|pair| {
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

    fn read(parts: &[String]) -> Result<Option<String>, Unclear> {
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
        let long = |len: usize| field(b"", "x".repeat(len).as_bytes(), "model").map(|found| found.is_some());
        assert_eq!((long(70), long(71)), (Ok(false), Err(Unclear::LongBoundary)));
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
    fn a_file_of_that_name_is_none() {
        for file in ["x", "a;b.txt", "; name=language"] {
            assert_eq!(read(&[part(&format!("name=\"model\"; filename=\"{file}\""), "whisper")]), Ok(None), "{file}");
        }
        assert_eq!(read(&[part("filename=\"a;b\"; name=\"model\"", "whisper")]), Ok(None));
    }

    #[test]
    fn what_begins_no_line_is_no_delimiter() {
        let inside = "RIFF--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nforged";
        let file = part("name=file; filename=f", inside);
        assert_eq!(read(std::slice::from_ref(&file)), Ok(None));
        assert_eq!(read(&[file, part("name=model", "whisper")]), Ok(Some("whisper".to_owned())));
        let body = format!("preamble\r\n{}--b--\r\n{}--b--\r\n", part("name=model", "w"), part("name=model", "x"));
        assert_eq!(field(body.as_bytes(), b"b", "model"), Ok(Some("w")), "what is behind the end is none of it");
    }

    #[test]
    fn what_others_may_read_otherwise_is_an_error() {
        assert_eq!(read(&[part("name=\"model\"", &"x".repeat(VALUE_MAX + 1))]), Err(Unclear::TooLong));
        let fields = |count: usize| vec![part("name=language", "de"); count];
        let behind = |count| read(&[fields(count), vec![part("name=model", "w")]].concat());
        assert_eq!(behind(FIELDS_MAX - 1), Ok(Some("w".to_owned())));
        assert_eq!(behind(FIELDS_MAX), Err(Unclear::TooMany));
        assert_eq!(read(&fields(FIELDS_MAX + 1)), Err(Unclear::TooMany));
    }

    #[test]
    fn a_field_that_is_there_twice_is_an_error() {
        assert_eq!(read(&[part("name=model", "a"), part("name=model", "b")]), Err(Unclear::Twice));
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
