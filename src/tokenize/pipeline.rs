//! What a `tokenizer.json` says of how a text is taken apart before its pieces become tokens.

use serde::Deserialize;
use serde_json::Value;

/// The parts of the file that cutting a text depends on.
#[derive(Debug, Deserialize)]
pub(super) struct Pipeline {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Option<Value>,
    #[serde(default)]
    pre_tokenizer: Option<Value>,
    model: Model,
}

/// A token that is found in the text before anything else.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// A pattern that splits texts into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// GPT-2's own: `\s+(?!\S)` is its only rule for line breaks.
    Gpt2,
    /// cl100k, Llama 3, Qwen 2 to 3.5: line breaks end a word, `\s*[\r\n]+`.
    Lines,
    /// o200k and its kin: as `Lines`, but a slash may follow a sign's line breaks.
    LinesOrSlash,
    /// A pattern that nobody has read.
    Unknown,
}

/// The patterns that were read, with what was found. Compared as strings: nothing is concluded from similarity.
pub(super) const PATTERNS: [(&str, Words); 6] = [
    // Qwen 2, 2.5 and 3.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Words::Lines,
    ),
    // cl100k and Llama 3.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Words::Lines,
    ),
    // Qwen 3.5.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Words::Lines,
    ),
    // o200k: GPT-4o, gpt-oss.
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Words::LinesOrSlash,
    ),
    // Mistral's Tekken: o200k without contractions, a digit a piece.
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Words::LinesOrSlash,
    ),
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", Words::Gpt2),
];

impl Pipeline {
    /// Reads the parts of a `tokenizer.json`; the vocabulary is skipped.
    ///
    /// # Errors
    /// The text is no JSON, or no tokenizer.
    pub(super) fn read(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// How texts become words, if each word becomes tokens by itself and nothing depends on where in the text a piece
    /// stands; else none.
    pub(super) fn words(&self) -> Option<Words> {
        let Model { kind, dropout, continuing_subword_prefix, end_of_word_suffix } = &self.model;
        let empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
        let plain =
            dropout.is_none_or(|chance| chance == 0.0) && empty(continuing_subword_prefix) && empty(end_of_word_suffix);
        if kind != "BPE" || !plain || !self.keeps_or_composes() {
            return None;
        }
        let steps = self.pre_tokenizer.as_ref().map(steps)?;
        match steps.as_slice() {
            [only] if is(only, "ByteLevel") => {
                (!flag(only, "add_prefix_space", true) && flag(only, "use_regex", true)).then_some(Words::Gpt2)
            }
            [splits @ .., last] if !splits.is_empty() && splits.iter().all(splits_alone) => {
                let bytes = is(last, "ByteLevel") && !flag(last, "add_prefix_space", true);
                if !bytes || flag(last, "use_regex", true) {
                    return None;
                }
                Some(if let [only] = splits { known(only) } else { Words::Unknown })
            }
            _ => None,
        }
    }

    /// Whether texts are left as they are, or composed (NFC), which an ASCII character always bounds.
    fn keeps_or_composes(&self) -> bool {
        self.normalizer.as_ref().is_none_or(|normalizer| normalizer.is_null() || is(normalizer, "NFC"))
    }

    /// Whether all added tokens are found as they stand in the text and take nothing beside them along.
    pub(super) fn adds_plainly(&self) -> bool {
        let composes = self.normalizer.as_ref().is_some_and(|normalizer| !normalizer.is_null());
        self.added_tokens.iter().all(|token| {
            let AddedToken { content, single_word, lstrip, rstrip, normalized } = token;
            !(content.is_empty() || *single_word || *lstrip || *rstrip || *normalized && composes)
        })
    }
}

/// The steps of a pre-tokenizer, one after the other.
fn steps(pre_tokenizer: &Value) -> Vec<&Value> {
    match pre_tokenizer.get("pretokenizers").and_then(Value::as_array) {
        Some(list) if is(pre_tokenizer, "Sequence") => list.iter().collect(),
        _ => vec![pre_tokenizer],
    }
}

fn is(part: &Value, kind: &str) -> bool {
    part.get("type").and_then(Value::as_str) == Some(kind)
}

fn flag(part: &Value, name: &str, default: bool) -> bool {
    part.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// Whether a step cuts a text by a pattern and keeps all of it.
fn splits_alone(step: &&Value) -> bool {
    is(step, "Split")
        && step.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && !flag(step, "invert", false)
        || is(step, "Digits")
}

fn known(split: &Value) -> Words {
    let pattern = split.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
    let found = PATTERNS.iter().find(|(known, _)| Some(*known) == pattern);
    found.map_or(Words::Unknown, |(_, words)| *words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pipeline(pre_tokenizer: Value, normalizer: Value) -> Pipeline {
        let file = json!({
            "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": null, "end_of_word_suffix": ""},
        });
        Pipeline::read(&file.to_string()).unwrap()
    }

    fn sequence(pattern: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]})
    }

    #[test]
    fn patterns_are_known_by_their_exact_text() {
        for (pattern, words) in PATTERNS {
            assert_eq!(pipeline(sequence(pattern), json!({"type": "NFC"})).words(), Some(words));
            assert_eq!(pipeline(sequence(&format!("{pattern}|x")), json!(null)).words(), Some(Words::Unknown));
        }
        let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
        assert_eq!(pipeline(gpt2, json!(null)).words(), Some(Words::Gpt2));
    }

    #[test]
    fn what_depends_on_the_place_in_the_text_is_not_taken_apart() {
        for pre_tokenizer in [
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}),
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            json!({"type": "ByteLevel", "use_regex": true}),
            json!(null),
        ] {
            assert_eq!(pipeline(pre_tokenizer, json!(null)).words(), None);
        }
        assert_eq!(pipeline(sequence(PATTERNS[0].0), json!({"type": "Lowercase"})).words(), None);
        assert_eq!(pipeline(sequence(PATTERNS[0].0), json!({"type": "NFKC"})).words(), None);
        let mut dropping = pipeline(sequence(PATTERNS[0].0), json!(null));
        dropping.model.dropout = Some(0.1);
        assert_eq!(dropping.words(), None);
    }

    #[test]
    fn added_tokens_that_swallow_what_is_beside_them_are_not_plain() {
        let with = |token: Value, normalizer: Value| {
            let file = json!({"added_tokens": [token], "normalizer": normalizer, "model": {"type": "BPE"}});
            Pipeline::read(&file.to_string()).unwrap().adds_plainly()
        };
        assert!(with(json!({"content": "<s>", "id": 1, "special": true}), json!(null)));
        assert!(with(json!({"content": "<s>", "normalized": true}), json!(null)));
        assert!(!with(json!({"content": "<s>", "normalized": true}), json!({"type": "NFC"})));
        for flag in ["lstrip", "rstrip", "single_word"] {
            assert!(!with(json!({"content": "<s>", flag: true}), json!(null)), "{flag}");
        }
        assert!(!with(json!({"content": ""}), json!(null)));
    }
}
