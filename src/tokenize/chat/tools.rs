//! Tools as vLLM hands them to the template: through its request types, so with their keys in a fixed order, defaults
//! filled in and unknown keys dropped (vLLM 0.32, `ChatCompletionToolsParam` and `FunctionDefinition`).

use minijinja::Value;
use minijinja::value::ValueKind;

use super::messages::given;
use super::values;
use crate::openai::Raw;
use crate::tokenize::Reason;

/// The variable `tools`.
///
/// # Errors
/// [`Reason::TemplateError`] if engines refuse the list.
pub(super) fn normalise(raw: Raw<'_>) -> Result<Value, Reason> {
    let tools: Vec<Value> = values::read(raw.get())?;
    let tools: Result<Vec<Value>, Reason> = tools.iter().map(tool).collect();
    Ok(Value::from(tools?))
}

fn tool(tool: &Value) -> Result<Value, Reason> {
    let deferred = given(tool, "defer_loading");
    let kind = given(tool, "type");
    let function = given(tool, "function").filter(|function| function.kind() == ValueKind::Map);
    let (Some(function), true) = (function, kind.is_none_or(|kind| kind.as_str() == Some("function"))) else {
        return Err(Reason::TemplateError);
    };
    let name = given(&function, "name").filter(|name| name.kind() == ValueKind::String).ok_or(Reason::TemplateError)?;
    let or_null = |value: Option<Value>| value.unwrap_or(Value::from(()));
    let mut definition = vec![
        ("name", name),
        ("description", or_null(given(&function, "description"))),
        ("parameters", or_null(given(&function, "parameters"))),
    ];
    definition.extend(given(&function, "strict").map(|strict| ("strict", strict)));
    let function_deferred = given(&function, "defer_loading").or_else(|| deferred.clone());
    definition.extend(function_deferred.map(|deferred| ("defer_loading", deferred)));
    let mut pairs = vec![("type", Value::from("function")), ("function", Value::from_pairs(definition))];
    pairs.extend(deferred.map(|deferred| ("defer_loading", deferred)));
    Ok(Value::from_pairs(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::chat::json::tojson;

    fn shown(tools: &str) -> Result<String, Reason> {
        let raw: Raw<'_> = serde_json::from_str(tools).unwrap();
        let options = minijinja::value::Kwargs::from_iter(Vec::<(String, Value)>::new());
        Ok(tojson(&normalise(raw)?, options).unwrap())
    }

    #[test]
    fn tools_have_their_keys_in_order_and_their_defaults() {
        let tools = r#"[{"function":{"parameters":{"z":1,"a":{"type":"object"}},"x":1,"name":"f","strict":true},"y":2},
            {"type":"function","function":{"name":"g","description":"d"}}]"#;
        let expected = concat!(
            r#"[{"type": "function", "function": {"name": "f", "description": null, "#,
            r#""parameters": {"z": 1, "a": {"type": "object"}}, "strict": true}}, "#,
            r#"{"type": "function", "function": {"name": "g", "description": "d", "parameters": null}}]"#
        );
        assert_eq!(shown(tools).unwrap(), expected);
        assert_eq!(shown("[]").unwrap(), "[]");
    }

    #[test]
    fn tools_that_engines_refuse_are_errors() {
        for tools in ["[1]", "[{}]", r#"[{"type":"x","function":{"name":"f"}}]"#, r#"[{"function":{}}]"#] {
            assert_eq!(shown(tools), Err(Reason::TemplateError), "{tools}");
        }
    }
}
