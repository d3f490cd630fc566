//! A request's prompts as characters, for policies that go by history: where token ids cannot be had, equal beginnings of
//! texts still mean equal beginnings of prompts.

use crate::openai::{Input, Prompt, RequestView};

/// Characters of a request that are looked at, over all its prompts: a quarter of a million tokens.
const CHARACTERS_MAX: usize = 1 << 20;

/// The Unicode characters of each prompt, as numbers. A chat is one prompt: its tools, then its messages, each as the
/// client wrote it, since the next turn repeats them so. None for prompts that are no text. O(characters).
pub fn characters(view: &RequestView<'_>) -> Vec<Vec<u32>> {
    let mut room = CHARACTERS_MAX;
    match &view.input {
        Input::Completion(Prompt::Texts(texts)) => {
            texts.iter().map(|text| decode([text.as_ref()].into_iter(), &mut room)).collect()
        }
        Input::Completion(_) => Vec::new(),
        Input::Chat(chat) => {
            let parts = chat.tools.iter().chain(&chat.messages).map(|part| part.get());
            vec![decode(parts, &mut room)]
        }
    }
}

/// The characters of `parts`, one after the other, as far as there is `room`.
fn decode<'a>(parts: impl Iterator<Item = &'a str> + Clone, room: &mut usize) -> Vec<u32> {
    let bytes = parts.clone().map(str::len).fold(0, usize::saturating_add);
    let mut decoded = Vec::with_capacity(bytes.min(*room));
    decoded.extend(parts.flat_map(str::chars).take(*room).map(u32::from));
    *room -= decoded.len();
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Endpoint;

    fn read(endpoint: Endpoint, body: &str) -> Vec<String> {
        let view = RequestView::parse(endpoint, body.as_bytes(), 4096).unwrap();
        let text = |prompt: Vec<u32>| prompt.into_iter().map(|c| char::from_u32(c).unwrap()).collect();
        characters(&view).into_iter().map(text).collect()
    }

    #[test]
    fn each_text_is_a_prompt_and_other_prompts_have_no_characters() {
        assert_eq!(read(Endpoint::Completions, r#"{"prompt":["a\u00e9","\ud83d\ude00"]}"#), ["aé", "😀"]);
        assert!(read(Endpoint::Completions, r#"{"prompt":[1,2]}"#).is_empty());
        assert!(read(Endpoint::Completions, r#"{"prompt_embeds":"AAAA"}"#).is_empty());
    }

    #[test]
    fn the_next_turn_of_a_chat_begins_as_the_last_one() {
        let turn = |more: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}{more}],"tools":[{{"x":1}}]}}"#);
            read(Endpoint::Chat, &body).remove(0)
        };
        let first = turn("");
        assert_eq!(first, r#"[{"x":1}]{"role":"user","content":"hi"}"#);
        assert!(turn(r#",{"role":"assistant","content":"ho"}"#).starts_with(&first));
    }

    #[test]
    fn no_more_characters_are_decoded_than_are_looked_at() {
        let body = format!(r#"{{"prompt":["{}","ab"]}}"#, "é".repeat(CHARACTERS_MAX - 1));
        let lengths: Vec<usize> = read(Endpoint::Completions, &body).iter().map(|text| text.chars().count()).collect();
        assert_eq!(lengths, [CHARACTERS_MAX - 1, 1]);
    }
}
