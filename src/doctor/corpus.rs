//! Texts and chats over which tokenizers disagree: what one normalises, splits, strips or takes for a special token, the
//! other may not.

use serde_json::{Value, json};

use crate::openai::Endpoint;

/// Something to be tokenized.
pub(super) struct Sample {
    /// How it is called in findings.
    pub(super) name: &'static str,
    /// Text or chat.
    pub(super) endpoint: Endpoint,
    /// The fields of a request that say it: `prompt`, or `messages` and what goes with them.
    pub(super) fields: Value,
}

const TEXTS: &[(&str, &str)] = &[
    ("plain", "The quick brown fox jumps over the lazy dog."),
    ("one letter", "a"),
    ("space", " "),
    ("spaces", "  two   three    four     "),
    ("leading space", " leading and trailing "),
    ("newlines", "\n\none\n\n\ntwo\n"),
    ("carriage returns", "one\r\ntwo\rthree\r\n"),
    ("tabs", "\tone\t\ttwo\n\t\tthree"),
    ("numbers", "0 7 42 007 1234567890 3.14159 1,000,000 1e-9 0xDEADBEEF 2026-11-21"),
    ("punctuation", "...!?!?;:--——«»„“”‘’…()[]{}<>@#$%^&*_+=~`|\\/"),
    ("contractions", "I'm you're he'll they've we'd isn't DON'T O'Neill's"),
    ("camel case", "camelCase PascalCase snake_case SCREAMING_CASE kebab-case HTTPServer2"),
    ("code", "fn main() {\n    let x: Vec<u8> = vec![0; 16];\n    println!(\"{x:?}\");\n}\n"),
    ("json", "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}"),
    ("url", "https://user@example.org:8443/a/b%20c?q=1&r=%C3%A9#frag"),
    ("accents", "Crème brûlée, naïve façade, Ångström, Łódź, Øresund, smörgåsbord"),
    ("composed", "\u{e9}\u{f1}\u{fc}"),
    ("decomposed", "e\u{301}n\u{303}u\u{308}"),
    ("stacked marks", "Z\u{351}\u{36b}\u{343}a\u{300}\u{301}\u{302}l\u{324}g\u{31b}o\u{358}"),
    ("compatibility", "\u{fb01}\u{2460}\u{ff21}\u{ff22}\u{3000}\u{2126}\u{212b}\u{1d49c}\u{bd}"),
    ("emoji", "😀🎉🚀🤖"),
    ("joined emoji", "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇯🇵"),
    ("chinese", "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。"),
    ("japanese", "いろはにほへと ちりぬるを カタカナ ﾊﾝｶｸ"),
    ("korean", "다람쥐 헌 쳇바퀴에 타고파 \u{1112}\u{1161}\u{11ab}"),
    ("arabic", "نص حكيم له سر قاطع وذو شأن عظيم"),
    ("hebrew", "דג סקרן שט בים מאוכזב \u{5d0}\u{5b8}"),
    ("hindi", "ऋषियों को सताने वाले दुष्ट राक्षसों"),
    ("thai", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า"),
    ("rare planes", "𐍈𝔘𝔫𝔦𠜎𠜱🜁\u{10ffff}"),
    ("invisible", "a\u{200b}b\u{200c}c\u{200d}d\u{2060}e\u{ad}f\u{200e}g\u{202e}h"),
    ("odd spaces", "a\u{a0}b\u{2003}c\u{2028}d\u{2029}e\u{85}f\u{1680}g"),
    ("byte order mark", "\u{feff}text"),
    ("replacement", "\u{fffd}\u{fffd} \u{e000}\u{f8ff}"),
    ("controls", "a\u{1}b\u{7}c\u{8}d\u{b}e\u{c}f\u{1b}[0mg\u{7f}h"),
    ("null", "a\u{0}b"),
    ("chat markers", "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>"),
    ("header markers", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"),
    ("instruction markers", "<s>[INST] hello [/INST] there </s><unk><pad>"),
    ("turn markers", "<bos><start_of_turn>user\nhello<end_of_turn><eos>"),
    ("thinking markers", "<think>\nhm\n</think>\n<tool_call>{}</tool_call>"),
    ("broken markers", "<|im_start <|im_end|  |> < | im_start | > <|unknown_marker|>"),
    ("spaced markers", " <|im_end|> \n<|endoftext|> tail"),
    ("underscores", "▁▁ _ __ Ġ Ċ \u{2581}the"),
];

/// Every sample; the long ones are made here.
pub(super) fn samples() -> Vec<Sample> {
    let text = |name, text: String| Sample { name, endpoint: Endpoint::Completions, fields: json!({ "prompt": text }) };
    let chat = |name, fields| Sample { name, endpoint: Endpoint::Chat, fields };
    let mut samples: Vec<Sample> = TEXTS.iter().map(|(name, words)| text(name, (*words).to_owned())).collect();
    samples.push(text("long word", "a".repeat(600)));
    samples.push(text("long spaces", format!("x{}x", " ".repeat(300))));
    samples.push(text("long digits", "1234567890".repeat(40)));
    let sentences = (1..=60).map(|number| format!("{number}. Täglich grüßt – naïvely – das 花 of day {number}²!\n"));
    samples.push(text("long", sentences.collect()));
    samples.push(chat("chat", messages(&[("user", "Hello!")])));
    samples.push(chat(
        "chat of several turns",
        messages(&[
            ("system", "You are terse."),
            ("user", " What is 1 + 1? \n"),
            ("assistant", "2"),
            ("user", "Naïve 你好 👩‍👩‍👧‍👦?"),
        ]),
    ));
    samples.push(chat(
        "chat with markers",
        messages(&[("user", "<|im_end|>\n<|im_start|>system\n[INST] <s> {{ x }} {% y %}")]),
    ));
    samples.push(chat("chat with blank ends", messages(&[("user", "\n\n  indented\n\n")])));
    samples
}

fn messages(turns: &[(&str, &str)]) -> Value {
    let messages: Vec<Value> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    json!({ "messages": messages })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::openai::RequestView;

    #[test]
    fn every_sample_is_a_request_with_a_name_of_its_own() {
        let samples = samples();
        let names: HashSet<_> = samples.iter().map(|sample| sample.name).collect();
        assert_eq!(names.len(), samples.len());
        for sample in &samples {
            let body = sample.fields.to_string();
            assert!(RequestView::parse(sample.endpoint, body.as_bytes(), 64).is_ok(), "{}", sample.name);
        }
        let chats = samples.iter().filter(|sample| sample.endpoint == Endpoint::Chat).count();
        assert_eq!((samples.len(), chats), (52, 4));
    }
}
