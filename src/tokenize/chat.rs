//! Chat templates: Jinja as Hugging Face runs it, over messages as vLLM prepares them.
//!
//! The template is the operator's and is trusted; what it is fed is the client's. It is compiled once. A template that
//! prints the date (`strftime_now`) is rendered with the date in UTC: its ids are right for all of a day but the moments
//! round midnight, and for engines whose clocks are in UTC. One that prints the time of day is not rendered, since no two
//! of its prompts share a prefix.
//!
//! Known differences from Jinja2: `%` does not format strings (such a template fails, and its chats are routed by load),
//! integers beyond 64 bits are read as floats, floats in a list or map that is
//! printed have their exponents as Rust writes them, a text that is joined to one marked as `safe` is not escaped for it, a loop
//! over `none` runs no time instead of failing, and `title`, `capitalize`, `isdigit` and their like know letters and digits
//! as Rust does (`ß`, the digraph `ǆ`, what follows an apostrophe).

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, escape_formatter};
use simdutf8::basic::from_utf8;

use super::Reason;
use crate::config::TemplateVariables;
use crate::openai::{ChatView, Raw};

mod calls;
mod date;
mod habits;
mod json;
mod loops;
mod memory;
mod messages;
mod python;
mod record;
mod remembered;
mod setting;
mod skeleton;
mod source;
mod tools;
mod traits;
mod values;

use messages::Message;
use record::Variables;
pub(super) use remembered::{Filling, Joint, Parsed, Remembered, Rendered};
use setting::Setting;
pub(super) use skeleton::Skeleton;
use traits::Traits;

