//! What reaches a configuration from outside its file: `WARMPATH__SECTION__KEY` and `--override` values, `${env:NAME}`
//! and `${file:PATH}`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use super::Config;
use super::document::{Content, Entry, Node, Scalar, Value};
use super::fault::Fault;
use super::place::Place;
use super::shape::{self, Form, Shape};

/// Variables that begin so override the file.
const PREFIX: &str = "WARMPATH__";

/// The largest file that is read as a configuration.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The largest file that `${file:PATH}` reads: keys, tokens and credentials are far smaller.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// What places of values from the command line begin with.
pub(super) const FLAG: &str = "--override ";

/// Environment variables, and what the command line sets above them. A value of its own, so that tests and programs can say
/// what a configuration may see.
#[derive(Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    overrides: Vec<Override>,
}

/// `KEY=VALUE`: a value from the command line. The key is that of the file, `section.key`; items of lists that the file
/// has are named by their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    key: String,
    value: String,
}

impl FromStr for Override {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            _ => Err("say KEY=VALUE, such as routing.policy=kv"),
        }
    }
}

impl Environment {
    /// The variables of this process; those that are not UTF-8 are left out.
    pub fn of_process() -> Self {
        let text =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self { variables: text.collect(), overrides: Vec::new() }
    }

    /// Whether a value here refers to a file.
    pub fn refers(&self) -> bool {
        let of_ours = self.variables.iter().filter(|(name, _)| name.starts_with(PREFIX)).map(|(_, value)| value);
        of_ours.chain(self.overrides.iter().map(|over| &over.value)).any(|value| value.contains("${file:"))
    }

    /// The same, and above it what the command line sets.
    pub fn with(self, overrides: Vec<Override>) -> Self {
        Self { overrides, ..self }
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, overrides: Vec::new() }
    }
}

/// The bytes of a configuration file; of a larger one its first megabyte and a byte more.
pub(super) fn read_config(path: &Path) -> io::Result<Vec<u8>> {
    read(path, CONFIG_BYTES_MAX)
}

/// Whether [`read_config`] saw more than a configuration may have.
pub(super) fn is_too_large(bytes: &[u8]) -> bool {
    u64::try_from(bytes.len()).is_ok_and(|len| len > CONFIG_BYTES_MAX)
}

fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Puts every `WARMPATH__…` variable in its place in the document. Items of a list are named by their number, and the one
/// after the last is a new one: `WARMPATH__WORKERS__0__API_KEY`. Then the same for what the command line sets.
pub(super) fn override_values(root: &mut Node, environment: &Environment, faults: &mut Vec<Fault>) {
    let variables = environment.variables.iter().filter_map(|(name, value)| {
        let steps = name.strip_prefix(PREFIX)?.split("__").map(str::to_lowercase).collect();
        Some((Place::start(name.as_str()), steps, value))
    });
    let flags = environment.overrides.iter().map(|Override { key, value }| {
        let steps = key.split('.').map(str::to_owned).collect();
        (Place::start(format!("{FLAG}{key}")), steps, value)
    });
    let mut variables: Vec<(Place, Vec<String>, &String)> = variables.collect();
    // So that the tenth item of a list comes after the second.
    variables.sort_by_cached_key(|(_, steps, _)| {
        let number = |step: &String| (step.parse::<usize>().ok(), step.clone());
        steps.iter().map(number).collect::<Vec<_>>()
    });
    if variables.is_empty() && environment.overrides.is_empty() {
        return;
    }
    let shape = shape::of::<Config>();
    for (place, steps, value) in variables.into_iter().chain(flags) {
        if let Err(message) = override_value((root, &shape), &steps, value, &place) {
            faults.push(Fault::new(place, &message));
        }
    }
}

fn override_value(
    (root, shape): (&mut Node, &Shape),
    steps: &[String],
    value: &str,
    place: &Place,
) -> Result<(), String> {
    if value.is_empty() {
        return Err("the value is empty: leave it out, or give one".to_owned());
    }
    let (mut node, mut shape) = (root, Some(shape));
    for step in steps {
        // A section without keys below it reads as nothing.
        if let Content::Scalar(Scalar { value: Value::Nothing, .. }) = node.content {
            *node = empty(shape, place);
        }
        shape = shape.and_then(|shape| shape.below(step));
        node = match &mut node.content {
            Content::Map(map) => {
                let at = map.entries.iter().position(|entry| entry.key == *step).unwrap_or_else(|| {
                    let node = empty(shape, place);
                    map.entries.push(Entry { key: step.clone(), place: place.clone(), node });
                    map.entries.len() - 1
                });
                &mut map.entries[at].node
            }
            Content::List(list) => {
                let number = step.parse().ok().filter(|number| *number <= list.items.len());
                let number: usize = number.ok_or_else(|| format!("the list has no item `{step}`"))?;
                if number == list.items.len() {
                    list.items.push(empty(shape, place));
                }
                &mut list.items[number]
            }
            Content::Scalar(_) => return Err(format!("there is no section above `{step}`")),
        };
    }
    *node = written(value, shape, place)?;
    Ok(())
}

