//! Messages of earlier requests, and what conversations of one form have in common.

use std::sync::{Arc, OnceLock};

use minijinja::Value;

use super::habits::Habits;
use super::messages::Message;
use super::skeleton::{Pieces, Skeleton, mark};
use super::traits::Traits;
use crate::tokenize::Reason;
use crate::tokenize::byte_cache::{ByteCache, Weigh};
use crate::tokenize::keys::Keys;

/// A message that is ready for templates. Values share what they are made of, so it is cloned for each rendering cheaply.
pub(in crate::tokenize) struct Parsed {
    pub(super) message: Message,
    /// What templates see of it, from when one sees it: where a prompt is filled in none does.
    value: OnceLock<Value>,
    /// Its text, where the prompt differs from that of another message of the same form in it alone.
    pub(super) filling: Option<Value>,
    /// Names it, and all that the prompt has of it beside that text; `None` if it was made up here.
    names: Option<Names>,
    /// Memory that it takes, where it is kept.
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Names {
    whole: u128,
    form: u128,
}

/// A chat's prompt.
pub(in crate::tokenize) enum Rendered {
    /// Its text.
    Whole(String),
    /// Of a form that is known. A joint is behind each text that was filled in but the last one, which is new in each chat.
    Filled(Filling, Vec<Joint>),
}

/// A prompt of which as much is put together as is asked for.
pub(in crate::tokenize) struct Filling {
    pieces: Arc<Pieces>,
    messages: Vec<Arc<Parsed>>,
}

/// A place in a prompt, and a name for all that is before it.
#[derive(Clone, Copy)]
pub(in crate::tokenize) struct Joint {
    pub(in crate::tokenize) at: usize,
    pub(in crate::tokenize) name: u128,
}

impl Rendered {
    /// All of it.
    pub(in crate::tokenize) fn text(self) -> String {
        match self {
            Self::Whole(text) => text,
            Self::Filled(filling, _) => filling.behind(0),
        }
    }
}

impl Filling {
    /// What is behind the first `joints` joints. O(it).
    pub(in crate::tokenize) fn behind(&self, joints: usize) -> String {
        self.pieces.filled_behind(joints, fillings(&self.messages).skip(joints))
    }
}

/// Messages of earlier requests, as turns of a conversation repeat them.
pub(in crate::tokenize) struct Remembered<'a> {
    pub(in crate::tokenize) messages: &'a ByteCache<Parsed>,
    pub(in crate::tokenize) keys: &'a Keys,
    /// The names of this request's messages, as the client wrote them.
    pub(in crate::tokenize) spans: &'a [u128],
    pub(in crate::tokenize) skeletons: &'a ByteCache<Skeleton>,
    /// Names all that the request tells the template beside messages.
    pub(in crate::tokenize) variables: u128,
}

impl From<Message> for Parsed {
    fn from(message: Message) -> Self {
        Self { message, value: OnceLock::new(), filling: None, names: None, bytes: 0 }
    }
}

impl Parsed {
    /// The message as the template sees it.
    pub(super) fn value(&self) -> Value {
        self.value.get_or_init(|| self.message.clone().into_value()).clone()
    }
}

impl Weigh for Parsed {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Remembered<'_> {
    /// The message that is the request's `place`-th one and reads `json`.
    pub(super) fn read(&self, place: usize, json: &str, template: &Traits) -> Result<Arc<Parsed>, Reason> {
        let read = || Message::read(json, template.format);
        let Some(span) = self.spans.get(place) else { return Ok(Arc::new(read()?.into())) };
        let key = self.keys.join(*span, template.number);
        if let Some(known) = self.messages.get(key) {
            return Ok(known);
        }
        let message = read()?;
        let filling =
            message.only_text(template).filter(|text| template.habits.prints(text.as_str().unwrap_or_default()));
        let role = || self.keys.join(self.keys.of(message.role().as_bytes()), template.number);
        let form = if filling.is_some() { role() } else { key };
        let parsed =
            Parsed { bytes: message.bytes(), filling, names: Some(Names { whole: key, form }), ..message.into() };
        let parsed = Arc::new(parsed);
        self.messages.insert(key, Arc::clone(&parsed));
        Ok(parsed)
    }

