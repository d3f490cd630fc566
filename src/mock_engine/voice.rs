//! How the engine turns text into tokens and its tokens into text.

use std::path::Path;

use warmpath_core::ids::TokenId;

use crate::error::BoxError;
use crate::openai::RequestView;
use crate::tokenize::{ModelTokenizer, Prompts};

/// A tokenizer, and the way back.
pub(super) struct Voice {
    tokenizer: ModelTokenizer,
    letters: bool,
}

impl Voice {
    /// The model's own tokenizer, or a token for each byte.
    pub(super) fn load(tokenizer: Option<&Path>) -> Result<Self, BoxError> {
        Ok(match tokenizer {
            None => Self { tokenizer: ModelTokenizer::bytes(), letters: true },
            Some(path) => Self { tokenizer: ModelTokenizer::load_file(path)?, letters: false },
        })
    }

    /// The request's prompts.
    pub(super) async fn prompts(&self, view: &RequestView<'_>) -> Prompts {
        self.tokenizer.prompts(view).await
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
