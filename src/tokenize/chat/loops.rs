//! Whether a template loops over what messages contain, so that it wants a list of parts.
//!
//! vLLM decides this on the syntax tree (`_iter_nodes_assign_content_item` of 0.32), by the names of variables alone and
//! without regard to where they are set. Here the same is done on the words of each tag: `messages` and what is set to it
//! are lists, what loops over them go through are messages, and a loop counts that runs over a message's `content`, over a
//! macro's parameter that is given one, or outside of macros over `content`. Filters, tests and slices change nothing. Where
//! vLLM gives up, since something else than a name is set to such a list or runs through it, content is one string.

/// A word of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// Also a number.
    Name(&'a str),
    Text(&'a str),
    Sign(char),
}

use Token::{Name, Sign, Text};

/// What stands between `{{` or `{%` and its end.
struct Tag<'a> {
    tokens: Vec<Token<'a>>,
    /// The number of the macro that it is in.
    within: Option<usize>,
}

/// A macro's name and the names of its parameters.
struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
}

/// See above.
pub(super) fn loops_over_content(source: &str) -> bool {
    let (tags, macros) = read(source);
    found(&tags, &macros).unwrap_or(false)
}

/// None where vLLM gives up.
fn found(tags: &[Tag<'_>], macros: &[Macro<'_>]) -> Option<bool> {
    let mut lists = vec!["messages"];
    let mut next = 0;
    while let Some(list) = lists.get(next).copied() {
        next += 1;
        for (target, value) in tags.iter().filter_map(|tag| parted(&tag.tokens, "set", Sign('='))) {
            if origin(value) == Some((list, None)) {
                let [Name(name)] = target else { return None };
                if !lists.contains(name) {
                    lists.push(name);
                }
            }
        }
    }
    let mut messages = Vec::new();
    for (target, list) in tags.iter().filter_map(|tag| parted(&tag.tokens, "for", Name("in"))) {
        if origin(looped(list)).is_some_and(|(name, key)| key.is_none() && lists.contains(&name)) {
            let [Name(name)] = target else { return None };
            messages.push(*name);
        }
    }
    let is_content = |tokens: &[Token<'_>]| {
        origin(tokens).is_some_and(|(name, key)| key == Some("content") && messages.contains(&name))
    };
    let given: Vec<Vec<&str>> = macros.iter().map(|of| given(of, tags, is_content)).collect();
    for tag in tags {
        let Some((target, list)) = parted(&tag.tokens, "for", Name("in")) else { continue };
        let counts = match (looped(list), tag.within) {
            (list, _) if is_content(list) => true,
            ([Name(name)], Some(within)) => given[within].contains(name),
            ([Name(name)], None) => *name == "content",
            _ => false,
        };
        if counts {
            return Some(matches!(target, [Name(_)]));
        }
    }
    Some(false)
}

/// The parameters of a macro that are given a message's content wherever it is called.
fn given<'a>(of: &Macro<'a>, tags: &[Tag<'_>], is_content: impl Fn(&[Token<'_>]) -> bool) -> Vec<&'a str> {
    let mut given = Vec::new();
    for tokens in tags.iter().map(|tag| &tag.tokens[..]).filter(|tokens| tokens.first() != Some(&Name("macro"))) {
        for at in 0..tokens.len() {
            let calls = tokens[at] == Name(of.name) && (at == 0 || !matches!(tokens[at - 1], Sign('.' | '|')));
            let Some((arguments, _)) = tokens.get(at + 1..).filter(|_| calls).and_then(|rest| group(rest, '(')) else {
                continue;
            };
            for (place, argument) in items(arguments).enumerate() {
                let (parameter, value) = match argument {
                    [Name(name), Sign('='), value @ ..] => (of.parameters.iter().find(|known| *known == name), value),
                    value => (of.parameters.get(place), value),
                };
                given.extend(parameter.filter(|_| is_content(value)));
            }
        }
    }
    given
}

/// What a tag that begins with `word` has before and behind `middle`.
fn parted<'t, 'a>(
    tokens: &'t [Token<'a>],
    word: &str,
    middle: Token<'_>,
) -> Option<(&'t [Token<'a>], &'t [Token<'a>])> {
    let (_, rest) = tokens.split_first().filter(|(first, _)| **first == Name(word))?;
    let at = rest.iter().position(|token| *token == middle)?;
    Some((&rest[..at], &rest[at + 1..]))
}

