//! Chat templates: Jinja as Hugging Face renders it, messages as vLLM prepares them (its `chat_utils`).

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value as Json};

use super::Reason;
use crate::openai::ChatInput;

/// The name under which an environment keeps its only template.
const NAME: &str = "chat";

/// How deep a template may recurse and how many steps it may take: templates are configured, but messages are not.
const FUEL: u64 = 50_000_000;

/// A compiled template with its model's special tokens.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    parts_as_list: bool,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// In words, with the template's line.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_syntax(syntax()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |_: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "the text depends on the engine's clock"))
        });
        environment.add_filter("tojson", to_json);
        let added = environment.add_template_owned(NAME, source.to_owned());
        added.map_err(|error| format!("chat template: {error}"))?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), parts_as_list: takes_parts(source) })
    }

    /// The text of a conversation. O(conversation).
    ///
    /// # Errors
    /// The reason why the engine's text cannot be known.
    pub fn render(&self, chat: &ChatInput<'_>) -> Result<String, Reason> {
        if chat.add_generation_prompt && chat.continue_final_message {
            return Err(Reason::TemplateError);
        }
        let parse = |json: &str| serde_json::from_str::<Json>(json).map_err(|_| Reason::TemplateError);
        let messages = self.messages(parse(chat.messages.get())?)?;
        let last = messages.last().and_then(|message| message["content"].as_str()).map(str::to_owned);
        let mut variables = Map::new();
        variables.insert("bos_token".to_owned(), self.bos.as_str().into());
        variables.insert("eos_token".to_owned(), self.eos.as_str().into());
        variables.insert("add_generation_prompt".to_owned(), chat.add_generation_prompt.into());
        variables.insert("messages".to_owned(), messages.into());
        let tools = chat.tools.map(|tools| parse(tools.get())).transpose()?;
        variables.insert("tools".to_owned(), tools.map_or(Json::Null, prepare_tools));
        let documents = chat.documents.map(|documents| parse(documents.get())).transpose()?;
        variables.insert("documents".to_owned(), documents.unwrap_or(Json::Null));
        if let Some(more) = chat.chat_template_kwargs {
            let Json::Object(more) = parse(more.get())? else { return Err(Reason::TemplateError) };
            variables.extend(more);
        }
        let template = self.environment.get_template(NAME).map_err(|_| Reason::Template)?;
        let text = template.render(minijinja::value::Serde(&variables)).map_err(|_| Reason::TemplateError)?;
        if chat.continue_final_message { cut_after(text, last.as_deref()) } else { Ok(text) }
    }

    fn messages(&self, messages: Json) -> Result<Vec<Json>, Reason> {
        let Json::Array(messages) = messages else { return Err(Reason::TemplateError) };
        messages.into_iter().map(|message| self.message(message)).collect()
    }

    /// Keeps of a message what vLLM hands to the template.
    fn message(&self, message: Json) -> Result<Json, Reason> {
        let Json::Object(mut given) = message else { return Err(Reason::TemplateError) };
        let role = given.get("role").and_then(Json::as_str).ok_or(Reason::TemplateError)?.to_owned();
        let mut message = Map::new();
        message.insert("role".to_owned(), role.as_str().into());
        message.insert("content".to_owned(), self.content(given.remove("content").unwrap_or(Json::Null))?);
        if role == "assistant" {
            if let Some(Json::Array(calls)) = given.remove("tool_calls") {
                let calls: Result<Vec<_>, _> = calls.into_iter().map(prepare_call).collect();
                message.insert("tool_calls".to_owned(), calls?.into());
            }
            let reasoning = given.remove("reasoning").filter(|value| !value.is_null());
            if let Some(reasoning) = reasoning.or_else(|| given.remove("reasoning_content")) {
                message.insert("reasoning".to_owned(), reasoning.clone());
                message.insert("reasoning_content".to_owned(), reasoning);
            }
        }
        if role == "tool"
            && let Some(id) = given.remove("tool_call_id")
        {
            message.insert("tool_call_id".to_owned(), id);
        }
        if let Some(name) = given.remove("name").filter(Json::is_string) {
            message.insert("name".to_owned(), name);
        }
        Ok(message.into())
    }

    /// A text stays; parts become one text, line by line, unless the template goes through them itself.
    fn content(&self, content: Json) -> Result<Json, Reason> {
        let parts = match content {
            Json::Null => Vec::new(),
            Json::String(text) if self.parts_as_list => vec![part(&text)],
            Json::String(text) => return Ok(text.into()),
            Json::Array(parts) => {
                parts.into_iter().map(text_of).collect::<Result<Vec<_>, _>>()?.iter().map(|text| part(text)).collect()
            }
            _ => return Err(Reason::TemplateError),
        };
        if self.parts_as_list {
            return Ok(parts.into());
        }
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        Ok(texts.join("\n").into())
    }
}

