//! How deep a JSON text nests, without parsing it.

/// Whether arrays and objects of `json` nest deeper than `levels`. Iterative, so that hostile nesting cannot exhaust the
/// stack; reads up to the first place that is too deep. Texts with few brackets, as prompts of token ids are, cost one
/// vectorised count.
pub(super) fn exceeds(json: &[u8], levels: usize) -> bool {
    if memchr::memchr2_iter(b'[', b'{', json).nth(levels).is_none() {
        return false;
    }
    let (mut depth, mut at) = (0_usize, 0_usize);
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > levels {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = string_end(json, at),
            _ => {}
        }
    }
    false
}

/// The place behind the closing quote of the string whose first byte is at `at`, or the end of the text.
fn string_end(json: &[u8], mut at: usize) -> usize {
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if json[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::exceeds;

    #[test]
    fn only_open_brackets_outside_strings_count() {
        assert!(!exceeds(br#"{"a":[1,2]}"#, 2));
        assert!(exceeds(br#"{"a":[1,[2]]}"#, 2));
        assert!(!exceeds(br#"{"a":"[[[[\"[[\\","b":[],"c":[],"d":{}}"#, 2));
        assert!(exceeds(br#"{"a":"\\","b":[[]]}"#, 2));
    }

    #[test]
    fn broken_text_neither_panics_nor_loops() {
        for text in ["]]]]", "\"", "\"\\", "[\"", "[{\"\\\"", ""] {
            assert!(!exceeds(text.as_bytes(), 2), "{text}");
        }
        assert!(exceeds("[".repeat(1 << 20).as_bytes(), 64));
    }
}