/// What a loop runs over, without the condition behind it.
fn looped<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut open = 0;
    let end = tokens.iter().position(|token| {
        open += nesting(token);
        open == 0 && matches!(token, Name("if" | "recursive"))
    });
    let mut list = &tokens[..end.unwrap_or(tokens.len())];
    while let Some((inner, [])) = group(list, '(') {
        list = inner;
    }
    list
}

/// The variable that an expression is, or its attribute, filtered, tested or sliced; none for all other expressions.
fn origin<'a>(tokens: &[Token<'a>]) -> Option<(&'a str, Option<&'a str>)> {
    let (mut found, mut rest, mut is_bare) = match tokens {
        [Name(name), rest @ ..] => ((*name, None), rest, true),
        _ => {
            let (inner, rest) = group(tokens, '(')?;
            (origin(inner)?, rest, matches!(inner, [Name(_)]))
        }
    };
    while !rest.is_empty() {
        let mut key = None;
        rest = match rest {
            [Sign('.'), Name(name), behind @ ..] => {
                key = Some(*name);
                behind
            }
            [Sign('|') | Name("is"), Name(_), behind @ ..] => group(behind, '(').map_or(behind, |(_, behind)| behind),
            _ => {
                let (inner, behind) = group(rest, '[')?;
                match inner {
                    [Text(name)] => key = Some(*name),
                    _ if inner.contains(&Sign(':')) => {}
                    _ => return None,
                }
                behind
            }
        };
        match key {
            Some(_) if !is_bare => return None,
            Some(_) => found.1 = key,
            None => {}
        }
        is_bare = false;
    }
    Some(found)
}

/// How many more brackets are open behind a word.
fn nesting(token: &Token<'_>) -> i32 {
    match token {
        Sign('(' | '[' | '{') => 1,
        Sign(')' | ']' | '}') => -1,
        _ => 0,
    }
}

/// What stands in the brackets that `tokens` begin with, and what behind them.
fn group<'t, 'a>(tokens: &'t [Token<'a>], bracket: char) -> Option<(&'t [Token<'a>], &'t [Token<'a>])> {
    let rest = tokens.strip_prefix(&[Sign(bracket)])?;
    let mut open = 1;
    let end = rest.iter().position(|token| {
        open += nesting(token);
        open == 0
    })?;
    Some((&rest[..end], &rest[end + 1..]))
}

/// What stands between the commas of a list.
fn items<'t, 'a>(tokens: &'t [Token<'a>]) -> impl Iterator<Item = &'t [Token<'a>]> {
    let mut open = 0;
    tokens.split(move |token| {
        open += nesting(token);
        open == 0 && *token == Sign(',')
    })
}

/// All tags of a template but comments, and its macros.
fn read(source: &str) -> (Vec<Tag<'_>>, Vec<Macro<'_>>) {
    let (mut tags, mut macros, mut open) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = source;
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|begin| rest.find(begin)).min() {
        let (kind, behind) = rest[at + 1..].split_at(1);
        if kind == "#" {
            rest = behind.split_once("#}").map_or("", |(_, behind)| behind);
            continue;
        }
        let (tokens, behind) = tokens(behind, if kind == "{" { "}}" } else { "%}" });
        rest = behind;
        match &tokens[..] {
            [Name("macro"), Name(name), parameters @ ..] if kind == "%" => {
                let parameters = group(parameters, '(').map_or(&[][..], |(parameters, _)| parameters);
                let named = items(parameters).filter_map(|item| match item {
                    [Name(name), ..] => Some(*name),
                    _ => None,
                });
                open.push(macros.len());
                macros.push(Macro { name, parameters: named.collect() });
            }
            [Name("endmacro"), ..] if kind == "%" => drop(open.pop()),
            _ => {}
        }
        tags.push(Tag { tokens, within: open.last().copied() });
    }
    (tags, macros)
}

