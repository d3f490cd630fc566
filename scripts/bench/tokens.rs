//! How a request becomes token ids. This file is all that knows.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, bail};
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::hf::{self, TokenizerFiles};
use warmpath::tokenize::{ModelTokenizer, Prompts};

/// Messages of a chat that are read.
const MESSAGES_MAX: usize = 4_096;

/// A model's tokenizer with its template.
pub(crate) struct Tokens(ModelTokenizer);

impl Tokens {
    /// Reads them from a folder.
    ///
    /// # Errors
    /// When they are not there.
    pub(crate) fn load(folder: &Path) -> anyhow::Result<Self> {
        let files =
            TokenizerFiles { tokenizer: folder.join("tokenizer.json"), chat_template: None, model_tokens_max: None };
        let hint = || format!("no tokenizer in {}: scripts/fetch-tokenizer.sh fetches it", folder.display());
        Ok(Self(hf::load(&files).with_context(hint)?))
    }

    /// The token ids of a request, by the very way that a gateway takes: its fields, the template, the tokenizer.
    ///
    /// # Errors
    /// When the body is refused or its ids cannot be told.
    pub(crate) fn of(&self, endpoint: Endpoint, body: &[u8]) -> anyhow::Result<Vec<u32>> {
        let mut view = RequestView::parse(endpoint, body, MESSAGES_MAX)?;
        match self.0.prompts(&mut view, SystemTime::UNIX_EPOCH) {
            Prompts::Ids(mut prompts) if prompts.len() == 1 => Ok(prompts.remove(0)),
            Prompts::Ids(prompts) => bail!("{} prompts in one request", prompts.len()),
            Prompts::Unknown(reason) => bail!("the token ids are unknown: {}", reason.label()),
        }
    }

    /// How many tokens a text has as a completion's prompt.
    pub(crate) fn count(&self, text: &str) -> anyhow::Result<u32> {
        let body = serde_json::json!({ "model": "bench", "prompt": text, "add_special_tokens": false });
        let ids = self.of(Endpoint::Completions, body.to_string().as_bytes())?;
        Ok(u32::try_from(ids.len())?)
    }
}
