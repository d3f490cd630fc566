//! Template values as Python's `json.dumps` writes them, which is what Hugging Face's `tojson` does.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Nesting that is still written; requests nest less.
const DEPTH_MAX: usize = 128;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(usize::try_from(indent)?.min(64)),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "`separators` must have two elements")),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { out: String::new(), indent, item, key, ascii, sorted };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value nests too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} has no form in JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for element in value.try_iter()? {
            self.separate(any, depth + 1);
            any = true;
            self.value(&element, depth + 1)?;
        }
        self.close(any, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.collect::<Vec<_>>();
        if self.sorted {
            keys.sort();
        }
        self.out.push('{');
        for (position, key) in keys.iter().enumerate() {
            self.separate(position > 0, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} is no key in JSON"))),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(!keys.is_empty(), depth, '}');
        Ok(())
    }

    fn separate(&mut self, any: bool, depth: usize) {
        if any {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                char if char < ' ' || (self.ascii && char > '~') => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("writing to a string cannot fail");
                    }
                }
                char => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python prints it; `None` for all other values.
pub(super) fn float_text(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok().filter(|number| number.is_finite())?;
    Some(float(number))
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`e` form has an exponent");
    match exponent.parse::<i32>() {
        Ok(exponent @ (..-4 | 16..)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    fn render(expression: &str) -> Result<String, Error> {
        let mut environment = Environment::new();
        environment.add_filter("tojson", tojson);
        environment.render_str(&format!("{{{{ {expression} }}}}"), ())
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        // Each right side is what `json.dumps(x, ensure_ascii=False)` gives.
        let cases = [
            ("none|tojson", "null"),
            ("[true, false]|tojson", "[true, false]"),
            ("{'b': 1, 'a': [], 'c': {}}|tojson", r#"{"b": 1, "a": [], "c": {}}"#),
            (
                "[1, 1.0, 0.1, 1e22, 1e-7, 123456789012345680.0, 0.0001]|tojson",
                "[1, 1.0, 0.1, 1e+22, 1e-07, 1.2345678901234568e+17, 0.0001]",
            ),
            (r#"'a"\\\n<é>&\''|tojson"#, r#""a\"\\\n<é>&'""#),
            ("{'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true)", r#"{"a": "\u00e9", "b": 1}"#),
            ("[1, [2]]|tojson(indent=2)", "[\n  1,\n  [\n    2\n  ]\n]"),
            ("{'a': {}}|tojson(indent=4)", "{\n    \"a\": {}\n}"),
            ("{'a': [1, 2]}|tojson(separators=(',', ':'))", r#"{"a":[1,2]}"#),
            ("[1]|tojson(indent=none)", "[1]"),
        ];
        for (expression, text) in cases {
            assert_eq!(render(expression).unwrap(), text, "{expression}");
        }
    }

    /// Each was read as a neighbour where floats are read with the faster of two readers.
    #[test]
    fn floats_are_written_as_they_were_read() {
        for number in ["18.599999999999998", "-18.835790710032242", "0.30000000000000004", "1.7976931348623157e+308"] {
            let read: Value = serde_json::from_str(number).unwrap();
            assert_eq!(tojson(&read, Kwargs::from_iter(Vec::<(String, Value)>::new())).unwrap(), number);
        }
    }

    #[test]
    fn what_python_cannot_write_is_an_error() {
        assert!(render("missing|tojson").is_err());
        assert!(render("[1]|tojson(other=1)").is_err());
    }
}
