//! How a request becomes token ids, and the hashes of its blocks. This file is all that knows.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use bytes::Bytes;
use tokio::runtime::Runtime;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::hf::{self, HfTokenizer, TokenizerFiles};
use warmpath::tokenize::{ChatTemplate, ModelTokenizer, Prompts, TokenizeLimits, TokenizeShared, TokenizerHandle};
use warmpath_core::blocks::Root;

/// Messages of a chat that are read.
const MESSAGES_MAX: usize = 4_096;

/// A model's tokenizer with its template: as a gateway has it, and the reference.
pub(crate) struct Tokens {
    runtime: Runtime,
    handle: TokenizerHandle,
    reference: ModelTokenizer,
}

impl Tokens {
    /// Reads them from a folder.
    ///
    /// # Errors
    /// When they are not there.
    pub(crate) fn load(folder: &Path) -> anyhow::Result<Self> {
        let hint = || format!("no tokenizer in {}: scripts/fetch-tokenizer.sh fetches it", folder.display());
        let file = folder.join("tokenizer.json");
        let files = TokenizerFiles {
            tokenizer: file.clone(),
            chat_template: None,
            chat_template_kwargs: None,
            model_tokens_max: None,
            check_every: None,
        };
        let fast = hf::load(&files).with_context(hint)?;
        let config = std::fs::read(folder.join("tokenizer_config.json")).with_context(hint)?;
        let config: serde_json::Value = serde_json::from_slice(&config)?;
        let template = ChatTemplate::new(config["chat_template"].as_str().context("no chat template")?)?;
        let shared = Arc::new(TokenizeShared::new(TokenizeLimits::default()));
        Ok(Self {
            runtime: Runtime::new()?,
            handle: TokenizerHandle::ready(fast, shared),
            reference: ModelTokenizer::new(HfTokenizer::from_file(&file)?, Some(template)),
        })
    }

    /// What placing needs of a request, by the very way that a gateway takes.
    ///
    /// # Errors
    /// When the body is refused or its ids cannot be told.
    pub(crate) fn prompts(&self, endpoint: Endpoint, body: &Bytes, root: &Root) -> anyhow::Result<Prompts> {
        let mut view = RequestView::parse(endpoint, body, MESSAGES_MAX)?;
        match self.runtime.block_on(self.handle.prompts(body, &mut view, root)) {
            Prompts::Unknown(reason) => bail!("the token ids are unknown: {}", reason.label()),
            known => Ok(known),
        }
    }

    /// The token ids of a request by the reference.
    ///
    /// # Errors
    /// When the body is refused or its ids cannot be told.
    pub(crate) fn reference(&self, endpoint: Endpoint, body: &Bytes) -> anyhow::Result<Vec<u32>> {
        let mut view = RequestView::parse(endpoint, body, MESSAGES_MAX)?;
        match self.reference.ids(&mut view, SystemTime::UNIX_EPOCH) {
            Ok(mut prompts) if prompts.len() == 1 => Ok(prompts.remove(0)),
            Ok(prompts) => bail!("{} prompts in one request", prompts.len()),
            Err(reason) => bail!("the token ids are unknown: {}", reason.label()),
        }
    }

    /// How many tokens a text has as a completion's prompt.
    ///
    /// # Errors
    /// When its ids cannot be told.
    pub(crate) fn count(&self, text: &str) -> anyhow::Result<u32> {
        let body = serde_json::json!({ "model": "bench", "prompt": text, "add_special_tokens": false });
        let ids = self.reference(Endpoint::Completions, &body.to_string().into())?;
        Ok(u32::try_from(ids.len())?)
    }
}