/// What `value` says of this shape: lists and sections are written as YAML has them on one line. What is none is not
/// repeated: there may be secrets in it.
fn written(value: &str, shape: Option<&Shape>, place: &Place) -> Result<Node, String> {
    let scalar = Scalar::guess(value);
    match shape.map(|shape| &shape.form) {
        _ if scalar.value == Value::Nothing => Ok(Node::scalar(place.clone(), scalar)),
        Some(Form::List(_)) => Node::flow(value, place).ok_or_else(|| "expected a list such as [a, b]".to_owned()),
        Some(Form::Section(_) | Form::Named(_)) => {
            Node::flow(value, place).ok_or_else(|| "expected a section such as {key: value}".to_owned())
        }
        _ => Ok(Node::scalar(place.clone(), scalar)),
    }
}

/// What a value begins as, whose parts are said one by one.
fn empty(shape: Option<&Shape>, place: &Place) -> Node {
    match shape.map(|shape| &shape.form) {
        Some(Form::List(_)) => Node::empty_list(place.clone()),
        _ => Node::empty_map(place.clone()),
    }
}

/// Replaces references in text. A value whose reference cannot be resolved is reported and taken out.
pub(super) fn substitute(node: &mut Node, folder: &Path, environment: &Environment, faults: &mut Vec<Fault>) {
    match &mut node.content {
        Content::Scalar(_) => {}
        Content::List(list) => {
            let before = list.items.len();
            list.items.retain_mut(|item| substitute_scalar(item, folder, environment, faults));
            list.damaged |= list.items.len() < before;
            list.items.iter_mut().for_each(|item| substitute(item, folder, environment, faults));
        }
        Content::Map(map) => {
            let removed = &mut map.removed;
            map.entries.retain_mut(|entry| {
                let resolved = substitute_scalar(&mut entry.node, folder, environment, faults);
                if !resolved {
                    removed.push(entry.key.clone());
                }
                resolved
            });
            map.entries.iter_mut().for_each(|entry| substitute(&mut entry.node, folder, environment, faults));
        }
    }
}

fn substitute_scalar(node: &mut Node, folder: &Path, environment: &Environment, faults: &mut Vec<Fault>) -> bool {
    let Content::Scalar(Scalar { text, value: Value::Text }) = &node.content else { return true };
    if !text.contains("${") {
        return true;
    }
    match resolve(text, folder, environment) {
        Ok(resolved) => {
            // A number may come from outside as well; nothing may not, or an empty variable would unset a token.
            let scalar = Scalar::guess(&resolved);
            let scalar = if scalar.value == Value::Nothing { Scalar::text(resolved) } else { scalar };
            node.origin = Some(text.clone());
            node.content = Content::Scalar(scalar);
            true
        }
        Err(message) => {
            faults.push(Fault::new(node.place.clone(), &message));
            false
        }
    }
}

/// `text` with its references replaced. What they yield is not searched again; `$${` stands for `${`.
fn resolve(text: &str, folder: &Path, environment: &Environment) -> Result<String, String> {
    let mut resolved = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(literal) = rest[..start].strip_suffix('$') {
            resolved.push_str(literal);
            resolved.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        resolved.push_str(&rest[..start]);
        let end = rest[start..].find('}').ok_or("`${` is not closed by `}`; write `$${` for a literal `${`")?;
        let reference = &rest[start + 2..start + end];
        let value = match reference.split_once(':') {
            Some(("env", name)) => environment
                .variables
                .get(name)
                .ok_or_else(|| format!("environment variable `{name}` is not set"))?
                .clone(),
            Some(("file", path)) => {
                read_secret(&folder.join(path)).map_err(|cause| format!("cannot read `{path}`: {cause}"))?
            }
            _ => return Err(format!("unknown reference `${{{reference}}}` (known: ${{env:NAME}}, ${{file:PATH}})")),
        };
        if value.is_empty() {
            return Err(format!("`${{{reference}}}` is empty"));
        }
        resolved.push_str(&value);
        rest = &rest[start + end + 1..];
    }
    resolved.push_str(rest);
    Ok(resolved)
}

/// A file's text without the line ends that editors leave at its end.
fn read_secret(path: &Path) -> Result<String, String> {
    let bytes = read(path, SECRET_BYTES_MAX).map_err(|error| error.to_string())?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > SECRET_BYTES_MAX) {
        return Err("larger than 64 KiB".to_owned());
    }
    let mut text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_once_and_can_be_escaped() {
        let environment: Environment = [("A", "${env:B}"), ("B", "b"), ("EMPTY", "")].into_iter().collect();
        let resolve = |text| resolve(text, Path::new("/nowhere"), &environment);
        for (text, expected) in [
            ("x-${env:B}-${env:B}", Ok("x-b-b")),
            ("${env:A}", Ok("${env:B}")),
            ("$${env:B}", Ok("${env:B}")),
            ("a $ {b}", Ok("a $ {b}")),
            ("${env:C}", Err("environment variable `C` is not set")),
            ("${env:EMPTY}", Err("`${env:EMPTY}` is empty")),
            ("${ENV:B}", Err("unknown reference `${ENV:B}` (known: ${env:NAME}, ${file:PATH})")),
            ("${env:B", Err("`${` is not closed by `}`; write `$${` for a literal `${`")),
            ("${file:key}", Err("cannot read `key`: No such file or directory (os error 2)")),
        ] {
            assert_eq!(resolve(text), expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
    }
}