fn part(text: &str) -> Json {
    serde_json::json!({"type": "text", "text": text})
}

/// The text of a part; other parts are media.
fn text_of(part: Json) -> Result<String, Reason> {
    match part {
        Json::String(text) => Ok(text),
        Json::Object(mut part) => {
            let text = part.remove("text");
            match (part.get("type").and_then(Json::as_str), text) {
                (Some("text" | "input_text" | "output_text" | "refusal") | None, Some(Json::String(text))) => Ok(text),
                _ => Err(Reason::Media),
            }
        }
        _ => Err(Reason::TemplateError),
    }
}

/// Templates read arguments as an object; the API carries them as JSON in a text.
fn prepare_call(mut call: Json) -> Result<Json, Reason> {
    if let Some(arguments) = call.pointer_mut("/function/arguments") {
        *arguments = match arguments.take() {
            Json::String(text) if text.is_empty() => Json::Object(Map::new()),
            Json::String(text) => serde_json::from_str(&text).map_err(|_| Reason::TemplateError)?,
            Json::Null => Json::Object(Map::new()),
            other => other,
        };
    }
    Ok(call)
}

/// Puts the fields of a tool in the order in which vLLM's model of it has them, with its nulls.
fn prepare_tools(tools: Json) -> Json {
    let Json::Array(tools) = tools else { return tools };
    if tools.is_empty() {
        return Json::Null;
    }
    let prepare = |tool: Json| {
        let Json::Object(mut given) = tool else { return tool };
        let mut tool = Map::new();
        tool.insert("type".to_owned(), given.shift_remove("type").unwrap_or_else(|| "function".into()));
        if let Some(Json::Object(mut function)) = given.shift_remove("function") {
            let mut ordered = Map::new();
            for name in ["name", "description", "parameters"] {
                ordered.insert(name.to_owned(), function.shift_remove(name).unwrap_or(Json::Null));
            }
            ordered.extend(function);
            tool.insert("function".to_owned(), ordered.into());
        }
        tool.extend(given);
        tool.into()
    };
    tools.into_iter().map(prepare).collect()
}

/// Whether a template goes through the parts of a content, as vLLM finds out by reading it.
fn takes_parts(source: &str) -> bool {
    const LOOPS: [&str; 5] =
        ["in message.content", "in message['content']", "in message[\"content\"]", "in content %}", "in content -%}"];
    LOOPS.iter().any(|pattern| {
        source.match_indices(pattern).any(|(at, _)| {
            let tag = source[..at].rfind("{%").map_or("", |start| &source[start..at]);
            tag.contains("for ")
        })
    })
}

/// The text up to the end of the last message, as Hugging Face cuts it.
fn cut_after(mut text: String, last: Option<&str>) -> Result<String, Reason> {
    let last = last.ok_or(Reason::TemplateError)?;
    let at = text.rfind(last.trim()).ok_or(Reason::TemplateError)?;
    let kept = if text[at..].starts_with(last.trim_start()) { last.trim_start() } else { last.trim() };
    text.truncate(at + kept.len());
    Ok(text)
}

