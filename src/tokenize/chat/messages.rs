//! Messages as vLLM hands them to the template.
//!
//! The rules, from vLLM 0.32's chat parser (`_parse_chat_message_content` and `_postprocess_messages`) and from Hugging
//! Face's `apply_chat_template` behind it:
//! - Of a message only `role`, `content`, `name`, `task`, an assistant's `tool_calls` and reasoning, a tool's
//!   `tool_call_id` and a developer's `tools` are handed on, and of those only what is not null.
//! - Content of a template that does not loop over it ([`Format::Text`]) is one string: its text parts but empty ones,
//!   joined by `\n`; null and absent become `""`. For other templates ([`Format::Parts`]) it is a list of
//!   `{"type": "text", "text": …}`, except for tools, whose texts are joined.
//! - `reasoning`, or `reasoning_content` by its old name, appears under `thinking`, `reasoning` and `reasoning_content`.
//! - Tool calls: `arguments` is parsed into an object, `{}` if it is none; known keys come first, in the order of
//!   OpenAI's types; an empty list is dropped.
//! - A developer's message becomes a system message where the template does not know that role, and then all system
//!   messages are merged into one in front.
//! - A line `x-anthropic-billing-header…` in front of a system text is dropped: it differs in each request.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::calls::tool_calls;
use super::memory::heap_bytes;
use super::record::Record;
use super::remembered::{Parsed, Remembered};
use super::traits::Traits;
use super::values;
use crate::openai::Raw;
use crate::openai::scan::members;
use crate::tokenize::Reason;

/// What a template expects of `content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One string.
    Text,
    /// A list of parts.
    Parts,
}

