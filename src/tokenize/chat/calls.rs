//! An assistant's tool calls as vLLM hands them to the template.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::messages::{entries, given};
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
        Some(arguments) => arguments
            .as_str()
            .and_then(|json| serde_json::from_str::<Value>(json).ok())
            .filter(|parsed| parsed.kind() == ValueKind::Map)
            .unwrap_or_else(empty),
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
