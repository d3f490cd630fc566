//! How the engine turns text into tokens and its tokens into text.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use warmpath_core::ids::TokenId;

use crate::error::BoxError;
use crate::openai::RequestView;
use crate::tokenize::hf::{TokenizerFiles, load};
use crate::tokenize::{Reason, TokenizeLimits, TokenizeShared, TokenizerHandle, bytes as byte_tokens};

/// A tokenizer, and the way back.
pub(super) struct Voice {
    tokenizer: TokenizerHandle,
    letters: bool,
}

impl Voice {
    /// The model's own tokenizer, or a token for each byte.
    pub(super) fn load(tokenizer: Option<&Path>) -> Result<Self, BoxError> {
        let model = match tokenizer {
            None => byte_tokens::model(),
            Some(path) => load(&TokenizerFiles {
                tokenizer: path.to_owned(),
                chat_template: None,
                chat_template_kwargs: None,
                model_tokens_max: None,
                check_every: None,
            })?,
        };
        let shared = Arc::new(TokenizeShared::new(TokenizeLimits::default()));
        Ok(Self { tokenizer: TokenizerHandle::ready(model, shared), letters: tokenizer.is_none() })
    }

    /// The request's prompts.
    pub(super) async fn ids(&self, body: &Bytes, view: &mut RequestView<'_>) -> Result<Vec<Vec<TokenId>>, Reason> {
        self.tokenizer.ids(body, view).await
    }

    /// A generated token as text. Where a token is a byte the text gives the token back, so that a next turn can hit
    /// what was generated; made-up tokens of a real vocabulary are shown by number.
    pub(super) fn text(&self, token: TokenId) -> String {
        match u8::try_from(token) {
            Ok(byte) if self.letters && byte.is_ascii() => char::from(byte).to_string(),
            _ => format!(" {token}"),
        }
    }
}
