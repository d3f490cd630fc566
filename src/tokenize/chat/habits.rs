//! What a template does with the texts of messages, found out by trying.
//!
//! A template may trim a text, quote it, cut reasoning off it, or take it for a tool's answer. What it looks for stands
//! in its source, so texts with each of its words are tried, and some that show what is done to every text. What remains
//! is seen while serving: now and then a conversation is rendered as if nothing had been learned, and a difference ends it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memchr::memmem::Finder;
use memchr::{memchr, memchr_iter};

use super::setting::Setting;
use super::skeleton::{Pieces, mark};
use super::source;

/// One in so many conversations is rendered in full and compared.
const COMPARED_EVERY: u64 = 1024;

/// Which texts stand in a prompt as they are.
#[derive(Debug)]
pub(super) struct Habits {
    /// Texts with one of these may not.
    acted_on: ActedOn,
    prints_texts: AtomicBool,
    /// Settings under which it was tried, and prints texts.
    settings: Vec<Setting>,
    /// Whether white space at the beginning of a text, and at its end, is taken off.
    trims: [bool; 2],
    filled: AtomicU64,
}

impl Habits {
    /// Tries the template of `source`. `render` gives what it makes of messages with these roles and texts in a setting, if
    /// it takes them. Some ten thousand short renderings.
    pub(super) fn of(source: &str, render: impl Fn(Setting, &[(&str, &str)]) -> Option<String>) -> Self {
        let (mut settings, mut trials) = (Vec::new(), Vec::new());
        for setting in Setting::all() {
            let tried: Vec<Trial> =
                CONVERSATIONS.iter().filter_map(|roles| Trial::new(setting, roles, &render)).collect();
            let stands = |text: &String| tried.iter().all(|trial| trial.shows(text, &render));
            if !tried.is_empty() && every_kind_of_text().iter().all(stands) {
                settings.push(setting);
                trials.extend(tried);
            }
        }
        let stands = |text: &str| trials.iter().all(|trial| trial.shows(text, &render));
        let prints_texts = !trials.is_empty();
        let mut acted_on = source::words(source);
        acted_on.retain(|word| prints_texts && (is_marker(word) || !sentences(word).iter().all(|text| stands(text))));
        // A text with a word has those that the word has.
        let shortest = |word: &&String| !acted_on.iter().any(|other| other != *word && word.contains(other.as_str()));
        let acted_on = ActedOn::new(acted_on.iter().filter(shortest).map(String::as_bytes));
        let trims = [["\n\nx", "  x"], ["x\n\n", "x  "]].map(|texts| !texts.into_iter().all(stands));
        Self { acted_on, prints_texts: prints_texts.into(), settings, trims, filled: AtomicU64::new(0) }
    }

    /// Whether it was tried in this setting, and prints texts there.
    pub(super) fn knows(&self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// Whether `text` is one that is printed as it is.
    pub(super) fn prints(&self, text: &str) -> bool {
        let edges = [text.chars().next(), text.chars().next_back()];
        let trimmed = |edge: Option<char>| edge.is_none_or(|edge| edge.is_whitespace() || edge.is_control());
        let is_trimmed = edges.into_iter().zip(self.trims).any(|(edge, trims)| trims && trimmed(edge));
        self.prints_texts() && !text.is_empty() && !is_trimmed && !self.acted_on.any_in(text.as_bytes())
    }

    /// Whether there are such texts.
    pub(super) fn prints_texts(&self) -> bool {
        self.prints_texts.load(Ordering::Relaxed)
    }

    /// A conversation was filled in. Whether it is one to be rendered, too.
    pub(super) fn is_to_be_compared(&self) -> bool {
        self.filled.fetch_add(1, Ordering::Relaxed).is_multiple_of(COMPARED_EVERY)
    }

    #[cfg(test)]
    pub(super) fn has_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed) > 0
    }

    /// A conversation that was filled in was rendered, too. If it came to something else, all are rendered from now on.
    pub(super) fn compared(&self, filled: &str, rendered: String) -> String {
        if filled != rendered {
            self.prints_texts.store(false, Ordering::Relaxed);
            tracing::warn!(
                "a chat template does more with a text than it did when it was tried: all chats are rendered"
            );
        }
        rendered
    }
}

/// Roles as templates take them; some take fewer.
const CONVERSATIONS: [&[&str]; 5] = [
    &["system", "user", "assistant", "user", "assistant", "user"],
    &["user", "assistant", "user"],
    &["user", "assistant", "tool"],
    &["user", "assistant"],
    &["user"],
];

/// A conversation whose texts are exchanged.
struct Trial {
    setting: Setting,
    roles: &'static [&'static str],
    pieces: Pieces,
}

