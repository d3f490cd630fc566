//! What a request tells its template beside messages, as far as templates are tried with it.

use minijinja::Value;

use super::{kwargs, over};
use crate::openai::ChatView;

/// A template may do something else with a text where it has tools, or is to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) tools: bool,
    pub(super) thinking: Thinking,
}

/// Whether the model is to think, by the names that templates have for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    Unsaid,
    Off,
    On,
    /// So much.
    Effort,
}

/// Variables by which it is switched on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl Setting {
    /// Those that are tried.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let thinking = [Thinking::Unsaid, Thinking::Off, Thinking::On, Thinking::Effort];
        [false, true].into_iter().flat_map(move |tools| thinking.map(|thinking| Self { tools, thinking }))
    }

    /// That of a request where the template has these variables anyway; `None` if it is told anything else.
    pub(super) fn of(chat: &ChatView<'_>, standing: Option<&Value>) -> Option<Self> {
        if !chat.add_generation_prompt || chat.documents.is_some() {
            return None;
        }
        let switched = over(standing, kwargs(chat).ok()?).map(|given| switch(&given));
        let thinking = match (switched, &chat.reasoning_effort) {
            (None, None) => Thinking::Unsaid,
            (None, Some(effort)) if effort != "none" => Thinking::Effort,
            (Some(switched), None) => switched?,
            _ => return None,
        };
        Some(Self { tools: chat.tools.is_some(), thinking })
    }

    /// The variables of a template that is tried in it.
    pub(super) fn variables(self) -> Vec<(&'static str, Value)> {
        let mut variables = vec![("tools", if self.tools { Value::from(vec![tool()]) } else { Value::from(()) })];
        let switched = |on: bool| SWITCHES.map(|name| (name, Value::from(on)));
        match self.thinking {
            Thinking::Unsaid => {}
            Thinking::Off => variables.extend(switched(false)),
            Thinking::On => variables.extend(switched(true)),
            Thinking::Effort => {
                variables.extend([("reasoning_effort", Value::from("high")), ("enable_thinking", true.into())]);
            }
        }
        variables
    }
}

/// What variables say that switch thinking alone.
fn switch(given: &Value) -> Option<Thinking> {
    let mut thinking = None;
    for name in given.try_iter().ok()? {
        let is_switch = name.as_str().is_some_and(|name| SWITCHES.contains(&name));
        let value = given.get_item(&name).ok().filter(|_| is_switch)?;
        let said = match bool::try_from(value).ok()? {
            true => Thinking::On,
            false => Thinking::Off,
        };
        if thinking.replace(said).is_some_and(|before| before != said) {
            return None;
        }
    }
    Some(thinking.unwrap_or(Thinking::Unsaid))
}

/// A function, as engines hand it to templates.
fn tool() -> Value {
    let parameters = Value::from_pairs([("type", Value::from("object")), ("properties", Value::from_pairs([city()]))]);
    let function = Value::from_pairs([
        ("name", Value::from("weather")),
        ("description", Value::from("Tells it.")),
        ("parameters", parameters),
    ]);
    Value::from_pairs([("type", Value::from("function")), ("function", function)])
}

fn city() -> (&'static str, Value) {
    ("city", Value::from_pairs([("type", "string"), ("description", "Where.")]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Endpoint, Input, RequestView};

    fn of(fields: &str) -> Option<Setting> {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}]{fields}}}"#);
        let view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 9).unwrap();
        let Input::Chat(chat) = &view.input else { panic!() };
        Setting::of(chat, None)
    }

    #[test]
    fn a_request_that_tells_more_than_was_tried_is_in_no_setting() {
        let thinking = |fields: &str| of(fields).map(|setting| setting.thinking);
        assert_eq!(thinking(""), Some(Thinking::Unsaid));
        assert_eq!(thinking(r#","chat_template_kwargs":{}"#), Some(Thinking::Unsaid));
        assert_eq!(thinking(r#","chat_template_kwargs":{"enable_thinking":false}"#), Some(Thinking::Off));
        assert_eq!(thinking(r#","chat_template_kwargs":{"enable_thinking":true,"thinking":true}"#), Some(Thinking::On));
        assert_eq!(thinking(r#","reasoning_effort":"low""#), Some(Thinking::Effort));
        for told in [
            r#","reasoning_effort":"none""#,
            r#","reasoning_effort":"low","chat_template_kwargs":{"thinking":true}"#,
            r#","chat_template_kwargs":{"enable_thinking":false,"thinking":true}"#,
            r#","chat_template_kwargs":{"enable_thinking":"no"}"#,
            r#","chat_template_kwargs":{"x":true}"#,
            r#","chat_template_kwargs":{"messages":[]}"#,
            r#","documents":[]"#,
            r#","add_generation_prompt":false"#,
        ] {
            assert_eq!(of(told), None, "{told}");
        }
        let tools = r#","tools":[{"type":"function","function":{"name":"f"}}]"#;
        assert_eq!(of(tools), Some(Setting { tools: true, thinking: Thinking::Unsaid }));
        assert_eq!(Setting::all().count(), 8);
    }
}