/// One message, with the rules applied.
#[derive(Clone)]
pub(in crate::tokenize) struct Message {
    role: Value,
    content: Value,
    reasoning: Option<Value>,
    rest: Vec<(&'static str, Value)>,
}

/// What a message takes beside its values: a map of keys and values.
const MESSAGE_BYTES: usize = 512;

/// What each value takes that few messages have: its place in the message and in that map, which may have room for twice
/// as many.
const FIELD_BYTES: usize = 3 * size_of::<(&str, Value)>();

const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Keys of content parts that vLLM knows; others are handed on with a text part.
const PART_KEYS: [&str; 20] = [
    "type",
    "text",
    "refusal",
    "thinking",
    "closed",
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "data",
    "name",
    "uuid",
    "detail",
    "tool_reference",
];

/// Keys of a part that has a text and nothing else: that, and its type.
const PLAIN_PART_KEYS: usize = 2;

/// The messages of a chat.
///
/// # Errors
/// [`Reason::Media`] if a part is no text, [`Reason::TemplateError`] if a message has a form that engines refuse.
pub(super) fn normalise(
    raw: &[Raw<'_>],
    template: &Traits,
    remembered: Option<&Remembered<'_>>,
) -> Result<Vec<Arc<Parsed>>, Reason> {
    let read = |(place, raw): (usize, &Raw<'_>)| match remembered {
        Some(remembered) => remembered.read(place, raw.get(), template),
        None => Ok(Arc::new(Message::read(raw.get(), template.format)?.into())),
    };
    let messages: Result<Vec<Arc<Parsed>>, Reason> = raw.iter().enumerate().map(read).collect();
    let messages = messages?;
    if template.knows_developer || !messages.iter().any(|parsed| parsed.message.is("developer")) {
        return Ok(messages);
    }
    let merged = merge_system(messages.iter().map(|parsed| parsed.message.clone()).collect());
    Ok(merged.into_iter().map(|message| Arc::new(message.into())).collect())
}

impl Message {
    pub(super) fn read(json: &str, format: Format) -> Result<Self, Reason> {
        if let Some(message) = Self::read_plain(json, format) {
            return Ok(message);
        }
        let raw: Value = values::read(json)?;
        let role = text(&raw, "role").ok_or(Reason::TemplateError)?;
        let content = content(&raw, &role, format)?;
        let mut message = Self { role, content, reasoning: None, rest: Vec::new() };
        if message.is("assistant") {
            if let Some(calls) = given(&raw, "tool_calls").map(|calls| tool_calls(&calls)).transpose()?.flatten() {
                message.rest.push(("tool_calls", calls));
            }
            message.reasoning = given(&raw, "reasoning").or_else(|| given(&raw, "reasoning_content"));
        } else if message.is("tool") {
            message.keep("tool_call_id", given(&raw, "tool_call_id"));
        }
        message.keep("name", text(&raw, "name"));
        message.keep("task", text(&raw, "task"));
        if message.is("developer") {
            message.keep("tools", given(&raw, "tools"));
        }
        Ok(message)
    }

    /// A message of a role and a text, as nearly all are: read without a value for each of its parts.
    fn read_plain(json: &str, format: Format) -> Option<Self> {
        let (mut role, mut content) = (None, None);
        members(json.as_bytes(), 1, |name, scanner| {
            let field = match name {
                "role" => &mut role,
                "content" => &mut content,
                _ => return None,
            };
            // Of a field that occurs twice the last one counts; that is left to others.
            field.replace(scanner.known_text()?).is_none().then_some(())
        })?;
        let (role, content) = (role?, content?);
        let is_rewritten = match &*role {
            "system" => content.starts_with(BILLING_HEADER),
            "tool" => format == Format::Parts,
            _ => false,
        };
        (!is_rewritten).then(|| Self::plain(&role, &content, format))
    }

    /// Memory that it takes together with what templates see of it, which shares its values.
    pub(super) fn bytes(&self) -> usize {
        let rare = self.rest.iter().map(|(_, value)| value).chain(&self.reasoning);
        let rare: usize = rare.map(|value| FIELD_BYTES + heap_bytes(value)).sum();
        MESSAGE_BYTES + heap_bytes(&self.role) + heap_bytes(&self.content) + rare
    }

    fn keep(&mut self, key: &'static str, value: Option<Value>) {
        self.rest.extend(value.map(|value| (key, value)));
    }

    fn is(&self, role: &str) -> bool {
        self.role() == role
    }

    /// Its text, if that and its role are all that the template reads of it.
    pub(super) fn only_text(&self, template: &Traits) -> Option<Value> {
        if self.reasoning.is_some() || self.rest.iter().any(|(key, _)| template.names(key)) {
            return None;
        }
        if self.content.kind() == ValueKind::String {
            return Some(self.content.clone());
        }
        let mut parts = self.content.try_iter().ok()?;
        let (part, None) = (parts.next()?, parts.next()) else { return None };
        text(&part, "text").filter(|_| part.len() == Some(PLAIN_PART_KEYS))
    }

    /// The same message with `text` for the one of [`only_text`](Self::only_text).
    pub(super) fn with_only_text(&self, text: &str) -> Self {
        let format = if self.content.kind() == ValueKind::String { Format::Text } else { Format::Parts };
        Self { content: Self::plain("", text, format).content, ..self.clone() }
    }

    /// A message of a role and a text.
    pub(super) fn plain(role: &str, text: &str, format: Format) -> Self {
        let text = Value::from(text);
        let content = match format {
            Format::Text => text,
            Format::Parts => Value::from(vec![wrap(&text, text.clone())]),
        };
        Self { role: Value::from(role), content, reasoning: None, rest: Vec::new() }
    }

    /// Who says it.
    pub(super) fn role(&self) -> &str {
        self.role.as_str().unwrap_or_default()
    }

    /// The content's text: the string, or the last part that has one.
    pub(super) fn last_text(&self) -> Option<Value> {
        if self.content.kind() == ValueKind::String {
            return Some(self.content.clone());
        }
        let parts: Vec<Value> = self.content.try_iter().ok()?.collect();
        parts.iter().rev().find_map(|part| text(part, "text"))
    }

    /// Puts `tag` behind the text of [`last_text`](Self::last_text).
    pub(super) fn tag_last_text(&mut self, tag: &str) {
        let tagged = |text: &str| Value::from(format!("{text}{tag}"));
        if let Some(text) = self.content.as_str() {
            self.content = tagged(text);
            return;
        }
        let mut parts: Vec<Value> = self.content.try_iter().into_iter().flatten().collect();
        if let Some(part) = parts.iter_mut().rev().find(|part| text(part, "text").is_some()) {
            let entries = entries(part).into_iter().map(|(key, value)| match (key.as_str(), value.as_str()) {
                (Some("text"), Some(text)) => (key, tagged(text)),
                _ => (key, value),
            });
            *part = Value::from_pairs(entries.collect::<Vec<_>>());
        }
        self.content = Value::from(parts);
    }

    /// The message as the template sees it.
    pub(super) fn into_value(self) -> Value {
        let mut pairs: Vec<(&'static str, Value)> = Vec::with_capacity(self.rest.len() + 5);
        if let Some(reasoning) = &self.reasoning {
            pairs.push(("thinking", reasoning.clone()));
        }
        pairs.extend([("role", self.role), ("content", self.content)]);
        let at = pairs.len() + self.rest.iter().take_while(|(key, _)| *key == "tool_calls").count();
        pairs.extend(self.rest);
        if let Some(reasoning) = self.reasoning {
            pairs.splice(at..at, [("reasoning", reasoning.clone()), ("reasoning_content", reasoning)]);
        }
        Record(pairs).into()
    }
}

/// Makes developers' messages system messages, and one system message in front of all of them.
fn merge_system(mut messages: Vec<Message>) -> Vec<Message> {
    for message in messages.iter_mut().filter(|message| message.is("developer")) {
        message.role = Value::from("system");
        message.rest.retain(|(key, _)| *key != "tools");
    }
    if messages.iter().skip(1).all(|message| !message.is("system")) {
        return messages;
    }
    let (system, mut merged): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.is("system"));
    let texts: Vec<String> = system.iter().map(Message::all_text).filter(|text| !text.is_empty()).collect();
    let content = Value::from(texts.join("\n\n"));
    merged.insert(0, Message { role: Value::from("system"), content, reasoning: None, rest: Vec::new() });
    merged
}

impl Message {
    fn all_text(&self) -> String {
        if let Some(text) = self.content.as_str() {
            return text.to_owned();
        }
        let texts = self.content.try_iter().into_iter().flatten().filter_map(|part| text(&part, "text"));
        join(&texts.collect::<Vec<_>>())
    }
}

fn content(message: &Value, role: &Value, format: Format) -> Result<Value, Reason> {
    let system = role.as_str() == Some("system");
    let parts = match given(message, "content") {
        None => Vec::new(),
        Some(content) if content.kind() == ValueKind::String => {
            let plain = !system || !content.as_str().is_some_and(|text| text.starts_with(BILLING_HEADER));
            if plain && format == Format::Text {
                return Ok(content);
            }
            vec![content]
        }
        Some(content) if content.kind() == ValueKind::Seq => {
            content.try_iter().map_err(|_| Reason::TemplateError)?.collect()
        }
        Some(_) => return Err(Reason::TemplateError),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(text) = part_text(&part)? else { continue };
        let text = match (system, text.as_str()) {
            (true, Some(line)) if line.starts_with(BILLING_HEADER) => {
                match line.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.is_empty()) {
                    Some(rest) => Value::from(rest),
                    None => continue,
                }
            }
            _ => text,
        };
        texts.push((part, text));
    }
    if format == Format::Text {
        texts.retain(|(_, text)| text.as_str() != Some(""));
    }
    if format == Format::Text || role.as_str() == Some("tool") {
        return Ok(Value::from(join(&texts.into_iter().map(|(_, text)| text).collect::<Vec<_>>())));
    }
    Ok(Value::from(texts.into_iter().map(|(part, text)| wrap(&part, text)).collect::<Vec<_>>()))
}

/// The text of one part; `None` if it has none and is skipped.
fn part_text(part: &Value) -> Result<Option<Value>, Reason> {
    if part.kind() == ValueKind::String {
        return Ok(Some(part.clone()));
    }
    if part.kind() != ValueKind::Map {
        return Err(Reason::TemplateError);
    }
    if given(part, "uuid").is_some() {
        return Err(Reason::Media);
    }
    let kind = text(part, "type");
    let (key, skipped_without) = match kind.as_ref().and_then(Value::as_str) {
        Some("text") => ("text", true),
        Some("refusal") => ("refusal", true),
        Some("input_text" | "output_text") => ("text", false),
        Some("thinking") => ("thinking", false),
        _ => return Err(Reason::Media),
    };
    match text(part, key) {
        None if skipped_without => Ok(None),
        found => found.map(Some).ok_or(Reason::TemplateError),
    }
}

/// A text part for templates that loop over content.
fn wrap(part: &Value, text: Value) -> Value {
    let mut pairs = vec![(Value::from("type"), Value::from("text")), (Value::from("text"), text)];
    if part.kind() == ValueKind::Map {
        let unknown = |key: &Value| key.as_str().is_none_or(|key| !PART_KEYS.contains(&key));
        pairs.extend(entries(part).into_iter().filter(|(key, _)| unknown(key)));
    }
    Value::from_pairs(pairs)
}

pub(super) fn entries(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.filter_map(|key| map.get_item(&key).ok().map(|value| (key, value))).collect()
}

/// The value of a key that is there and not null.
pub(super) fn given(map: &Value, key: &str) -> Option<Value> {
    map.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

fn text(map: &Value, key: &str) -> Option<Value> {
    given(map, key).filter(|value| value.kind() == ValueKind::String)
}

fn join(texts: &[Value]) -> String {
    texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::chat::json::tojson;

    /// Of a template that loops over content.
    const PARTS: &str = "{% for message in messages %}{% for part in message.content %}";

    /// The messages as JSON, in the form that a template sees.
    fn shown(messages: &str, template: &str) -> Result<String, Reason> {
        let raw: Vec<Raw<'_>> = serde_json::from_str(messages).unwrap();
        let messages = normalise(&raw, &Traits::of("default", template, |_, _, _| None), None)?;
        let values: Vec<Value> = messages.iter().map(|parsed| parsed.value()).collect();
        let options = minijinja::value::Kwargs::from_iter(Vec::<(String, Value)>::new());
        Ok(tojson(&Value::from(values), options).unwrap())
    }

    fn text(messages: &str) -> Result<String, Reason> {
        shown(messages, "")
    }

    #[test]
    fn content_becomes_one_string() {
        let messages = r#"[{"content":"a","role":"user","unknown":1},{"role":"user","content":null},{"role":"user"},
            {"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"text","text":null},
              {"type":"refusal","refusal":"c"},{"type":"input_text","text":"d"},{"type":"thinking","thinking":"e"}]}]"#;
        let expected = concat!(
            r#"[{"role": "user", "content": "a"}, {"role": "user", "content": ""}, {"role": "user", "content": ""}, "#,
            r#"{"role": "user", "content": "a\nb\nc\nd\ne"}]"#
        );
        assert_eq!(text(messages).unwrap(), expected);
    }

