//! Hugging Face's `tokenizer.json`, and the chat template beside it.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use warmpath_core::ids::TokenId;

use super::chat::ChatTemplate;
use super::{Loaded, Tokenizer};

struct Hf(tokenizers::Tokenizer);

impl Tokenizer for Hf {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, String> {
        let encoding = self.0.encode_fast(text, special).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// What `tokenizer_config.json` says that matters here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    chat_template: Option<Templates>,
    bos_token: Option<Special>,
    eos_token: Option<Special>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Special {
    Text(String),
    Token { content: String },
}

impl Special {
    fn text(special: Option<Special>) -> String {
        match special {
            Some(Special::Text(text) | Special::Token { content: text }) => text,
            None => String::new(),
        }
    }
}

/// Loads a tokenizer, and its chat template from `template`, from `chat_template.jinja` beside it, or from
/// `tokenizer_config.json` beside it. Slow: a hundred milliseconds and more.
///
/// # Errors
/// In words, with the file at fault.
pub fn load(file: &Path, template: Option<&Path>) -> Result<Loaded, String> {
    let mut tokenizer =
        tokenizers::Tokenizer::from_file(file).map_err(|error| format!("{}: {error}", file.display()))?;
    // What a training run had set must not cut or fill prompts.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    let settings = settings(&file.with_file_name("tokenizer_config.json"))?;
    let beside = file.with_file_name("chat_template.jinja");
    let source = match template {
        Some(path) => Some(read(path)?),
        None if beside.exists() => Some(read(&beside)?),
        None => settings.chat_template.and_then(default_template),
    };
    let (bos, eos) = (Special::text(settings.bos_token), Special::text(settings.eos_token));
    let template = source.map(|source| ChatTemplate::new(&source, &bos, &eos)).transpose()?;
    Ok(Loaded { tokenizer: Arc::new(Hf(tokenizer)), template: template.map(Arc::new) })
}

fn settings(path: &Path) -> Result<Settings, String> {
    if !path.exists() {
        return Ok(Settings::default());
    }
    serde_json::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

fn default_template(templates: Templates) -> Option<String> {
    match templates {
        Templates::One(template) => Some(template),
        Templates::Named(list) => list.into_iter().find(|named| named.name == "default").map(|named| named.template),
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