fn syntax() -> Result<SyntaxConfig, String> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|error| error.to_string())
}

/// `json.dumps(value, ensure_ascii=False)`, which is what Hugging Face's `tojson` is.
fn to_json(value: Jinja, options: minijinja::value::Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut out = Vec::new();
    match indent {
        None => {
            let mut serializer = Serializer::with_formatter(&mut out, Python);
            serde::Serialize::serialize(&value, &mut serializer).map_err(failed)?;
        }
        Some(spaces) => {
            let indent = " ".repeat(spaces.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            let mut serializer = Serializer::with_formatter(&mut out, pretty);
            serde::Serialize::serialize(&value, &mut serializer).map_err(failed)?;
        }
    }
    String::from_utf8(out).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Python's separators.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Endpoint, Input, RequestView};

    fn render(template: &str, body: &str) -> Result<String, Reason> {
        let template = ChatTemplate::new(template, "<s>", "</s>").unwrap();
        let view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 100).unwrap();
        let Input::Chat(chat) = &view.input else { panic!() };
        template.render(chat)
    }

    #[test]
    fn python_methods_whitespace_and_special_tokens_are_as_in_jinja() {
        let template = "{{ bos_token }}\n{% for m in messages %}\n  {% if m.content.startswith('a') %}\n{{ m.role.upper() }}: {{ m.content.split('b')[-1] }}\n  {% endif %}\n{% endfor %}";
        let text = render(template, r#"{"messages": [{"role": "user", "content": "abc"}]}"#).unwrap();
        assert_eq!(text, "<s>\nUSER: c\n");
    }

    #[test]
    fn parts_become_lines_unless_the_template_takes_them() {
        let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}"#;
        assert_eq!(render("{{ messages[0].content }}", body).unwrap(), "a\nb");
        let template = "{% for message in messages %}{% for part in message['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}";
        assert_eq!(render(template, body).unwrap(), "[a][b]");
    }

    #[test]
    fn tojson_writes_as_python_does() {
        let body = r#"{"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"parameters": {"b": [1, 2.5], "a": "é<"}, "name": "f"}, "type": "function"}]}"#;
        let text = render("{{ tools[0] | tojson }}", body).unwrap();
        let expected = r#"{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": [1, 2.5], "a": "é<"}}}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn arguments_of_a_call_become_an_object() {
        let body = r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}]}"#;
        assert_eq!(render("{{ messages[0].tool_calls[0].function.arguments.x }}", body).unwrap(), "1");
    }

    #[test]
    fn the_last_message_is_continued_where_it_stops() {
        let template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}";
        let body = |more| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "so "}}], {more}}}"#
            )
        };
        let cut = body("\"continue_final_message\": true, \"add_generation_prompt\": false");
        assert_eq!(render(template, &cut).unwrap(), "[q][so ");
        assert_eq!(render(template, &body("\"n\": 1")).unwrap(), "[q][so ]>");
        assert_eq!(render(template, &body("\"continue_final_message\": true")), Err(Reason::TemplateError));
    }

    #[test]
    fn what_only_the_engine_can_know_is_not_guessed() {
        let image =
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}"#;
        assert_eq!(render("{{ messages[0].content }}", image), Err(Reason::Media));
        let plain = r#"{"messages": [{"role": "user", "content": "x"}]}"#;
        assert_eq!(render("{{ strftime_now('%d') }}", plain), Err(Reason::TemplateError));
        assert_eq!(render("{{ raise_exception('no') }}", plain), Err(Reason::TemplateError));
    }

    #[test]
    fn variables_of_the_request_reach_the_template() {
        let body =
            r#"{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false}}"#;
        let template = "{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}";
        assert_eq!(render(template, body).unwrap(), "quiet");
    }

    #[test]
    fn an_endless_template_ends() {
        let template = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
        let plain = r#"{"messages": [{"role": "user", "content": "x"}]}"#;
        assert_eq!(render(template, plain), Err(Reason::TemplateError));
    }
}
