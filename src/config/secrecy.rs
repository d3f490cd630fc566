//! What of a configuration no message shows: the values of keys that hold secrets, and passwords in addresses.

use std::collections::BTreeSet;

use super::document::{Content, Node, Scalar};
use super::fault::distance;

/// Keys whose values are secrets, wherever they stand.
const KEYS: [&str; 6] = ["admin_token", "api_key", "password", "token", "nkey_seed", "credentials"];

/// Sections whose values are, whatever their keys are called, with the section that they lie in.
const SECTIONS: [(&str, &str); 1] = [("tracing", "headers")];

/// What stands in the place of a secret.
const MASK: &str = "[secret]";

/// Whether the value of `key` in the section `above` is to be kept to ourselves. Keys with a slip of the pen are, too: they
/// are at fault, and so their lines are shown.
fn is_secret(above: &str, key: &str) -> bool {
    let is_named = |name: &str| distance(key, name) <= if name.len() > 6 { 2 } else { 1 };
    (key.len() <= 64 && KEYS.iter().any(|name| is_named(name))) || SECTIONS.contains(&(above, key))
}

/// Lines of a configuration's text that must not be shown.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    lines: BTreeSet<u32>,
    /// Where the text is no document, nobody knows where a value ends.
    all: bool,
}

impl Hidden {
    /// Those of `text`, which is called `source`, and of which `root` was made, if anything.
    pub(super) fn of(root: Option<&Node>, source: &str, text: &str) -> Self {
        let named = |line: &str| {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            words.any(|word| is_secret("", word) || SECTIONS.iter().any(|(_, section)| word == *section))
                || (line.contains("://") && line.contains('@'))
        };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| named(line)).map(|(number, _)| number);
        let mut hidden = Self { lines: lines.collect(), all: false };
        match root {
            Some(root) => hidden.mark(root, ("", ""), false, source),
            None => hidden.all = !hidden.lines.is_empty(),
        }
        hidden
    }

    /// Whether this line is one of them.
    pub(super) fn has(&self, line: u32) -> bool {
        self.all || self.lines.contains(&line)
    }

    fn mark(&mut self, node: &Node, (above, key): (&str, &str), is_below: bool, source: &str) {
        let is_below = is_below || is_secret(above, key);
        match &node.content {
            Content::Scalar(scalar) if is_below && &*node.place.source == source => {
                let first = node.place.line;
                let more = u32::try_from(scalar.text.matches('\n').count()).unwrap_or(u32::MAX);
                self.lines.extend(first..=first.saturating_add(more));
            }
            Content::Scalar(_) => {}
            Content::List(list) => {
                list.items.iter().for_each(|item| self.mark(item, (above, key), is_below, source));
            }
            Content::Map(map) => {
                map.entries.iter().for_each(|entry| self.mark(&entry.node, (key, &entry.key), is_below, source));
            }
        }
    }
}

/// `message` about the value at `path`, without the value where that is a secret.
pub(super) fn told(message: &str, root: &Node, path: &[usize]) -> String {
    let (mut node, mut key, mut is_below) = (root, "", false);
    for step in path {
        match &node.content {
            Content::Map(map) => {
                let Some(entry) = map.entries.get(*step) else { break };
                is_below |= is_secret(key, &entry.key);
                (node, key) = (&entry.node, &entry.key);
            }
            Content::List(list) => {
                let Some(item) = list.items.get(*step) else { break };
                node = item;
            }
            Content::Scalar(_) => break,
        }
    }
    match &node.content {
        Content::Scalar(Scalar { text, .. }) if is_below => message.replace(&format!("`{text}`"), &format!("`{MASK}`")),
        _ => message.to_owned(),
    }
}

/// `message` without what stands before the `@` of addresses in it.
pub(super) fn without_credentials(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(scheme) = rest.find("://") {
        let (before, after) = rest.split_at(scheme + "://".len());
        shown.push_str(before);
        let end = after.find(['/', '`', '"', '\'']).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str(MASK);
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_credentials_and_nothing_else() {
        for (message, expected) in [
            ("got `http://u:p@h ost`", "got `http://[secret]@h ost`"),
            ("`nats://k@a`, `http://b/c@d`", "`nats://[secret]@a`, `http://b/c@d`"),
            ("a@b and http://c", "a@b and http://c"),
            ("http://u:p@w@h", "http://[secret]@h"),
        ] {
            assert_eq!(without_credentials(message), expected);
        }
    }

    #[test]
    fn keys_with_a_slip_are_secret_and_those_of_other_things_are_not() {
        for key in ["token", "admin_token", "admin_tokn", "api-key", "apikey", "passwort", "tokens"] {
            assert!(is_secret("", key), "{key}");
        }
        for key in ["tokenizer", "key", "model", "name", "headers", "policy", "topic", "certificate"] {
            assert!(!is_secret("limits", key), "{key}");
        }
        assert!(is_secret("tracing", "headers"));
    }
}
