//! What is known of a template before it serves.

use std::sync::atomic::{AtomicU64, Ordering};

use super::habits::Habits;
use super::loops;
use super::messages::Format;
use super::setting::Setting;

/// What a template's text tells of it, and what trying it has shown.
#[derive(Debug)]
pub(super) struct Traits {
    /// Its name in its environment.
    pub(super) name: &'static str,
    /// Tells templates apart, so that they may share what is kept.
    pub(super) number: u128,
    pub(super) format: Format,
    pub(super) knows_developer: bool,
    pub(super) reads_date: bool,
    pub(super) reads_content: bool,
    /// Fields of messages that it names.
    fields: Vec<&'static str>,
    pub(super) habits: Habits,
}

/// Fields that only some messages have.
const FIELDS: [&str; 5] = ["tool_calls", "tool_call_id", "name", "task", "tools"];

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Traits {
    /// Of the template of `source`, which `render` tries on messages of these roles and texts.
    pub(super) fn of(
        name: &'static str,
        source: &str,
        render: impl Fn(Format, Setting, &[(&str, &str)]) -> Option<String>,
    ) -> Self {
        let format = if loops::loops_over_content(source) { Format::Parts } else { Format::Text };
        Self {
            name,
            number: u128::from(NUMBERS.fetch_add(1, Ordering::Relaxed)),
            format,
            knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            reads_date: source.contains("strftime_now"),
            reads_content: source.contains("content"),
            fields: FIELDS.into_iter().filter(|field| source.contains(field)).collect(),
            habits: Habits::of(source, |setting, messages| render(format, setting, messages)),
        }
    }

    /// Whether it may read this field of messages.
    pub(super) fn names(&self, field: &str) -> bool {
        self.fields.contains(&field)
    }
}
