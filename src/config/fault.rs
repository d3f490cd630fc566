//! What is wrong with a configuration, and where.

use std::fmt;

use super::place::Place;
use super::secrecy::without_credentials;

/// The most characters of a message. Messages quote values, and a value may be as long as the file.
const MESSAGE_CHARS_MAX: usize = 300;

/// One fault. Displays as one line, `FILE:line:column: message`, whatever the file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The value or key that is at fault.
    pub place: Place,
    /// What is wrong with it; without control characters, and of bounded length.
    pub message: String,
}

impl Fault {
    /// A fault at `place`.
    pub(super) fn new(place: Place, message: &str) -> Self {
        let message = without_credentials(message);
        let mut clean = String::with_capacity(message.len().min(MESSAGE_CHARS_MAX));
        for (count, character) in message.chars().enumerate() {
            if count == MESSAGE_CHARS_MAX {
                clean.push('…');
                break;
            }
            if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
                clean.extend(character.escape_default());
            } else {
                clean.push(character);
            }
        }
        Self { place, message: clean }
    }

    /// The faulty line of `text` with a caret below the column, both indented; `None` where the place lies elsewhere
    /// than in `source`.
    pub(super) fn excerpt(&self, source: &str, text: &str) -> Option<String> {
        if &*self.place.source != source {
            return None;
        }
        let line = text.lines().nth(usize::try_from(self.place.line).ok()?.checked_sub(1)?)?;
        let before = usize::try_from(self.place.column).ok()?.checked_sub(1)?;
        let shown: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(format!("    {shown}\n    {:before$}^", ""))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// `, did you mean …?` if one of `known` is near, that is one letter in three off and at most two, else a list of them.
pub(super) fn hint(word: &str, known: &[impl AsRef<str>]) -> String {
    let known = known.iter().map(AsRef::as_ref);
    let far = (word.chars().count() / 3).min(2);
    // Distances cost the product of both lengths, and no key of ours is that long.
    let near = known.clone().filter(|_| word.len() <= 64).map(|candidate| (distance(word, candidate), candidate));
    match near.min() {
        Some((letters, candidate)) if letters <= far => format!(", did you mean `{candidate}`?"),
        Some(_) => format!(" (known: {})", known.collect::<Vec<_>>().join(", ")),
        None => String::new(),
    }
}

/// Levenshtein's distance: letters to insert, remove or replace.
pub(super) fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (left, right, expected) in
            [("", "abc", 3), ("policy", "policy", 0), ("polcy", "policy", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }

    #[test]
    fn a_near_miss_gets_a_suggestion_and_another_word_the_list() {
        assert_eq!(hint("polcy", &["seed", "policy"]), ", did you mean `policy`?");
        assert_eq!(hint("foo", &["log", "policy"]), " (known: log, policy)");
        assert_eq!(hint("colour", &[""; 0]), "");
    }

    #[test]
    fn a_message_is_one_bounded_line() {
        let fault = Fault::new(Place::start("a.yaml"), "got `a\nb\u{1b}[2J`");
        assert_eq!(fault.to_string(), "a.yaml:1:1: got `a\\nb\\u{1b}[2J`");
        assert_eq!(Fault::new(Place::start("a"), &"x".repeat(1_000)).message.chars().count(), 301);
    }

    #[test]
    fn an_excerpt_points_at_the_column() {
        let mut fault = Fault::new(Place::start("a.yaml"), "bad");
        (fault.place.line, fault.place.column) = (2, 5);
        assert_eq!(fault.excerpt("a.yaml", "one\nü: 2x\n"), Some("    ü: 2x\n        ^".to_owned()));
        assert_eq!(fault.excerpt("b.yaml", "one\ntwo\n"), None);
        assert_eq!(fault.excerpt("a.yaml", "one"), None);
    }
}
