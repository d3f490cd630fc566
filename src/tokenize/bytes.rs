//! A token for each byte: tests, the demo and the simulated engine need no vocabulary.

use std::sync::Arc;

use warmpath_core::ids::TokenId;

use super::chat::ChatTemplate;
use super::{Loaded, Tokenizer};

/// ChatML, as many models have it.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, text: &str, _special: bool) -> Result<Vec<TokenId>, String> {
        Ok(text.bytes().map(TokenId::from).collect())
    }
}

/// The tokenizer and its template.
pub fn loaded() -> Loaded {
    let template = ChatTemplate::new(TEMPLATE, "", "").expect("the template is well formed");
    Loaded { tokenizer: Arc::new(Bytes), template: Some(Arc::new(template)) }
}
