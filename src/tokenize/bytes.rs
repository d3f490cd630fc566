//! A tokenizer without a vocabulary, for tests and simulated engines: each byte of the text is a token.

use super::{ChatTemplate, ModelTokenizer, TokenizeError, Tokenizer};

/// Each byte is its own id, 0 to 255. There are no special tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesTokenizer;

impl Tokenizer for BytesTokenizer {
    fn encode(&self, text: &str, _special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }
}

/// ChatML without tools.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}\
     {{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
     {% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The byte tokenizer with [`CHAT_TEMPLATE`].
pub fn model() -> ModelTokenizer {
    let template = ChatTemplate::new(CHAT_TEMPLATE).expect("a test renders this template");
    ModelTokenizer::new(BytesTokenizer, Some(template))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::openai::{Endpoint, RequestView};

    #[test]
    fn a_chat_becomes_the_bytes_of_chatml() {
        let body = br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"\u00e9"}]}"#;
        let mut view = RequestView::parse(Endpoint::Chat, body, 4096).unwrap();
        let text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n";
        let ids = text.bytes().map(u32::from).collect();
        assert_eq!(model().ids(&mut view, SystemTime::UNIX_EPOCH), Ok(vec![ids]));
    }
}
