//! What the text of a template tells before it is compiled.

/// Takes out Hugging Face's `{% generation %}` and `{% endgeneration %}`, which only mark the assistant's tokens for
/// training: they become an `if` that always holds, with the same trimming of white space round them.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag, after)) = next_tag(rest) {
        rewritten.push_str(before);
        let inner = tag.trim_matches(['-', '+']);
        let replacement = match inner.trim() {
            "generation" => Some(" if true "),
            "endgeneration" => Some(" endif "),
            _ => None,
        };
        rewritten.push_str("{%");
        match replacement {
            Some(replacement) => rewritten.push_str(&tag.replace(inner, replacement)),
            None => rewritten.push_str(tag),
        }
        rewritten.push_str("%}");
        rest = after;
    }
    rewritten.push_str(rest);
    rewritten
}

/// The texts that stand in quotes between `{{` or `{%` and their ends, each once: all words that the template can look for.
pub(super) fn words(source: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let end = if rest[at..].starts_with("{{") { "}}" } else { "%}" };
        rest = &rest[at + 2..];
        // Braces of maps that are open: theirs end no tag.
        let mut open = 0_usize;
        while let Some(next) = rest.chars().next().filter(|_| open > 0 || !rest.starts_with(end)) {
            rest = &rest[next.len_utf8()..];
            match next {
                '{' => open += 1,
                '}' => open = open.saturating_sub(1),
                '"' | '\'' => {
                    let (word, behind) = quoted(rest, next);
                    words.push(word);
                    rest = behind;
                }
                _ => {}
            }
        }
    }
    words.sort_unstable();
    words.dedup();
    words.retain(|word| !word.is_empty());
    words
}

/// The text up to `quote`, and what is behind it.
fn quoted(source: &str, quote: char) -> (String, &str) {
    let mut word = String::new();
    let mut chars = source.chars();
    while let Some(next) = chars.next().filter(|next| *next != quote) {
        word.push(match next {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            },
            plain => plain,
        });
    }
    (word, chars.as_str())
}

/// The text before the first block tag, what stands between `{%` and `%}`, and the text behind it.
fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = source.split_once("{%")?;
    let (tag, after) = rest.split_once("%}")?;
    Some((before, tag, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_ifs_and_keep_their_trimming() {
        let source = "a{%- generation -%}b{% endgeneration %}c{% if generation %}{%";
        assert_eq!(without_generation_tags(source), "a{%- if true -%}b{% endif %}c{% if generation %}{%");
    }

    #[test]
    fn words_are_what_stands_in_quotes_in_tags() {
        let source = r#"it's {{ "a" ~ 'b\n' }} "no" {%- if 'c"d' in x['a'] and "\\" != '' -%}'{{ 'unclosed"#;
        assert_eq!(words(source), ["\\", "a", "b\n", "c\"d", "unclosed"]);
        let maps = "{{ {'a': {'b': 'c'}} ~ 'd' }}'e'{%- set x = {'f': {}} -%}'g'{{ 'h' }}";
        assert_eq!(words(maps), ["a", "b", "c", "d", "f", "h"]);
    }
}
