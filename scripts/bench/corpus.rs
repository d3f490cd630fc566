//! The text that prompts are made of: lines of this repository's prose and code, put together anew for every prompt.
//!
//! Lines are kept as they stand in JSON. A line knows how many tokens it has where another line follows and where its
//! message ends; neither depends on its neighbours, since byte-level BPE never joins across a line's end that non-space
//! follows, or across an added token. So whoever makes a prompt knows its length without a tokenizer.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::draws::Draws;

/// What is read, below the repository's root.
const SOURCES: [&str; 4] = ["ARCHITECTURE.md", "README.md", "router-core/src", "indexer/src"];
/// Bytes of a line.
const LINE_BYTES: std::ops::RangeInclusive<usize> = 30..=110;

/// One line.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// As it stands between the quotes of a JSON string.
    json: String,
    /// Its tokens with the line feed behind it.
    within: u32,
    /// Its tokens as the last line of a message.
    last: u32,
}

/// All lines.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Corpus {
    lines: Vec<Line>,
    /// Tokens of a chat of ten messages beside their texts.
    pub(crate) chat_overhead: u32,
}

impl Corpus {
    /// The lines of the repository at `root`. `count` tells the tokens of a text.
    ///
    /// # Errors
    /// When the sources cannot be read.
    pub(crate) fn read(root: &Path, count: &mut dyn FnMut(&str) -> u32) -> anyhow::Result<Self> {
        let mut known = HashSet::new();
        let mut lines = Vec::new();
        for file in files(root)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            for line in text.lines().map(str::trim) {
                if !is_plain(line) || !known.insert(line.to_owned()) {
                    continue;
                }
                let quoted = serde_json::to_string(line).context("a line is no JSON")?;
                let json = quoted[1..quoted.len() - 1].to_owned();
                lines.push(Line { json, within: count(&format!("{line}\n")), last: count(line) });
            }
        }
        ensure!(lines.len() >= 1_000, "{} has only {} lines of text", root.display(), lines.len());
        Ok(Self { lines, chat_overhead: 0 })
    }

    /// Appends lines drawn from all, at least `bytes` of them, to a JSON string, and tells how many tokens a message of
    /// them has.
    pub(crate) fn message(&self, draws: &mut Draws, bytes: usize, json: &mut String) -> u32 {
        let mut tokens = 0;
        let start = json.len();
        loop {
            let line = &self.lines[draws.below(self.lines.len())];
            json.push_str(&line.json);
            if json.len() - start >= bytes {
                return tokens + line.last;
            }
            json.push_str("\\n");
            tokens += line.within;
        }
    }
}

/// Whether the count of a line's tokens does not depend on what surrounds it.
fn is_plain(line: &str) -> bool {
    LINE_BYTES.contains(&line.len()) && line.is_ascii() && !line.contains("<|") && !line.contains("think>")
}

fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut open: Vec<PathBuf> = SOURCES.iter().map(|source| root.join(source)).collect();
    let mut files = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
            open.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_tokens_of_its_lines() {
        let line = |json: &str| Line { json: json.to_owned(), within: 3, last: 2 };
        let corpus = Corpus { lines: vec![line("say \\\"a\\\""), line("and so it")], chat_overhead: 0 };
        let mut json = String::from("x");
        assert_eq!(corpus.message(&mut Draws::started_at(1), 25, &mut json), 8);
        let parsed: String = serde_json::from_str(&format!("\"{json}\"")).unwrap();
        assert_eq!(parsed.lines().count(), 3);
    }

    #[test]
    fn only_plain_lines_are_taken() {
        assert!(is_plain("a line of prose that is long enough"));
        assert!(!is_plain("too short"));
        assert!(!is_plain("a line with an added token: <|im_end|> "));
        assert!(!is_plain("a line that is not plain ASCII: µ µ µ"));
    }
}
