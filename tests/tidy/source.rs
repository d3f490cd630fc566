//! Reads Rust source just well enough: which text is code, where functions, attributes and test modules are. It expects
//! code as rustfmt leaves it.
use std::ops::Range;

/// The same text with the inside of comments, strings and character literals turned into spaces. Lines stay where they are.
pub(crate) fn mask(text: &str) -> String {
    let mut masker = Masker { source: text.chars().collect(), at: 0, out: String::with_capacity(text.len()) };
    while let Some(c) = masker.ahead(0) {
        match c {
            '/' if masker.ahead(1) == Some('/') => masker.line_comment(),
            '/' if masker.ahead(1) == Some('*') => masker.block_comment(),
            '"' => masker.string(),
            'r' if masker.at_raw_string() => masker.raw_string(),
            '\'' => masker.character_or_lifetime(),
            _ => masker.keep(),
        }
    }
    masker.out
}

struct Masker {
    source: Vec<char>,
    at: usize,
    out: String,
}

impl Masker {
    fn ahead(&self, by: usize) -> Option<char> {
        self.source.get(self.at + by).copied()
    }

    fn keep(&mut self) {
        self.out.extend(self.ahead(0));
        self.at += 1;
    }

    fn blank(&mut self) {
        self.out.extend(self.ahead(0).map(|c| if c == '\n' { c } else { ' ' }));
        self.at += 1;
    }