    /// The prompt of `messages`. It is filled in where conversations of its form were rendered before; else `whole` renders.
    ///
    /// # Errors
    /// Those of `whole`.
    pub(super) fn prompt(
        &self,
        messages: Vec<Arc<Parsed>>,
        habits: &Habits,
        whole: impl Fn(&[Arc<Parsed>]) -> Result<String, Reason>,
    ) -> Result<Rendered, Reason> {
        let is_fillable = habits.prints_texts() && fillings(&messages).next().is_some();
        let form = if is_fillable { self.form(&messages) } else { None };
        let Some(form) = form else { return whole(&messages).map(Rendered::Whole) };
        let skeleton = self.skeletons.get(form);
        if let Some(Skeleton::Known(pieces)) = skeleton.as_deref() {
            let joints = self.joints(pieces, &messages);
            let filling = Filling { pieces: Arc::clone(pieces), messages };
            return if habits.is_to_be_compared() {
                Ok(Rendered::Whole(habits.compared(&filling.behind(0), whole(&filling.messages)?)))
            } else {
                Ok(Rendered::Filled(filling, joints))
            };
        }
        let text = whole(&messages)?;
        let next = match skeleton.as_deref() {
            None => Skeleton::Met,
            Some(Skeleton::Met) => learned(&messages, &text, whole),
            Some(Skeleton::Known(_) | Skeleton::Unfit) => return Ok(Rendered::Whole(text)),
        };
        self.skeletons.insert(form, Arc::new(next));
        Ok(Rendered::Whole(text))
    }

    fn joints(&self, pieces: &Pieces, messages: &[Arc<Parsed>]) -> Vec<Joint> {
        let filled = messages.iter().filter_map(|message| Some((message.filling.as_ref()?.as_str()?, message.names?)));
        let mut joint = Joint { at: 0, name: self.variables };
        let behind = |(piece, (filling, names)): (&str, (&str, Names))| {
            let before = self.keys.join(joint.name, self.keys.of(piece.as_bytes()));
            joint = Joint { at: joint.at + piece.len() + filling.len(), name: self.keys.join(before, names.whole) };
            joint
        };
        let places = messages.iter().filter(|message| message.filling.is_some()).count();
        pieces.before_places().zip(filled).map(behind).take(places.saturating_sub(1)).collect()
    }

    /// Names what prompts of such messages have in common; `None` if one of them was made up here.
    fn form(&self, messages: &[Arc<Parsed>]) -> Option<u128> {
        let join = |before, message: &Arc<Parsed>| Some(self.keys.join(before, message.names?.form));
        messages.iter().try_fold(self.variables, join)
    }
}

/// The texts to fill in, in order.
fn fillings(messages: &[Arc<Parsed>]) -> impl Iterator<Item = &str> + Clone {
    messages.iter().filter_map(|message| message.filling.as_ref()?.as_str())
}