    #[test]
    fn empty_texts_are_parts_but_make_no_lines() {
        let content =
            r#""content":[{"type":"text","text":"a"},"",{"type":"text","text":""},{"type":"text","text":"b"}]"#;
        let shown = |role: &str, template: &str| {
            let value = shown(&format!(r#"[{{"role":"{role}",{content}}}]"#), template).unwrap();
            serde_json::from_str::<serde_json::Value>(&value).unwrap()[0]["content"].clone()
        };
        for role in ["user", "system", "tool"] {
            assert_eq!(shown(role, ""), "a\nb", "{role}");
        }
        assert_eq!(shown("user", PARTS).as_array().map(Vec::len), Some(4));
        assert_eq!(shown("tool", PARTS), "a\n\n\nb");
    }

    #[test]
    fn a_plain_message_is_read_as_any_other() {
        let contents = [
            r#""a\n\u00e9\"b""#,
            r#""""#,
            r#""x-anthropic-billing-header: 1\nc""#,
            "null",
            r#"[{"type":"text","text":"a"}]"#,
        ];
        for role in ["system", "user", "assistant", "tool", "developer", "us\\u0065r"] {
            for content in contents {
                let plain = format!(r#"{{ "role" : "{role}", "content":{content}}}"#);
                // What nobody knows is not handed on, but is no plain message.
                let other = format!(r#"{{"x":1,"role":"{role}","content":{content}}}"#);
                let twice = format!(r#"{{"content":"b","role":"{role}","content":{content}}}"#);
                for template in ["", PARTS] {
                    let [plain, other, twice] =
                        [plain.as_str(), &other, &twice].map(|json| shown(&format!("[{json}]"), template));
                    assert_eq!((&plain, &twice), (&other, &other), "{role} {content}");
                }
                let is_plain = Message::read_plain(&plain, Format::Text).is_some();
                assert_eq!(is_plain, content.starts_with('"') && !(role == "system" && content.contains("x-a")));
                assert!(Message::read_plain(&other, Format::Text).is_none());
            }
        }
    }

    #[test]
    fn templates_that_loop_over_content_get_parts() {
        let messages = r#"[{"role":"user","content":"a"},{"role":"user"},
            {"role":"user","content":[{"text":"b","cache_control":{"x":1},"type":"text"}]},
            {"role":"tool","tool_call_id":"t","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]}]"#;
        let expected = concat!(
            r#"[{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": []}, "#,
            r#"{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"x": 1}}]}, "#,
            r#"{"role": "tool", "content": "c\nd", "tool_call_id": "t"}]"#
        );
        assert_eq!(shown(messages, PARTS).unwrap(), expected);
    }

    #[test]
    fn an_assistants_calls_and_reasoning_are_put_in_order() {
        let messages = r#"[{"role":"assistant","content":null,"reasoning_content":"r","name":null,"tool_calls":[
            {"type":"function","x":1,"id":"1","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}","strict":true}},
            {"id":"2","function":{"name":"g","arguments":"[1]"}},{"function":{"name":"h","arguments":""}}]},
            {"role":"assistant","content":"x","tool_calls":[]},{"role":"user","content":"y","tool_calls":[1]}]"#;
        let expected = concat!(
            r#"[{"thinking": "r", "role": "assistant", "content": "", "tool_calls": ["#,
            r#"{"id": "1", "function": {"arguments": {"b": 1, "a": 2}, "name": "f", "strict": true}, "#,
            r#""type": "function", "x": 1}, {"id": "2", "function": {"arguments": {}, "name": "g"}}, "#,
            r#"{"function": {"arguments": {}, "name": "h"}}], "reasoning": "r", "reasoning_content": "r"}, "#,
            r#"{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]"#
        );
        assert_eq!(text(messages).unwrap(), expected);
    }

    #[test]
    fn developers_become_the_system_where_the_template_does_not_know_them() {
        let messages = r#"[{"role":"system","content":"a"},{"role":"user","content":"b"},
            {"role":"developer","content":"c","tools":[1]}]"#;
        assert_eq!(
            text(messages).unwrap(),
            r#"[{"role": "system", "content": "a\n\nc"}, {"role": "user", "content": "b"}]"#
        );
        assert!(
            shown(messages, "{% if message.role == 'developer' %}")
                .unwrap()
                .ends_with(r#"{"role": "developer", "content": "c", "tools": [1]}]"#)
        );
        assert_eq!(
            text(r#"[{"role":"developer","content":"c"},{"role":"user","content":"b"}]"#).unwrap(),
            r#"[{"role": "system", "content": "c"}, {"role": "user", "content": "b"}]"#
        );
    }

    #[test]
    fn a_billing_header_in_front_of_a_system_text_is_dropped() {
        let messages = r#"[{"role":"system","content":"x-anthropic-billing-header: cch=1;\nYou help."},
            {"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: 2"},
              {"type":"text","text":"b"}]},
            {"role":"user","content":"x-anthropic-billing-header"}]"#;
        assert_eq!(
            text(messages).unwrap(),
            concat!(
                r#"[{"role": "system", "content": "You help."}, {"role": "system", "content": "b"}, "#,
                r#"{"role": "user", "content": "x-anthropic-billing-header"}]"#
            )
        );
    }

    #[test]
    fn media_and_forms_that_engines_refuse_are_told_apart() {
        let content = |part: &str| text(&format!(r#"[{{"role":"user","content":[{part}]}}]"#));
        assert_eq!(content(r#"{"type":"image_url","image_url":{"url":"x"}}"#), Err(Reason::Media));
        assert_eq!(content(r#"{"type":"input_audio","input_audio":{}}"#), Err(Reason::Media));
        assert_eq!(content(r#"{"image_url":"x"}"#), Err(Reason::Media));
        assert_eq!(content("3"), Err(Reason::TemplateError));
        assert_eq!(content(r#"{"type":"input_text"}"#), Err(Reason::TemplateError));
        assert_eq!(text(r#"[{"content":"x"}]"#), Err(Reason::TemplateError));
        assert_eq!(text(r#"[{"role":"user","content":{}}]"#), Err(Reason::TemplateError));
        assert_eq!(text(r#"[{"role":"assistant","tool_calls":[{"type":"custom"}]}]"#), Err(Reason::TemplateError));
        assert_eq!(text(r#"[{"role":"user","content":"\ud800"}]"#), Err(Reason::TemplateError));
    }
}