    fn line_comment(&mut self) {
        while self.ahead(0).is_some_and(|c| c != '\n') {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.ahead(0).is_some() {
            match (self.ahead(0), self.ahead(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.keep();
        while let Some(c) = self.ahead(0) {
            match c {
                '"' => return self.keep(),
                '\\' => {
                    self.blank();
                    self.blank();
                }
                _ => self.blank(),
            }
        }
    }

    /// Whether `r` here begins `r"…"`, `r#"…"#`, `br"…"` or `cr"…"`, and is not the end of a name or a raw identifier.
    fn at_raw_string(&self) -> bool {
        let mut before = self.at;
        if before > 0 && matches!(self.source[before - 1], 'b' | 'c') {
            before -= 1;
        }
        if before > 0 && is_name(self.source[before - 1]) {
            return false;
        }
        let hashes = self.source[self.at + 1..].iter().take_while(|c| **c == '#').count();
        self.ahead(1 + hashes) == Some('"')
    }

    fn raw_string(&mut self) {
        self.keep();
        let mut hashes = 0;
        while self.ahead(0) == Some('#') {
            self.keep();
            hashes += 1;
        }
        self.keep();
        while self.ahead(0).is_some() {
            if self.ahead(0) == Some('"') && (1..=hashes).all(|by| self.ahead(by) == Some('#')) {
                (0..=hashes).for_each(|_| self.keep());
                return;
            }
            self.blank();
        }
    }

    fn character_or_lifetime(&mut self) {
        let escaped = self.ahead(1) == Some('\\');
        if !escaped && self.ahead(2) != Some('\'') {
            return self.keep();
        }
        self.keep();
        self.blank();
        if escaped {
            self.blank();
        }
        while self.ahead(0).is_some_and(|c| c != '\'') {
            self.blank();
        }
        self.keep();
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands in masked code with nothing of a name before or after it.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

/// The name that `code` begins with; empty if it begins with none.
pub(crate) fn leading_name(code: &str) -> &str {
    &code[..code.find(|c| !is_name(c)).unwrap_or(code.len())]
}

/// The number of the line, from 1, in which byte `at` stands.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The byte behind the bracket that closes the first of `code[open..]`.
pub(crate) fn closed(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(open + at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// A function with a body: its name, its first line, and how many lines it has from `fn` to the closing brace.
#[derive(Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// All functions of masked code, nested ones too.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name = leading_name(code[at + 2..].trim_start());
        let Some(open) = body_of(code, at) else { continue };
        if name.is_empty() {
            continue;
        }
        let Some(end) = closed(code, open) else { continue };
        found.push(Function {
            name: name.to_owned(),
            line: line_of(code, at),
            lines: code[at..end].matches('\n').count() + 1,
        });
    }
    found
}

/// The brace that opens the body of the function at `from`; `None` for a declaration without one.
fn body_of(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '{' if depth == 0 => return Some(from + at),
            ';' | '}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Each attribute of masked code, its brackets left off, with the line in which it begins.
pub(crate) fn attributes(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices('#') {
        let rest = &code[at + 1..];
        let open = at + 1 + usize::from(rest.starts_with('!'));
        if !code[open..].starts_with('[') {
            continue;
        }
        if let Some(end) = closed(code, open) {
            found.push((line_of(code, at), &code[open + 1..end - 1]));
        }
    }
    found
}

/// The bytes of masked code that are modules under `#[cfg(test)]`, attribute included.
pub(crate) fn test_modules(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let mut rest = at;
        while code[rest..].starts_with("#[") {
            let Some(end) = closed(code, rest + 1) else { break };
            rest = end + code[end..].len() - code[end..].trim_start().len();
        }
        let module = inline_modules(code).into_iter().find(|module| {
            let visibility = code.get(rest..module.start).map(str::trim);
            visibility.is_some_and(|text| {
                text.is_empty() || text == "pub" || text.starts_with("pub(") && !text.contains([';', '{'])
            })
        });
        found.extend(module.map(|module| at..module.end));
    }
    found
}

/// The bytes of masked code that are modules with a body, from `mod` to the closing brace; nested ones too.
pub(crate) fn inline_modules(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for at in words(code, "mod") {
        if let Some(open) = body_of(code, at)
            && let Some(end) = closed(code, open)
        {
            found.push(at..end);
        }
    }
    found
}

/// How many lines lie outside of test modules.
pub(crate) fn lines_outside_tests(code: &str) -> usize {
    let inside: usize = test_modules(code).into_iter().map(|span| code[span].matches('\n').count() + 1).sum();
    code.lines().count() - inside
}

/// Masked code with its test modules blanked out. Lines stay where they are.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut from = 0;
    for span in test_modules(code) {
        out.push_str(&code[from..span.start]);
        from = span.end;
        out.extend(code[span].chars().map(|c| if c == '\n' { c } else { ' ' }));
    }
    out + &code[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_code_turns_into_spaces_and_lines_stay() {
        assert_eq!(mask("a // }\nb"), "a     \nb");
        assert_eq!(mask("a /* { /* } */ \n } */ b"), "a              \n      b");
        assert_eq!(mask(r#"f("}\"{", 1)"#), r#"f("    ", 1)"#);
        assert_eq!(mask("x \"\n{\" y"), "x \"\n \" y");
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(mask("r\"\\\" + b"), "r\" \" + b");
        assert_eq!(mask("br##\"a\"# {\"## + b"), "br##\"     \"## + b");
        assert_eq!(mask("r#fn + for\"{\""), "r#fn + for\" \"");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_stay() {
        assert_eq!(mask("['{', '\\'', '\\u{7d}', b'}', '\"']"), "[' ', '  ', '      ', b' ', ' ']");
        assert_eq!(mask("fn f<'a>(x: &'a str) -> &'static str {}"), "fn f<'a>(x: &'a str) -> &'static str {}");
    }

    #[test]
    fn a_function_is_counted_from_fn_to_its_closing_brace() {
        let code = "trait T {\n    fn none(&self) -> [u8; 4];\n    fn one(x: [u8; 2]) -> fn(u8) {}\n}\npub async fn two()\nwhere\n    u8: Copy,\n{\n    if a {\n    }\n}\n";
        let expected = [("one", 3, 1), ("two", 5, 7)];
        let expected = expected.map(|(name, line, lines)| Function { name: name.to_owned(), line, lines });
        assert_eq!(functions(code), expected);
    }

    #[test]
    fn braces_in_strings_do_not_lengthen_a_function() {
        let code = mask("fn a() {\n    f(\"{\");\n}\nfn b() {}\n");
        let lines: Vec<_> = functions(&code).into_iter().map(|f| (f.name, f.lines)).collect();
        assert_eq!(lines, [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    }

    #[test]
    fn attributes_are_found_with_their_lines() {
        let code = "#![allow(x)]\n#[cfg_attr(test, allow(y))]\nlet a = 1; #[expect(\n    z,\n    reason = \"\"\n)]\n";
        let expected = [(1, "allow(x)"), (2, "cfg_attr(test, allow(y))"), (3, "expect(\n    z,\n    reason = \"\"\n)")];
        assert_eq!(attributes(code), expected);
    }

    #[test]
    fn only_modules_under_cfg_test_count_as_tests() {
        let code = "use a;\n#[cfg(test)]\nfn helper() {}\n#[cfg(test)]\n#[expect(x, reason = \"\")]\nmod tests {\n    fn t() {}\n}\nfn after() {}\n";
        assert_eq!(lines_outside_tests(code), 4);
        let kept = without_tests(code);
        assert_eq!((kept.contains("fn t()"), kept.contains("fn helper()"), kept.lines().count()), (false, true, 9));
    }

    #[test]
    fn a_test_module_that_others_may_see_counts_as_tests_too() {
        assert_eq!(lines_outside_tests("a\n#[cfg(test)]\npub(crate) mod support {\n    b\n}\n"), 1);
        assert_eq!(lines_outside_tests("a\n#[cfg(test)]\nmod support;\nmod real {\n    b\n}\n"), 6);
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_name() {
        assert_eq!(words("fnord fn my_fn fn", "fn").collect::<Vec<_>>(), [6, 15]);
    }
}