/// The words up to `end`, which does not count in quotes or open braces, and what is behind it.
fn tokens<'a>(source: &'a str, end: &str) -> (Vec<Token<'a>>, &'a str) {
    let (mut tokens, mut open) = (Vec::new(), 0_usize);
    let mut rest = source.strip_prefix(['-', '+']).unwrap_or(source);
    while let Some(next) = rest.chars().next() {
        let trimmed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if let Some(behind) = trimmed.strip_prefix(end).filter(|_| open == 0) {
            return (tokens, behind);
        }
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        let len = match next {
            '"' | '\'' => {
                let mut escaped = false;
                let close = rest[1..].find(|char| {
                    let closes = char == next && !escaped;
                    escaped = char == '\\' && !escaped;
                    closes
                });
                let close = close.map_or(rest.len(), |close| close + 1);
                tokens.push(Text(&rest[1..close]));
                (close + 1).min(rest.len())
            }
            _ if is_word(next) => {
                let len = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
                tokens.push(Name(&rest[..len]));
                len
            }
            _ => {
                match next {
                    '{' => open += 1,
                    '}' => open = open.saturating_sub(1),
                    _ => {}
                }
                if !next.is_whitespace() {
                    tokens.push(Sign(next));
                }
                next.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    (tokens, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a loop over messages.
    fn among_messages(inner: &str) -> String {
        format!("{{%- for message in messages -%}}{inner}{{% endfor %}}")
    }

    /// What vLLM 0.32 says of each.
    #[test]
    fn templates_that_loop_over_content_are_told_from_those_that_print_it() {
        for inner in [
            "{% for c in message.content %}",
            "{%- for part in message[ 'content' ] -%}",
            "{% for c in message[\"content\"] | selectattr('type') %}",
            "{% set content = message.content %}{% for c in content if c.text %}",
            "{% for c in message.content[1:]|list if c.text %}",
            "{%-\tfor p  in\nmessage.content -%}",
            "{% for p in (message.content) %}",
            "{{ '{#' }}{% for p in message.content %}",
        ] {
            assert!(loops_over_content(&among_messages(inner)), "{inner}");
        }
        for inner in [
            "{{ message.content }}",
            "{% for line in message.content.split('x') %}",
            "{% for c in message.contents %}",
            "{% for c in contents %}",
            "{% for p in message.content or [] %}",
            "{% for p in messages[0].content %}",
            "{% for x in document.content %}",
            "{% for name, value in message.content %}",
            "{# {% for p in message.content %} #}",
            "{{ '{% for p in message.content %}' }}",
            "for content in message.content",
        ] {
            assert!(!loops_over_content(&among_messages(inner)), "{inner}");
        }
    }

    #[test]
    fn messages_are_what_loops_over_them_go_through() {
        let inner = "{% for part in turn.content %}";
        for outer in [
            "{% for turn in messages[1:] %}",
            "{% set all = messages %}{% set some = all|list %}{% for turn in some %}",
            "{% for turn in messages|reverse if turn.role %}",
        ] {
            assert!(loops_over_content(&format!("{outer}{inner}")), "{outer}");
        }
        for outer in [
            "{% for i in range(messages|length) %}{% set turn = messages[i] %}",
            "{% set ns = namespace(m=messages) %}{% for turn in ns.m %}",
            "{% set ns.n = messages|length %}{% for turn in messages %}",
            "{% set some = {'all': messages} %}{% for turn in some %}",
        ] {
            assert!(!loops_over_content(&format!("{outer}{inner}")), "{outer}");
        }
    }

    #[test]
    fn macros_loop_over_the_content_that_they_are_given() {
        let told = |parameters: &str, call: &str| {
            let body = "{%- for item in it -%}{{ item.text }}{%- endfor -%}";
            let called = among_messages(call);
            loops_over_content(&format!("{{%- macro show({parameters}) -%}}{body}{{%- endmacro -%}}{called}"))
        };
        assert!(told("it", "{{ show(message.content) }}"));
        assert!(told("a, it=none", "{% set shown = show([1, 2], message['content']|list) ~ '%}' %}"));
        assert!(told("a, it=none", "{{ show(1, it=message.content) }}"));
        assert!(!told("a, it=none", "{{ show(message.content, [1, message.content]) }}"));
        assert!(!told("it", "{{ show(message.get('content')) }}"));
        assert!(!told("it", "{{ message.show(message.content) }}"));
        let by_name = "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ show(message) }}";
        assert!(!loops_over_content(&among_messages(by_name)));
    }
}