impl Trial {
    /// `None` if the template does not take the roles, or does not print each text once.
    fn new(
        setting: Setting,
        roles: &'static [&'static str],
        render: &impl Fn(Setting, &[(&str, &str)]) -> Option<String>,
    ) -> Option<Self> {
        let marks: Vec<String> = (0..roles.len()).map(mark).collect();
        let messages: Vec<(&str, &str)> = roles.iter().copied().zip(marks.iter().map(String::as_str)).collect();
        Some(Self { setting, roles, pieces: Pieces::around_marks(&render(setting, &messages)?, roles.len())? })
    }

    /// Whether `text` stands in the prompt as it is, said by everybody.
    fn shows(&self, text: &str, render: &impl Fn(Setting, &[(&str, &str)]) -> Option<String>) -> bool {
        let messages: Vec<(&str, &str)> = self.roles.iter().map(|role| (*role, text)).collect();
        render(self.setting, &messages)
            .is_some_and(|rendered| rendered == self.pieces.filled_behind(0, self.roles.iter().map(|_| text)))
    }
}

/// Templates look for such words in pairs, one of which may be harmless alone.
fn is_marker(word: &str) -> bool {
    word.len() > 2 && word.contains(['<', '>', '[', ']', '|'])
}

/// Words that texts are searched for.
#[derive(Debug)]
enum ActedOn {
    /// All have a sign, `<` mostly: it is enough to look where a text has it.
    Around(Sign),
    Any(Box<[Finder<'static>]>),
}

/// A sign, and words that have it at the place that is told with each.
#[derive(Debug)]
struct Sign {
    sign: u8,
    words: Box<[(usize, Box<[u8]>)]>,
    /// What stands behind the sign in them. Most signs of a text are none of theirs.
    next: Box<[u8]>,
}

impl ActedOn {
    fn new<'a>(words: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut signs = words.clone().next().unwrap_or_default().iter().copied().filter(u8::is_ascii_punctuation);
        let around = signs.find_map(|sign| Sign::of(sign, words.clone()));
        let any = || Self::Any(words.map(|word| Finder::new(word).into_owned()).collect());
        around.map_or_else(any, Self::Around)
    }

    fn any_in(&self, text: &[u8]) -> bool {
        match self {
            Self::Around(sign) => sign.any_in(text),
            Self::Any(words) => words.iter().any(|word| word.find(text).is_some()),
        }
    }
}

impl Sign {
    /// `None` unless all of `words` have it, and something behind it.
    fn of<'a>(sign: u8, words: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let placed = words.map(|word| Some((memchr(sign, word)?, Box::from(word))));
        let words: Box<[(usize, Box<[u8]>)]> = placed.collect::<Option<_>>()?;
        let mut next: Vec<u8> =
            words.iter().map(|(place, word)| word.get(place + 1).copied()).collect::<Option<_>>()?;
        next.sort_unstable();
        next.dedup();
        Some(Self { sign, words, next: next.into() })
    }

    fn any_in(&self, text: &[u8]) -> bool {
        memchr_iter(self.sign, text).any(|at| {
            let begins = |(place, word): &(usize, Box<[u8]>)| {
                at.checked_sub(*place).is_some_and(|from| text[from..].starts_with(word))
            };
            text.get(at + 1).is_some_and(|next| self.next.contains(next)) && self.words.iter().any(begins)
        })
    }
}

/// Texts with a word at each place where a template may look for it; none with white space at its ends, which is tried by
/// itself.
fn sentences(word: &str) -> Vec<String> {
    let texts = [format!("x{word}x"), format!("x {word} x"), format!("{word}x"), format!("x{word}"), word.to_owned()];
    texts.into_iter().filter(|text| !text.is_empty() && text.trim() == text).collect()
}

