//! The reference: every key with its type, its default, when a change takes effect, and what it is for.

use std::fmt::Write;

use serde_json::Value;

use super::schema::{Known, known};
use super::shape::{Form, Shape};

const HEAD: &str = "\
# Configuration

<!-- Made by `warmpath schema --markdown`; a test holds it to the code. -->

One YAML file in which every key but `models` and `workers` has a default; `workers` may be left out where `discovery` finds
them. [`config/warmpath.yaml`](../config/warmpath.yaml) is the same as a file to start from; `warmpath schema` is the same for
editors (`# yaml-language-server: $schema=warmpath.schema.json`). `warmpath check FILE` names every fault with its line and
column, `warmpath config show` every value in effect and who said so, `warmpath plan OLD NEW` what a change would do.

Any value can come from outside: `${env:NAME}` is an environment variable, `${file:PATH}` the text of a file, `$${` a literal
`${`, and a variable such as `WARMPATH__LISTEN__DATA` or `WARMPATH__WORKERS__0__API_KEY` overrides the key of that name;
`--override listen.data=0.0.0.0:80` on the command line of `serve`, `check` and `config show` overrides both. A list or a
section is written as YAML has it on one line (`WARMPATH__ROUTING__SHADOW='[blocks, product]'`), or item by item: the number
after the last one is a new item.
Relative paths start from the file's folder. Durations: `250ms`, `5s`, `2m`, `1h`. Sizes: `512B`, `64KiB`, `16MiB`, `1GiB`.

The file is read again when it changes, on SIGHUP and by `POST /api/v1/reload` on the admin port. A file with a fault
changes nothing. *live* keys take effect at once, for requests that come from then on; a change of others is named in the log
and by `GET /api/v1/config`, and waits for a restart.
";

/// The reference as Markdown.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for known in known() {
        entry(&mut text, &known);
    }
    text
}

/// Writing to a string cannot fail.
fn entry(text: &mut String, known: &Known) {
    let depth = if known.key.contains('.') { "###" } else { "##" };
    let _ = write!(text, "\n{depth} `{}`\n", known.key);
    let is_section = matches!(known.shape.form, Form::Section(_))
        || matches!(&known.shape.form, Form::List(item) if matches!(item.form, Form::Section(_)));
    if !is_section {
        let reload = if known.live { "live" } else { "restart" };
        let default = known.default.as_ref().map_or_else(|| "must be given".to_owned(), shown);
        let _ = write!(text, "\n{} · default {default} · {reload}\n", kind(&known.shape));
    }
    if let Some(remark) = &known.remark {
        let _ = write!(text, "\n{}\n", paragraph(remark));
    }
}

fn kind(shape: &Shape) -> String {
    let kind = match &shape.form {
        Form::Section(_) => "section".to_owned(),
        Form::List(item) => format!("list of {}", kind(item)),
        Form::Named(value) => format!("names, each with {}", kind(value)),
        Form::Choice(names) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "),
        Form::Flag => "`true` or `false`".to_owned(),
        Form::Integer { least, most } if i128::from(u64::MAX) == *most => format!("whole number from {least}"),
        Form::Integer { least, most } => format!("whole number from {least} to {most}"),
        Form::Number => "number".to_owned(),
        Form::Text => "text".to_owned(),
    };
    let rules = shape.rules.iter().map(|rule| format!(" ({rule})"));
    let kind = std::iter::once(kind).chain(rules).collect::<String>();
    if shape.nullable { format!("{kind}, or `null`") } else { kind }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "`''`".to_owned(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// Tables and drawings keep their lines.
fn paragraph(remark: &str) -> String {
    if remark.contains("   ") { format!("```text\n{remark}\n```") } else { remark.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `UPDATE=1` writes it anew.
    #[test]
    fn the_reference_in_the_documents_is_the_one_of_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
        let made = reference();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written == made, "docs/configuration.md is not what the code says: run this test with UPDATE=1");
    }

    #[test]
    fn every_key_is_in_it() {
        let text = reference();
        assert!(text.contains(
            "\n### `routing.kv.alpha`\n\nnumber (a share must be from 0 to 1) · default `0.3` · live\n\n\
             While loads are balanced: low, so that cached prefixes decide.\n"
        ));
        assert!(text.contains("\n### `workers[].id`\n\ntext · default must be given · live\n"));
        assert!(text.contains("```text\nkv             the least of"));
    }
}
