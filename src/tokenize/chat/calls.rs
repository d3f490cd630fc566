//! An assistant's tool calls as vLLM hands them to the template.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::de::IgnoredAny;

use super::messages::{entries, given};
use super::values;
use crate::tokenize::Reason;

/// The calls of one message; `None` for an empty list.
///
/// # Errors
/// [`Reason::TemplateError`] if a call has a form that engines refuse.
pub(super) fn tool_calls(calls: &Value) -> Result<Option<Value>, Reason> {
    if calls.kind() != ValueKind::Seq {
        return Err(Reason::TemplateError);
    }
    let calls: Result<Vec<Value>, Reason> =
        calls.try_iter().map_err(|_| Reason::TemplateError)?.map(|call| tool_call(&call)).collect();
    let calls = calls?;
    Ok(if calls.is_empty() { None } else { Some(Value::from(calls)) })
}

fn tool_call(call: &Value) -> Result<Value, Reason> {
    let kind = given(call, "type");
    let function = given(call, "function").filter(|function| function.kind() == ValueKind::Map);
    let (Some(function), true) = (function, kind.is_none_or(|kind| kind.as_str() == Some("function"))) else {
        return Err(Reason::TemplateError);
    };
    let arguments = match given(&function, "arguments") {
        Some(arguments) if arguments.kind() == ValueKind::Map => arguments,
        Some(arguments) => parsed(arguments.as_str().unwrap_or_default())?,
        None => empty(),
    };
    let function =
        ordered(
            &function,
            &["arguments", "name"],
            |key, value| {
                if key == "arguments" { Some(arguments.clone()) } else { value }
            },
        );
    Ok(ordered(
        call,
        &["id", "function", "type"],
        |key, value| {
            if key == "function" { Some(function.clone()) } else { value }
        },
    ))
}

/// The arguments in a text; none where it has no object.
fn parsed(json: &str) -> Result<Value, Reason> {
    match values::read::<Value>(json) {
        Ok(arguments) if arguments.kind() == ValueKind::Map => Ok(arguments),
        Err(_) if python_reads_object(json) => Err(Reason::TemplateError),
        _ => Ok(empty()),
    }
}

/// Whether it is an object to Python's reader, though with what has no value here: numbers that are none or too large, halves
/// of surrogate pairs, or more levels. What is skipped is not judged for those.
#[cold]
fn python_reads_object(json: &str) -> bool {
    let json = json.replace("-Infinity", "0").replace("Infinity", "0").replace("NaN", "0");
    json.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(&json).is_ok()
}

fn empty() -> Value {
    Value::from_pairs(Vec::<(Value, Value)>::new())
}

/// A map with `first` in front, in that order, as `replace` gives them, and its other entries behind.
fn ordered(map: &Value, first: &[&str], replace: impl Fn(&str, Option<Value>) -> Option<Value>) -> Value {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for key in first {
        let value = map.get_attr(key).ok().filter(|value| !value.is_undefined());
        pairs.extend(replace(key, value).map(|value| (Value::from(*key), value)));
    }
    pairs.extend(entries(map).into_iter().filter(|(key, _)| key.as_str().is_none_or(|key| !first.contains(&key))));
    Value::from_pairs(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_alone_can_read_is_unknown_and_what_nobody_can_is_nothing() {
        for json in [
            r#"{"a":NaN}"#,
            r#" {"a":[-Infinity,Infinity]}"#,
            r#"{"a":1e400}"#,
            r#"{"a":"\ud83d"}"#,
            &format!(r#"{{"a":{}{}}}"#, "[".repeat(200), "]".repeat(200)),
        ] {
            assert_eq!(parsed(json), Err(Reason::TemplateError), "{json}");
        }
        for json in ["", "[NaN]", "NaN", r#"{"a":"#, r#"{"a":nan}"#, "{'a':1}", r#"{"a":"\ux"}"#, "1e400"] {
            assert_eq!(parsed(json).map(|arguments| arguments.len()), Ok(Some(0)), "{json}");
        }
        assert_eq!(parsed(r#"{"a":"NaN"}"#).unwrap().get_attr("a").unwrap().as_str(), Some("NaN"));
    }
}