/// Texts that show what is done to every text: quoted, escaped, cut, read as a number.
fn every_kind_of_text() -> [String; 5] {
    let printable: String = (b'!'..=b'~').map(char::from).collect();
    let long = "Lorem ipsum, dolor\n\n\tsit amet. ".repeat(500) + "end";
    [printable, long, "İstanbul ǅ ß e\u{301} 漢字 👍🏽".to_owned(), "1.50".to_owned(), r#"{"a": [1, null]}"#.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::super::setting::Thinking;
    use super::*;

    /// Of a template that prints roles and what `text` makes of texts, and has these words.
    fn habits(words: &str, text: impl Fn(&str) -> String) -> Habits {
        Habits::of(words, |_, messages| {
            Some(messages.iter().map(|(role, said)| format!("<{role}>{}", text(said))).collect())
        })
    }

    #[test]
    fn texts_without_words_that_change_something_stand_as_they_are() {
        let source = "{{ '</think>' ~ 'user' ~ 'stop' ~ '\\n' ~ '; ' }}";
        let habits = habits(source, |text| text.trim().split("stop").next().unwrap().replace("; ", ", "));
        for text in ["a", "the user\n\tsays: é </b>", "sto", "a;b"] {
            assert!(habits.prints(text), "{text}");
        }
        for text in ["", " a", "a\n", "\u{1f}a", "a</think>b", "stop", "unstoppable", "a; b"] {
            assert!(!habits.prints(text), "{text}");
        }
    }

    #[test]
    fn words_that_act_in_one_setting_alone_are_acted_on_and_settings_that_change_every_text_are_not_known() {
        let habits = Habits::of("{{ 'search' ~ 'stop' }}", |setting, messages| {
            let text = |text: &str| match (setting.tools, setting.thinking) {
                (true, Thinking::Off) => text.to_lowercase(),
                (true, _) => text.replace("search", "(S)"),
                (false, _) => text.to_owned(),
            };
            Some(messages.iter().map(|(role, said)| format!("<{role}>{}", text(said))).collect())
        });
        assert!(habits.prints("stop") && !habits.prints("I search"));
        let known = |tools, thinking| habits.knows(Setting { tools, thinking });
        assert!(known(false, Thinking::Off) && known(true, Thinking::On) && !known(true, Thinking::Off));
    }

    #[test]
    fn words_are_found_wherever_they_are() {
        let words = |words: &[&'static str]| ActedOn::new(words.iter().copied().map(str::as_bytes));
        let [around, second, any] = [&["</think>", "a<b"][..], &["</a>", "b/c"], &["[b]", "stop"]].map(words);
        assert!(matches!((&around, &any), (ActedOn::Around(Sign { sign: b'<', .. }), ActedOn::Any(_))));
        assert!(matches!(&second, ActedOn::Around(Sign { sign: b'/', .. })));
        for text in ["</think>", "x</think>y", "<</think>", "a<b", "< a<b", "a<a<b"] {
            assert!(around.any_in(text.as_bytes()), "{text}");
        }
        for text in ["", "<", "a<", "<b", "</think", "think>", "<a<"] {
            assert!(!around.any_in(text.as_bytes()), "{text}");
        }
        assert!(second.any_in(b"x/b/c") && second.any_in(b"</a>") && !second.any_in(b"/a> b/"));
        assert!(matches!(words(&["a>", "b>c"]), ActedOn::Any(_)), "nothing behind the sign");
        assert!(any.any_in(b"unstoppable") && any.any_in(b"[b]") && !any.any_in(b"[stp]"));
        assert!(!words(&[]).any_in(b"<"));
    }

    #[test]
    fn white_space_matters_at_the_end_that_is_trimmed() {
        let printed = |habits: &Habits| ["a", " a", "a ", "\na\n", "\u{3000}a"].map(|text| habits.prints(text));
        assert_eq!(printed(&habits("", str::to_owned)), [true; 5]);
        assert_eq!(
            printed(&habits("", |text| text.trim_start_matches('\n').to_owned())),
            [true, false, true, false, false]
        );
        assert_eq!(printed(&habits("", |text| text.trim_end().to_owned())), [true, true, false, false, true]);
        assert_eq!(printed(&habits("", |text| text.trim().to_owned())), [true, false, false, false, false]);
    }

    #[test]
    fn a_template_that_changes_every_text_prints_none() {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let cut = |text: &str| text.chars().take(1000).collect();
        let escaped = |text: &str| text.replace('<', "&lt;");
        let lower = |text: &str| text.to_lowercase();
        let said_twice = |text: &str| text.repeat(2);
        let changes: [&dyn Fn(&str) -> String; 5] = [&quoted, &cut, &escaped, &lower, &said_twice];
        for (at, change) in changes.iter().enumerate() {
            assert!(!habits("", change).prints("a"), "{at}");
        }
        assert!(!Habits::of("", |_, _| None).prints("a"));
        assert!(habits("", str::to_owned).prints("a"));
    }

    #[test]
    fn a_difference_while_serving_ends_it() {
        let habits = habits("", str::to_owned);
        let compared = (0..=COMPARED_EVERY).filter(|_| habits.is_to_be_compared()).count();
        assert_eq!(compared, 2);
        assert_eq!(habits.compared("a", "a".to_owned()), "a");
        assert!(habits.prints("a"));
        assert_eq!(habits.compared("a", "b".to_owned()), "b");
        assert!(!habits.prints("a"));
    }
}