/// What is round the texts of `messages` in their prompt, which is `text`. Renders them once more, with marks for texts.
fn learned(messages: &[Arc<Parsed>], text: &str, whole: impl Fn(&[Arc<Parsed>]) -> Result<String, Reason>) -> Skeleton {
    let mut places = 0;
    let mut marked = |message: &Arc<Parsed>| {
        if message.filling.is_none() {
            return Arc::clone(message);
        }
        places += 1;
        Arc::new(message.message.with_only_text(&mark(places - 1)).into())
    };
    let marked: Vec<Arc<Parsed>> = messages.iter().map(&mut marked).collect();
    let pieces = whole(&marked).ok().and_then(|rendered| Pieces::around_marks(&rendered, places));
    let pieces = pieces.filter(|pieces| pieces.filled_behind(0, fillings(messages)) == text);
    pieces.map_or(Skeleton::Unfit, |pieces| Skeleton::Known(Arc::new(pieces)))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::openai::{Endpoint, Input, RequestView};
    use crate::tokenize::ChatTemplate;

    struct Memory {
        messages: ByteCache<Parsed>,
        skeletons: ByteCache<Skeleton>,
        keys: Keys,
    }

    impl Memory {
        fn new() -> Self {
            Self { messages: ByteCache::new(1 << 20), skeletons: ByteCache::new(1 << 20), keys: Keys::new() }
        }

        fn of<'a>(&'a self, spans: &'a [u128]) -> Remembered<'a> {
            let Self { messages, skeletons, keys } = self;
            Remembered { messages, keys, spans, skeletons, variables: 0 }
        }

        /// The prompt with this memory, and without any.
        fn render(&self, template: &ChatTemplate, messages: &serde_json::Value) -> [Result<String, Reason>; 2] {
            self.render_beside(template, messages, json!({}))
        }

        /// The same of a request with more fields.
        fn render_beside(
            &self,
            template: &ChatTemplate,
            messages: &serde_json::Value,
            mut fields: serde_json::Value,
        ) -> [Result<String, Reason>; 2] {
            (fields["model"], fields["messages"]) = ("m".into(), messages.clone());
            let body = fields.to_string();
            let view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096).unwrap();
            let Input::Chat(chat) = &view.input else { panic!() };
            let spans: Vec<u128> = chat.messages.iter().map(|raw| self.keys.of(raw.get().as_bytes())).collect();
            [Some(self.of(&spans)), None].map(|remembered| {
                template.render(chat, SystemTime::UNIX_EPOCH, remembered.as_ref()).map(Rendered::text)
            })
        }
    }

    /// Trims, and cuts reasoning off all but the last answers; the last question is looked for from behind.
    const REASONING: &str = "{%- set ns = namespace(last=-1) -%}\
        {%- for m in messages[::-1] -%}{%- if m.role == 'user' and ns.last < 0 and not \
        (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}\
        {%- set ns.last = messages|length - 1 - loop.index0 -%}{%- endif -%}{%- endfor -%}\
        {%- for m in messages -%}<|im_start|>{{ m.role }}\n\
        {%- if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.last -%}\
        {{ m.content.split('</think>')[-1].lstrip('\\n') }}{%- else -%}{{ m.content }}{%- endif -%}\
        {%- if m.name is defined -%} ({{ m.name }}){%- endif -%}\
        {%- if m.tool_calls -%}{%- for call in m.tool_calls -%}{{ call|tojson }}{%- endfor -%}{%- endif -%}\
        <|im_end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}";
    /// Takes turns only, renames a role, and puts the system's text into the first question.
    const TURNS: &str = "{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content + '\\n\\n' -%}\
        {%- set said = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set said = messages -%}{%- endif -%}\
        {%- for m in said -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('turns') }}\
        {%- endif -%}<start>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}\
        {{ m.content|trim }}<end>\n{%- endfor -%}";
    /// Loops over parts.
    const PARTS: &str = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}\
        {% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}";
    /// Quotes every text.
    const QUOTED: &str = "{% for m in messages %}{{ m.role }}: {{ m.content|tojson }}{% endfor %}";
    /// Says another thing of long conversations, and of a certain text.
    const MOODS: &str = "{% for m in messages %}{% if m.content == 'hi' %}greets{% else %}{{ m.content }}{% endif %}\
        {{ ';' if messages|length > 3 else ',' }}{% endfor %}";

    fn message() -> impl Strategy<Value = serde_json::Value> {
        let roles = prop::sample::select(vec!["system", "user", "user", "assistant", "assistant", "tool", "developer"]);
        let piece = prop::sample::select(vec![
            "hi",
            "there",
            " ",
            "\n",
            "é",
            "</think>",
            "<think>",
            "<tool_response>",
            "</tool_response>",
            "\"",
            "'",
            "\\",
            "qZ7wTkX400000000vJ2sRb",
            "<|im_end|>",
            "user",
        ]);
        let text = prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat());
        (roles, text, 0..12).prop_map(|(role, text, kind)| match (kind, role) {
            (0, _) => json!({ "role": role, "content": text, "name": "n" }),
            (1, _) => json!({ "role": role, "content": [{ "type": "text", "text": text }] }),
            (2, _) => json!({ "role": role, "content": [{ "type": "text", "text": text }, "more"] }),
            (3, "assistant") => {
                json!({ "role": role, "tool_calls": [{ "function": { "name": text, "arguments": "{}" } }] })
            }
            (4, "assistant") => json!({ "role": role, "content": text, "reasoning": "why" }),
            (_, "tool") => json!({ "role": role, "content": text, "tool_call_id": "1" }),
            _ => json!({ "role": role, "content": text }),
        })
    }

    proptest! {
        /// Conversations that go on, each followed by all that has its form but other texts.
        #[test]
        fn prompts_are_what_the_template_makes_of_them(
            source in prop::sample::select(vec![REASONING, TURNS, PARTS, QUOTED, MOODS]),
            conversation in prop::collection::vec(message(), 1..6),
            texts in prop::collection::vec(prop::sample::select(vec!["hi", "yes\n", "a </think> b", " no", "\n<think>"]), 24),
        ) {
            let (template, memory) = (ChatTemplate::new(source).unwrap(), Memory::new());
            for round in 0..4 {
                for turns in 1..=conversation.len() {
                    let mut messages = conversation[..turns].to_vec();
                    for (place, message) in messages.iter_mut().enumerate().filter(|_| round > 0) {
                        if message["content"].is_string() {
                            message["content"] = texts[round * 6 + place].into();
                        }
                    }
                    let [with, without] = memory.render(&template, &messages.into());
                    prop_assert_eq!(with, without);
                }
            }
            // A difference seen while serving would end it.
            prop_assert_eq!(template.default.habits.prints_texts(), source != QUOTED);
        }
    }

    #[test]
    fn the_third_conversation_of_a_form_is_filled_in() {
        let turn = |role: &str, text: &str| json!({ "role": role, "content": text });
        for (source, fills) in [(REASONING, true), (TURNS, true), (PARTS, true), (MOODS, true), (QUOTED, false)] {
            let (template, memory) = (ChatTemplate::new(source).unwrap(), Memory::new());
            let prompts = ["one", "two", "three"].map(|text| {
                let messages =
                    json!([turn("system", "be"), turn("user", text), turn("assistant", text), turn("user", "x")]);
                let [with, without] = memory.render(&template, &messages);
                assert_eq!(with, without);
                with.unwrap()
            });
            assert!(prompts[2].contains("three"));
            assert_eq!(template.default.habits.has_filled(), fills, "{source}");
        }
    }

    /// What is looked for with tools alone, or where nothing is thought, as GLM's does.
    #[test]
    fn a_word_that_acts_in_one_setting_alone_is_seen_there() {
        const NO_THINK: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ '/nothink' if (enable_thinking is \
            defined and not enable_thinking and not m.content.endswith('/nothink')) else '' }}{% endfor %}";
        const SEARCH: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\
            {% if tools and 'search' in m.content %}(S){% endif %}{% if mode and 'plan' in m.content %}(P){% endif %}\
            {% endfor %}";
        let tool = json!({"type": "function", "function": {"name": "f"}});
        for (source, fields) in [
            (NO_THINK, json!({"chat_template_kwargs": {"enable_thinking": false}})),
            (SEARCH, json!({"tools": [tool]})),
            (SEARCH, json!({"chat_template_kwargs": {"mode": true}})),
        ] {
            let (memory, template) = (Memory::new(), ChatTemplate::new(source).unwrap());
            for text in ["one", "two", "three", "four", "five/nothink", "I search it", "a plan", "six"] {
                let messages = json!([{"role": "user", "content": text}]);
                let [remembered, whole] = memory.render_beside(&template, &messages, fields.clone());
                assert_eq!(remembered, whole, "{text}");
            }
        }
    }

    #[test]
    fn a_message_that_is_repeated_is_parsed_once_for_each_template() {
        let memory = Memory::new();
        let json = r#"{"role":"user","content":"a"}"#;
        let spans = [memory.keys.of(json.as_bytes())];
        let [text, parts] =
            ["{{ messages }}", "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}"]
                .map(|source| Traits::of("default", source, |_, _, _| None));
        let read = |template| memory.of(&spans).read(0, json, template).unwrap();
        assert!(Arc::ptr_eq(&read(&text), &read(&text)));
        assert_eq!(read(&text).value().to_string(), "{'role': 'user', 'content': 'a'}");
        let listed = "{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}";
        assert_eq!(read(&parts).value().to_string(), listed);
    }
}
