//! Texts that tokenizers have got wrong: the corpus that a fast one is compared on before it is used.

/// The built-in corpus.
pub(super) struct Awkward;

/// Pieces that texts are put together from.
pub(super) const PIECES: [&str; 96] = [
    "a",
    "b",
    "Z",
    "the",
    "Hello",
    "world",
    "word",
    "'s",
    "'S",
    "'re",
    "'LL",
    "don't",
    "I'M",
    "'",
    "\"",
    "''",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    " \n",
    "\n ",
    "\n  ",
    " \r\n\t",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "0",
    "7",
    "42",
    "123",
    "1234567",
    "3.14",
    "1,000",
    "٣",
    "½",
    "Ⅷ",
    "①",
    "-",
    "--",
    "_",
    "/",
    "//",
    ".",
    "...",
    "!",
    "?!",
    ",",
    ";",
    ":",
    "(",
    ")",
    "[]",
    "{}",
    "<",
    ">",
    "</",
    "/>",
    "<|",
    "|>",
    "é",
    "e\u{301}",
    "\u{301}",
    "ñ",
    "Å",
    "A\u{30a}",
    "ﬁ",
    "ß",
    "İ",
    "ǅ",
    "Привет",
    "γειά",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "ไทย",
    "漢字",
    "你好",
    "。",
    "，",
    "ひらがな",
    "カタカナ",
    "ー",
    "한국어",
    "\u{1112}\u{1161}\u{11ab}",
    "😀",
    "👩\u{200d}👩\u{200d}👧",
    "🇩🇪",
    "\u{200b}",
    "\u{feff}",
    "\u{0}",
];

/// Whole texts.
const TEXTS: [&str; 24] = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "I'll say it's THEY'RE 'twas' y'all'd've",
    "fn main() {\n    let x = vec![1, 2, 3];\n\n    println!(\"{:?}\", x);\n}\n",
    "def f(x):\r\n\treturn x ** 2  # square\r\n\r\n\r\nif __name__ == '__main__':\r\n\tprint(f(3))\r\n",
    "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"d\\n\\u00e9\"}}",
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\"}}}",
    "<html>\n  <body class=\"x\">\n    <!-- c -->\n    <a href=\"https://example.org/?q=1&r=2#f\">é</a>\n  </body>\n</html>",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - item\n    1. item\n\n> quote\n\n```rust\nlet x;\n```\n",
    "2024-02-29T23:59:59.999Z +1 (555) 010-9999 0xDEADBEEF 1e-10 192.168.0.1:8080 v1.2.3-rc.4+build",
    "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQgd2l0aG91dCBhbnkgc3BhY2UgaW4gaXQgYXQgYWxs==",
    "今天天气很好，我们去公园吧。明天可能会下雨、也可能不会。\n第二段从这里开始！",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "안녕하세요, 세계! \u{1100}\u{1161}\u{11a8} 각",
    "Ünïcödé Ḿixed ＦＵＬＬＷＩＤＴＨ １２３ ｶﾀｶﾅ ﷺ ﬀ",
    "e\u{301}e\u{301} a\u{323}\u{307} a\u{307}\u{323} \u{212b} \u{1e9b}\u{323} q\u{307}\u{323}",
    "\u{202e}right to left\u{202c} \u{ad}soft\u{ad}hyphen \u{fffd}\u{e000}\u{10ffff}",
    "👍🏽👩🏿‍🚀🏳️‍🌈 flags 🇫🇷🇫🇷🇫 keycap 1️⃣",
    "                                                                                        x",
    "x\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\ny \n \n \n z\t\t\t\t\t\t\tw",
    "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!=======================\n\n",
    "SELECT * FROM t WHERE a='b' AND c<>'d' -- x\n;\u{0}\u{1}\u{1b}[31mred\u{1b}[0m\u{7f}",
];

/// Texts that are put together, and the pieces of each.
const MIXED: u64 = 160;
pub(super) const PIECES_PER_TEXT: u64 = 40;

impl Awkward {
    /// The corpus, with the tokenizer's `added` tokens in it. The same each time.
    pub(super) fn texts(added: &[&str]) -> Vec<String> {
        let mut texts: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
        for token in added.iter().take(64) {
            texts.push(format!("{token}a {token}\n{token}{token} b{token}.\u{301}{token}字 "));
            texts.push(token.chars().skip(1).chain(token.chars()).collect());
        }
        texts.push(format!("{}\n", "word ".repeat(600)));
        texts.push("字".repeat(300));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = move |below: usize| {
            // Marsaglia's xorshift64: any spread will do.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % u64::try_from(below.max(1)).unwrap_or(1)).unwrap_or(0)
        };
        for _ in 0..MIXED {
            let mut text = String::new();
            for _ in 0..PIECES_PER_TEXT {
                let place = draw(PIECES.len() + PIECES.len() / 8);
                let piece = PIECES.get(place).copied();
                text.push_str(piece.or_else(|| added.get(draw(added.len())).copied()).unwrap_or(" "));
            }
            texts.push(text);
        }
        texts
    }
}
