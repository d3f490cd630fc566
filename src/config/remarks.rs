//! What the shipped file says of each key: the comment above it.

use std::collections::BTreeMap;

/// The file with every key, its default and a reason.
const SHIPPED: &str = include_str!("../../config/warmpath.yaml");

/// Comments by key, as `section.key`; items of lists are `[]`.
pub(super) fn of_shipped() -> BTreeMap<String, String> {
    remarks(SHIPPED)
}

/// The lines of each comment, without marks and indentation. A comment stands right above its key.
fn remarks(yaml: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    // Keys that lead to where we are, with their columns.
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in yaml.lines() {
        let text = line.trim_start();
        let mut column = line.len() - text.len();
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.strip_prefix(' ').unwrap_or(words));
            continue;
        }
        let mut text = text;
        if text.is_empty() {
            comment.clear();
            continue;
        }
        if let Some(item) = text.strip_prefix("- ") {
            above.retain(|(of, _)| *of < column);
            above.push((column, "[]".to_owned()));
            (text, column) = (item, column + 2);
        }
        let Some((key, _)) = text.split_once(':').filter(|(key, _)| is_key(key)) else { continue };
        above.retain(|(of, _)| *of < column);
        let path: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).chain([key]).collect();
        let path = path.join(".").replace(".[]", "[]");
        if !comment.is_empty() {
            found.entry(path).or_insert_with(|| comment.join("\n"));
        }
        comment.clear();
        above.push((column, key.to_owned()));
    }
    found
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_belongs_to_the_key_below_it() {
        let yaml = "# The head.\n\n# One.\n# More.\na:\n  # Two.\n  b: 1\n  c: 2\nlist:\n    # Three.\n  - d: 1\n    # Four.\n    e: 2\n  - d: 3\n# Five.\nf: 1\n";
        let found: Vec<(String, String)> = remarks(yaml).into_iter().collect();
        let expected =
            [("a", "One.\nMore."), ("a.b", "Two."), ("f", "Five."), ("list[].d", "Three."), ("list[].e", "Four.")];
        assert_eq!(found, expected.map(|(key, words)| (key.to_owned(), words.to_owned())));
    }

    #[test]
    fn the_shipped_file_has_something_to_say_of_its_keys() {
        let found = of_shipped();
        for key in ["listen.data", "models[].tokenizer", "workers[].max_num_seqs", "routing.kv.alpha", "decisions.kept"]
        {
            assert!(found.contains_key(key), "{key}");
        }
    }
}
