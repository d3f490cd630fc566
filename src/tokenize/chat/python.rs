//! White space, ends of lines, entities and what is iterable, as Python and Jinja know them. Rust's white space lacks the
//! four separators of ASCII, and its lines end nowhere but at `\n`.

use minijinja::value::{Kwargs, StringInput, ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// Whether Python's `str.isspace` holds for a character.
fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\x1c'..='\x1f').contains(&char)
}

/// Whether Python's `str.splitlines` ends a line with a character.
fn ends_line(char: char) -> bool {
    matches!(char, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Python's `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.rstrip()`.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Jinja's filter `trim`.
pub(super) fn trim(text: StringInput<'_>, chars: Option<String>) -> Value {
    let trimmed = match chars {
        Some(chars) => text.as_str().trim_matches(|char| chars.contains(char)).to_owned(),
        None => strip(text.as_str()).to_owned(),
    };
    text.preserve_safety(trimmed)
}

/// Jinja's filter `escape`, with the entities of markupsafe.
pub(super) fn escape(value: Value) -> Value {
    if value.is_safe() {
        return value;
    }
    let text = value.to_string();
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            plain => escaped.push(plain),
        }
    }
    Value::from_safe_string(escaped)
}

/// Jinja's test `iterable`: whether Python's `iter` takes it. None is not, though it may be looped over here.
pub(super) fn is_iterable(value: &Value) -> bool {
    value.is_undefined() || !value.is_none() && value.try_iter().is_ok()
}

/// Jinja's test `sequence`: whether it has a length and items, as texts and maps have, too.
pub(super) fn is_sequence(value: &Value) -> bool {
    value.is_undefined() || matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// Methods of Python's types.
///
/// # Errors
/// When there is no such method, or its arguments do not fit.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = value.as_str().map(|text| method_of_text(text, method, args));
    match own {
        Some(Ok(Some(done))) => Ok(done),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Those of texts that look for white space; none for all others.
fn method_of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let is_plain = args.iter().all(|arg| arg.is_none());
    Ok(match method {
        "strip" if is_plain => Some(strip(text).into()),
        "lstrip" if is_plain => Some(text.trim_start_matches(is_space).into()),
        "rstrip" if is_plain => Some(strip_end(text).into()),
        "isspace" if is_plain => Some((!text.is_empty() && text.chars().all(is_space)).into()),
        "split" => split(text, args)?,
        "splitlines" => Some(lines(text, args)?),
        _ => None,
    })
}

/// `str.split` at white space; none where it is to split at something else.
fn split(text: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    if separator.is_some_and(|separator| !separator.is_none()) || kwargs.args().next().is_some() {
        return Ok(None);
    }
    let mut most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let (mut words, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while let Some((word, behind)) = rest.split_once(is_space).filter(|_| most > 0) {
        words.push(Value::from(word));
        rest = behind.trim_start_matches(is_space);
        most -= 1;
    }
    if !rest.is_empty() {
        words.push(rest.into());
    }
    Ok(Some(words.into()))
}

/// `str.splitlines`.
fn lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keeps,): (Option<bool>,) = from_args(args)?;
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends_line) {
        let wide = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        let end = if keeps == Some(true) { at + wide } else { at };
        lines.push(Value::from(&rest[..end]));
        rest = &rest[at + wide..];
    }
    if !rest.is_empty() {
        lines.push(rest.into());
    }
    Ok(lines.into())
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;

    fn said(expression: &str, text: &str) -> String {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(method);
        environment.add_filter("trim", trim);
        environment.compile_expression(expression).unwrap().eval(context!(t => text)).unwrap().to_string()
    }

    /// What CPython 3.12 makes of them.
    #[test]
    fn white_space_is_python_s() {
        let text = "\x1f\x1c\u{85} a\x1db\u{2003}c\x1e ";
        for (expression, is) in [
            ("t|trim", "a\x1db\u{2003}c"),
            ("t.strip()", "a\x1db\u{2003}c"),
            ("t.lstrip()", "a\x1db\u{2003}c\x1e "),
            ("t.rstrip(none)", "\x1f\x1c\u{85} a\x1db\u{2003}c"),
            ("t.split()|join('|')", "a|b|c"),
            ("t.split(none, 1)|join('|')", "a|b\u{2003}c\x1e "),
            ("t.split('b')|join('|')", "\x1f\x1c\u{85} a\x1d|\u{2003}c\x1e "),
            ("t[:2].isspace()", "True"),
            ("t.strip('\x1f')", "\x1c\u{85} a\x1db\u{2003}c\x1e "),
            ("'xax'|trim('x')", "a"),
            ("'\x1f'.split()|length", "0"),
        ] {
            assert_eq!(said(expression, text), is, "{expression}");
        }
    }

    /// What Jinja 3.1 and markupsafe 3 make of them.
    #[test]
    fn entities_and_what_is_iterable_are_python_s() {
        let mut environment = Environment::new();
        environment.add_filter("escape", escape);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        let said = |expression: &str| {
            environment.compile_expression(expression).unwrap().eval(context!(t => "<a & 'b\">")).unwrap().to_string()
        };
        assert_eq!(said("t|escape"), "&lt;a &amp; &#39;b&#34;&gt;");
        assert_eq!(said("t|escape|escape"), said("t|escape"));
        let iterable = ["'a'", "''", "[]", "{}", "missing", "none", "true", "1", "1.5"];
        let told = iterable.map(|value| said(&format!("{value} is iterable")));
        assert_eq!(told, ["True", "True", "True", "True", "True", "False", "False", "False", "False"]);
        let told = iterable.map(|value| said(&format!("{value} is sequence")));
        assert_eq!(told, ["True", "True", "True", "True", "True", "False", "False", "False", "False"]);
    }

    #[test]
    fn lines_end_where_python_s_do() {
        let text = "a\r\nb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\u{85}i\u{2028}j\u{2029}k\x1fl\n\nm\n";
        assert_eq!(said("t.splitlines()|join('/')", text), "a/b/c/d/e/f/g/h/i/j/k\x1fl//m");
        assert_eq!(said("t.splitlines(true)|join", text), text);
        assert_eq!(said("t.splitlines(true)|length", text), "13");
        assert_eq!(said("t.splitlines()|length", ""), "0");
    }
}
