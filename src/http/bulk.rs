//! About how many tokens a body comes to whose token ids are unknown: a load, and no more than that.

use warmpath_core::units::Tokens;

use crate::stride::{STRIDE, Stride, place};

/// Bytes of text that make a token, about.
const BYTES_PER_TOKEN: usize = 4;

/// Bytes of sound, image or vectors that cost an engine as much as a token, about: half a minute of speech is 1 500 of them
/// for Whisper, and between 0.2 and 1 MB; a photograph of 1 MB is one or two thousand for most models.
const MEDIA_BYTES_PER_TOKEN: usize = 512;

/// The shortest run of base64 that is taken for media: no word is so long, and an image that is shorter makes no difference.
const RUN_MIN: usize = 2048;

/// Of JSON, in which media are written as base64.
pub(super) fn of_json(body: &[u8]) -> Tokens {
    let media = media_in(body);
    count((body.len() - media) / BYTES_PER_TOKEN + media / MEDIA_BYTES_PER_TOKEN)
}

/// Of a body that is media from its beginning to its end, or nearly.
pub(super) fn of_media(body: &[u8]) -> Tokens {
    count(body.len() / MEDIA_BYTES_PER_TOKEN)
}

/// So many.
pub(super) fn count(tokens: usize) -> Tokens {
    Tokens(u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// Bytes of the base64 in a JSON text: of runs of its characters that are all of a string, or all that is behind
/// `base64,` in one. Looks at one block in sixteen of what is none: O(base64), and a sixteenth of the rest.
fn media_in(body: &[u8]) -> usize {
    let (mut media, mut from) = (0, 0);
    // A run of two such steps has a whole block behind one of them.
    let step = RUN_MIN / 2;
    while let Some(block) = body.get(from..).and_then(|rest| rest.first_chunk()) {
        if other_than_base64(&Stride::new(block)) != 0 {
            from += step;
            continue;
        }
        let begin = body[..from].iter().rposition(|byte| !is_base64(*byte)).map_or(0, |before| before + 1);
        let end = end_of_run(body, from + STRIDE);
        let is_value = |open: Option<&u8>, close: Option<&u8>| matches!((open, close), (Some(b'"' | b','), Some(b'"')));
        if end - begin >= RUN_MIN && is_value(body[..begin].last(), body.get(end)) {
            media += end - begin;
        }
        from = end.max(from + step);
    }
    media
}

/// Where the run ends that goes on `from` here.
fn end_of_run(body: &[u8], mut from: usize) -> usize {
    while let Some(rest) = body.get(from..).filter(|rest| !rest.is_empty()) {
        let same = place(other_than_base64(&Stride::padded(rest)));
        from += same;
        if same < STRIDE {
            break;
        }
    }
    from
}

/// Those of a block that base64 is not written with, in either alphabet, be it broken into lines, or its slashes escaped.
fn other_than_base64(block: &Stride) -> u64 {
    let signs = block.is_either(b'+', b'/') | block.is_either(b'-', b'_') | block.is_either(b'=', b'\\');
    !(block.is_alphanumeric() | signs)
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole number of such groups.
    fn base64(bytes: usize) -> String {
        "iVBORw0KGgoAAA+/".repeat(bytes.div_ceil(16))[..bytes].to_owned()
    }

    /// A photograph of 1.5 MB is a few thousand tokens, wherever it stands.
    #[test]
    fn media_in_json_count_by_what_they_cost_and_not_as_text() {
        let photo = base64(2_000_000);
        for (before, behind) in [
            (r#"{"messages":[{"content":[{"image_url":{"url":"data:image/png;base64,"#, r#""}}]}]}"#),
            (r#"{"messages":[{"content":[{"input_audio":{"format":"wav","data":""#, r#""}}]}]}"#),
            (r#"{"prompt_embeds":["#, r#"]}"#),
        ] {
            let body = if before.ends_with('[') {
                format!("{before}\"{photo}\",\"{photo}\"{behind}")
            } else {
                format!("{before}{photo}{behind}")
            };
            let photos = if before.ends_with('[') { 2 } else { 1 };
            let tokens = of_json(body.as_bytes()).0;
            assert!((3_900 * photos..4_000 * photos).contains(&tokens), "{before}: {tokens}");
        }
        let lines = (base64(76) + "\\n").repeat(30_000);
        assert!(of_json(format!(r#"{{"x":"{lines}","y":1}}"#).as_bytes()).0 < 5_000);
    }

    #[test]
    fn text_counts_as_text() {
        let prose = "It was the best of times, it was the worst of times, ".repeat(2_000);
        let chinese = "春江潮水连海平".repeat(2_000);
        let code = "fn main() {\\n    println!(\\\"{}\\\", 1);\\n}\\n".repeat(2_000);
        // Of which only a part is so, and what is shorter.
        let part = format!("Decode this: {} please", base64(10_000));
        for text in [prose, chinese, code, part, base64(RUN_MIN - 1)] {
            let body = format!(r#"{{"prompt":"{text}"}}"#);
            assert_eq!(of_json(body.as_bytes()), count(body.len() / 4));
        }
        assert_eq!([of_json(b""), of_json(b"{}"), of_json(base64(5_000).as_bytes())], [0, 0, 1_250].map(Tokens));
    }

    #[test]
    fn a_run_is_found_wherever_it_begins_and_ends() {
        for before in [0, 1, 62, 63, 64, 65, 1_000, 1_023, 1_024, 1_025, 2_047, 3_000] {
            for len in [RUN_MIN - 1, RUN_MIN, RUN_MIN + 1, RUN_MIN + 63, 3 * RUN_MIN + 5] {
                let body = format!("{}\"{}\" {}", " ".repeat(before), base64(len), " ".repeat(before));
                let expected = if len < RUN_MIN { 0 } else { len };
                assert_eq!(media_in(body.as_bytes()), expected, "{len} behind {before}");
            }
        }
    }

    #[test]
    fn a_form_is_media() {
        assert_eq!(of_media(&[0; 10_240]), Tokens(20));
    }
}