/// A template that does not compile.
#[derive(Debug, thiserror::Error)]
#[error("line {}: {}", .0.line().unwrap_or(0), .0.detail().unwrap_or("syntax error"))]
pub struct TemplateError(#[from] Error);

/// The variables `bos_token`, `eos_token`, … of a tokenizer's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens(pub Vec<(&'static str, String)>);

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Traits,
    tool_use: Option<Traits>,
    defaults: Arc<[(&'static str, Value)]>,
    /// Variables that the engines set where a request does not.
    standing: Option<Value>,
}

/// The mark behind a final message that is to be continued, as in Hugging Face's `render_jinja_template`.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Parameters of the engine's renderer that a variable for the template may not have as its name: engines refuse such
/// requests, or are changed by them in other ways.
const RESERVED: [&str; 15] = [
    "conversation",
    "messages",
    "tools",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "chat_template",
    "raise_exception",
    "strftime_now",
];

impl ChatTemplate {
    /// Compiles a template of a tokenizer without special tokens.
    ///
    /// # Errors
    /// [`TemplateError`] if it does not compile.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_special_tokens(source, SpecialTokens::default())
    }

    /// Compiles a template, in 0.3 ms, and tries what it does with texts, some ten thousand times.
    ///
    /// # Errors
    /// [`TemplateError`] if it does not compile.
    pub fn with_special_tokens(source: &str, specials: SpecialTokens) -> Result<Self, TemplateError> {
        Self::compile(source, None, specials)
    }

    /// Compiles the templates `default` and, for requests with tools, `tool_use` of a list of named ones; `None` if it has
    /// no `default`.
    ///
    /// # Errors
    /// [`TemplateError`] if one of the two does not compile.
    pub fn named(templates: &[(String, String)], specials: SpecialTokens) -> Result<Option<Self>, TemplateError> {
        let find = |wanted: &str| templates.iter().find(|(name, _)| name == wanted).map(|(_, source)| source.as_str());
        find("default").map(|default| Self::compile(default, find("tool_use"), specials)).transpose()
    }

    fn compile(default: &str, tool_use: Option<&str>, specials: SpecialTokens) -> Result<Self, TemplateError> {
        // Jinja's lexer ends every line so, whatever ended it in the file.
        let with_line_feeds = |source: &str| source.replace("\r\n", "\n").replace('\r', "\n");
        let (default, tool_use) = (&*with_line_feeds(default), tool_use.map(with_line_feeds));
        let tool_use = tool_use.as_deref();
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("trim", python::trim);
        environment.add_filter("tojson", json::tojson);
        environment.add_filter("escape", python::escape);
        environment.add_filter("e", python::escape);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment
            .add_filter("string", |value: Value| json::float_text(&value).map_or(value, Value::from).to_string());
        environment.set_formatter(|out, state, value| match (value.as_str(), json::float_text(value)) {
            // What nearly everything is; `write!` would look for widths and the like.
            (Some(text), _) if matches!(state.auto_escape(), AutoEscape::None) => Ok(out.write_str(text)?),
            (_, Some(text)) => Ok(out.write_str(&text)?),
            _ => escape_formatter(out, state, value),
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned("default", source::without_generation_tags(default))?;
        if let Some(tool_use) = tool_use {
            environment.add_template_owned("tool_use", source::without_generation_tags(tool_use))?;
        }
        let tokens = specials.0.into_iter().map(|(name, token)| (name, Value::from(token)));
        let defaults: Arc<[(&'static str, Value)]> = tokens.chain([("documents", Value::from(()))]).collect();
        let traits = |name: &'static str, source: &str| {
            Traits::of(name, source, |format, setting, messages| {
                let messages = messages.iter().map(|(role, text)| Message::plain(role, text, format).into_value());
                let mut own = setting.variables();
                own.extend([
                    ("messages", Value::from(messages.collect::<Vec<_>>())),
                    ("add_generation_prompt", true.into()),
                    ("strftime_now", Value::from_function(|format: String| today(&format, SystemTime::UNIX_EPOCH))),
                ]);
                let variables = Variables { own, given: None, defaults: Arc::clone(&defaults) };
                print(&environment, name, Value::from_object(variables), 0).ok()
            })
        };
        let (default, tool_use) = (traits("default", default), tool_use.map(|source| traits("tool_use", source)));
        Ok(Self { environment, default, tool_use, defaults, standing: None })
    }

    /// The same where the engines set these variables unless a request does.
    pub(super) fn with_variables(self, variables: &TemplateVariables) -> Self {
        // It has been JSON, all of which is a value.
        let standing = serde_json::from_value(serde_json::Value::Object(variables.0.clone())).ok();
        Self { standing, ..self }
    }

    /// The prompt's text. Messages that are `remembered` are not parsed again, and conversations of a form that is known
    /// are filled in.
    ///
    /// # Errors
    /// The [`Reason`] why it cannot be told.
    pub(super) fn render(
        &self,
        chat: &ChatView<'_>,
        now: SystemTime,
        remembered: Option<&Remembered<'_>>,
    ) -> Result<Rendered, Reason> {
        if chat.chat_template.is_some() {
            return Err(Reason::RequestTemplate);
        }
        if chat.continue_final_message && chat.add_generation_prompt {
            return Err(Reason::TemplateError);
        }
        let traits = self.tool_use.as_ref().filter(|_| chat.tools.is_some()).unwrap_or(&self.default);
        let mut messages = messages::normalise(&chat.messages, traits, remembered)?;
        let whole = |messages: &[Arc<Parsed>]| self.render_whole(chat, messages, traits, now);
        if chat.continue_final_message {
            let final_text = tag(&mut messages, traits)?;
            return cut(whole(&messages)?, &final_text).map(Rendered::Whole);
        }
        // What is done with texts was tried under some variables alone.
        let was_tried =
            || Setting::of(chat, self.standing.as_ref()).is_some_and(|setting| traits.habits.knows(setting));
        match remembered.filter(|_| was_tried()) {
            Some(remembered) => remembered.prompt(messages, &traits.habits, whole),
            None => whole(&messages).map(Rendered::Whole),
        }
    }

    fn render_whole(
        &self,
        chat: &ChatView<'_>,
        messages: &[Arc<Parsed>],
        traits: &Traits,
        now: SystemTime,
    ) -> Result<String, Reason> {
        let context = self.context(chat, messages, traits, now)?;
        // The error quotes the conversation, and is not told.
        print(&self.environment, traits.name, context, length(chat)).map_err(|_| Reason::TemplateError)
    }

    /// The template's variables.
    fn context(
        &self,
        chat: &ChatView<'_>,
        messages: &[Arc<Parsed>],
        traits: &Traits,
        now: SystemTime,
    ) -> Result<Value, Reason> {
        let given = kwargs(chat)?;
        let thinking_given = given.as_ref().is_some_and(|map| has(map, "enable_thinking"));
        let mut own = Vec::with_capacity(8);
        let mut set = |name: &'static str, value: Value| own.push((name, value));
        if let Some(documents) = chat.documents {
            set("documents", parse(documents)?);
        }
        if let Some(effort) = chat.reasoning_effort.as_deref() {
            set("reasoning_effort", Value::from(effort));
            if !thinking_given {
                set("enable_thinking", Value::from(effort != "none"));
            }
        }
        if traits.reads_date {
            set("strftime_now", Value::from_function(move |format: String| today(&format, now)));
        }
        set("add_generation_prompt", Value::from(chat.add_generation_prompt));
        set("tools", chat.tools.map(tools::normalise).transpose()?.unwrap_or(Value::from(())));
        set("messages", Value::from(messages.iter().map(|message| message.value()).collect::<Vec<_>>()));
        let given = over(self.standing.as_ref(), given);
        Ok(Value::from_object(Variables { own, given, defaults: Arc::clone(&self.defaults) }))
    }
}

/// What a template writes. Its own string would begin with room for the template's text, and be moved each time that it is full.
struct Printed(String);

impl io::Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The engine writes whole texts.
        self.0.push_str(from_utf8(bytes).map_err(io::Error::other)?);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template makes of its variables, with room for `capacity` bytes at first.
fn print(environment: &Environment<'_>, name: &str, context: Value, capacity: usize) -> Result<String, Error> {
    let mut printed = Printed(String::with_capacity(capacity));
    environment.get_template(name)?.render_captured_to(context, &mut printed)?;
    Ok(printed.0)
}

/// About how long the text will be: no longer than what it is made of, but for what the template says to each message.
fn length(chat: &ChatView<'_>) -> usize {
    const OF_THE_TEMPLATE: usize = 64;
    let raw = chat.messages.iter().chain(&chat.tools);
    raw.map(|raw| raw.get().len() + OF_THE_TEMPLATE).sum::<usize>() + OF_THE_TEMPLATE
}

/// What `chat_template_kwargs` sets. The request's own fields of the same names win.
fn kwargs(chat: &ChatView<'_>) -> Result<Option<Value>, Reason> {
    let Some(raw) = chat.chat_template_kwargs else { return Ok(None) };
    let map = parse(raw)?;
    if messages::given(&map, "chat_template").is_some() {
        return Err(Reason::RequestTemplate);
    }
    if RESERVED.iter().any(|name| has(&map, name)) { Err(Reason::TemplateVariables) } else { Ok(Some(map)) }
}

/// The variables that stand where a request has not `given` them: as vLLM merges them, null and `auto` give nothing.
fn over(standing: Option<&Value>, given: Option<Value>) -> Option<Value> {
    let Some((standing, given)) = standing.zip(given.as_ref()) else { return given.or_else(|| standing.cloned()) };
    let is_given = |value: &Value| !value.is_none() && value.as_str() != Some("auto");
    let given = messages::entries(given).into_iter().filter(|(_, value)| is_given(value));
    Some(Value::from_pairs(messages::entries(standing).into_iter().chain(given)))
}

/// Whether a map has the key, be it null.
fn has(map: &Value, key: &str) -> bool {
    map.get_attr(key).is_ok_and(|value| !value.is_undefined())
}

fn parse(raw: Raw<'_>) -> Result<Value, Reason> {
    let value: Value = values::read(raw.get())?;
    if matches!(value.kind(), ValueKind::Map | ValueKind::Seq) { Ok(value) } else { Err(Reason::TemplateError) }
}

fn today(format: &str, now: SystemTime) -> Result<String, Error> {
    date::strftime(format, now)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the time of day cannot be reproduced"))
}

/// Marks the end of the final message and gives its text.
fn tag(messages: &mut [Arc<Parsed>], traits: &Traits) -> Result<String, Reason> {
    let last = messages.last_mut().ok_or(Reason::TemplateError)?;
    let mut message = last.message.clone();
    let text = message.last_text().filter(|_| traits.reads_content).ok_or(Reason::TemplateError)?;
    message.tag_last_text(CONTINUE_TAG);
    *last = Arc::new(Parsed::from(message));
    Ok(text.as_str().unwrap_or_default().to_owned())
}

/// Cuts the prompt behind the final message. A template that trims the message took the mark's space with it; then the
/// message's own trailing space goes too.
fn cut(mut text: String, final_text: &str) -> Result<String, Reason> {
    let found = text.rfind(CONTINUE_TAG.trim_end()).filter(|_| text.contains(python::strip(final_text)));
    let at = found.ok_or(Reason::TemplateError)?;
    let untrimmed = text[at..].starts_with(CONTINUE_TAG);
    text.truncate(at);
    if !untrimmed {
        text.truncate(python::strip_end(&text).len());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::openai::{Endpoint, Input, RequestView};

    fn render_with(template: &ChatTemplate, fields: &str) -> Result<String, Reason> {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        let view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096).unwrap();
        let Input::Chat(chat) = &view.input else { panic!() };
        template.render(chat, SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_225_524), None).map(Rendered::text)
    }

    fn render(source: &str, fields: &str) -> Result<String, Reason> {
        render_with(&ChatTemplate::new(source).unwrap(), fields)
    }

    const HELLO: &str = r#""messages":[{"role":"user","content":"Hello"}]"#;

    #[test]
    fn blocks_are_trimmed_as_hugging_face_trims_them() {
        let source = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}:\n  {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source, HELLO).unwrap(), "user:\n");
    }

    #[test]
    fn lines_of_templates_end_alike_however_they_were_written() {
        let source = "a\n{%- if true %}\n  {{ 'b\nc' }}\n\n{% endif %}\nd\n";
        let rendered = render(source, HELLO).unwrap();
        assert_eq!(rendered, "a  b\nc\n\nd");
        for end in ["\r\n", "\r"] {
            assert_eq!(render(&source.replace('\n', end), HELLO).unwrap(), rendered, "{end:?}");
        }
    }

    #[test]
    fn python_idioms_of_templates_work() {
        let source = "{%- set ns = namespace(n=0) -%}\
            {%- for m in messages[::-1] -%}{%- set ns.n = ns.n + 1 -%}\
            {%- if loop.index0 > 0 -%}{%- continue -%}{%- endif -%}\
            {{- m['content'].split('l')[-1].strip() + '|' + m.content[1:3] + '|' + m.get('x', 'none') -}}\
            {%- endfor -%}|{{ ns.n }}|{{ true }}|{{ none }}|{{ ['a', 1.0, none] }}|\
            {{ 1e-7 }}|{{ 1e22|string }}|{{ 1.5 }}|{{ 'ell' in messages[0].content }}";
        let rendered = render(source, HELLO).unwrap();
        assert_eq!(rendered, "o|el|none|1|True|None|['a', 1.0, None]|1e-07|1e+22|1.5|True");
    }

    #[test]
    fn generation_tags_leave_their_content() {
        let source = "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration -%} {% endfor %}";
        assert_eq!(render(source, HELLO).unwrap(), "Hello");
    }

    #[test]
    fn variables_come_from_the_tokenizer_the_request_and_its_kwargs() {
        let specials = SpecialTokens(vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())]);
        let source = "{{ bos_token }}{{ eos_token }} {{ a }} {{ reasoning_effort }} {{ enable_thinking }} \
            {{ add_generation_prompt }} {{ tools }} {{ documents }} {{ missing }}";
        let template = ChatTemplate::with_special_tokens(source, specials).unwrap();
        assert_eq!(render_with(&template, HELLO).unwrap(), "<s></s>    True None None ");
        let fields = format!(
            r#"{HELLO},"chat_template_kwargs":{{"a":[1],"eos_token":"E","add_generation_prompt":true,
                "reasoning_effort":"high"}},"add_generation_prompt":false,"reasoning_effort":"none","documents":[],
                "tools":[]"#
        );
        assert_eq!(render_with(&template, &fields).unwrap(), "<s>E [1] none False False [] [] ");
        let given = format!(r#"{HELLO},"chat_template_kwargs":{{"enable_thinking":1}},"reasoning_effort":"low""#);
        assert_eq!(render_with(&template, &given).unwrap(), "<s></s>  low 1 True None None ");
    }

    #[test]
    fn variables_that_stand_are_those_of_requests_that_set_none() {
        let source = "{{ enable_thinking }} {{ effort }} {{ a }}";
        let standing = r#"{"enable_thinking": false, "effort": 0.5}"#.to_owned().try_into().unwrap();
        let template = ChatTemplate::new(source).unwrap().with_variables(&standing);
        let rendered = |more: &str| render_with(&template, &format!("{HELLO}{more}")).unwrap();
        assert_eq!(rendered(""), "False 0.5 ");
        assert_eq!(rendered(r#","chat_template_kwargs":{"a":1,"enable_thinking":true}"#), "True 0.5 1");
        assert_eq!(rendered(r#","chat_template_kwargs":{"enable_thinking":null,"effort":"auto"}"#), "False 0.5 ");
        assert_eq!(rendered(r#","reasoning_effort":"low""#), "True 0.5 ");
    }

    #[test]
    fn what_engines_refuse_is_unknown() {
        let chat = |fields: &str| render("{{ messages[0].content }}", &format!("{HELLO},{fields}"));
        assert_eq!(chat(r#""chat_template":"x""#), Err(Reason::RequestTemplate));
        assert_eq!(chat(r#""chat_template_kwargs":{"chat_template":"x"}"#), Err(Reason::RequestTemplate));
        assert_eq!(chat(r#""chat_template_kwargs":{"tokenize":false}"#), Err(Reason::TemplateVariables));
        assert_eq!(chat(r#""chat_template_kwargs":{"messages":[]}"#), Err(Reason::TemplateVariables));
        assert_eq!(chat(r#""continue_final_message":true"#), Err(Reason::TemplateError));
        assert_eq!(render("{{ raise_exception('no') }}", HELLO), Err(Reason::TemplateError));
        assert_eq!(render("{{ missing.attribute }}", HELLO), Err(Reason::TemplateError));
    }

    #[test]
    fn the_final_message_is_left_open() {
        let open = r#""messages":[{"role":"assistant","content":"Once "}],"continue_final_message":true,
            "add_generation_prompt":false"#;
        assert_eq!(render("<{{ messages[-1].content }}>", open).unwrap(), "<Once ");
        assert_eq!(render("<{{ messages[-1].content|trim }}>", open).unwrap(), "<Once");
        let parts = "<{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}>";
        assert_eq!(render(parts, open).unwrap(), "<Once ");
        assert_eq!(render("<{{ messages[-1].content[:3] }}>", open), Err(Reason::TemplateError));
        assert_eq!(render("<>", open), Err(Reason::TemplateError));
    }

    #[test]
    fn a_template_may_print_the_date_but_not_the_time() {
        let source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}";
        assert_eq!(render(source, HELLO).unwrap(), "21 Nov 2026");
        assert_eq!(render("{{ strftime_now('%H:%M') }}", HELLO), Err(Reason::TemplateError));
    }

    #[test]
    fn requests_with_tools_get_the_template_for_tools() {
        let pairs = [("default".to_owned(), "plain".to_owned()), ("tool_use".to_owned(), "tools".to_owned())];
        let template = ChatTemplate::named(&pairs, SpecialTokens::default()).unwrap().unwrap();
        assert_eq!(render_with(&template, HELLO).unwrap(), "plain");
        assert_eq!(render_with(&template, &format!(r#"{HELLO},"tools":[]"#)).unwrap(), "tools");
        assert!(ChatTemplate::named(&pairs[1..], SpecialTokens::default()).unwrap().is_none());
    }

    /// Qwen3-Coder's template asks so.
    #[test]
    fn no_tools_are_nothing_to_loop_over() {
        let source = "{% if tools is iterable and tools|length > 0 %}{{ tools|length }}{% else %}none{% endif %}";
        assert_eq!(render(source, HELLO).unwrap(), "none");
        let tools = format!(r#"{HELLO},"tools":[{{"type":"function","function":{{"name":"f"}}}}]"#);
        assert_eq!(render(source, &tools).unwrap(), "1");
    }

    #[test]
    fn a_broken_template_names_its_line() {
        let error = ChatTemplate::new("a\n{% if %}").err().unwrap();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
