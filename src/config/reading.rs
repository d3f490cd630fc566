//! Text -> configuration, or every fault that stands in the way.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::decode::{Misfit, decode};
use super::document::{self, Content, Node, ROUNDS_MAX};
use super::fault::Fault;
use super::fleet::{TokenizerSource, Worker};
use super::inputs::{Environment, is_too_large, override_values, read_config, substitute};
use super::leaves::Origins;
use super::place::Place;
use super::secrecy::{self, Hidden};
use super::{Config, ConfigError, check};

/// What came of reading a configuration.
pub struct Reading {
    /// What is left when all that is faulty counts as not given; `None` where nothing is.
    pub config: Option<Config>,
    /// All faults in the order of their places; after some 64 among the values the last says that there may be more.
    pub faults: Vec<Fault>,
    /// Where its values were written.
    pub origins: Origins,
    /// What was read, for excerpts, and what of it is not shown.
    text: String,
    hidden: Hidden,
}

/// Rules across fields, which append what breaks them.
type Rules = fn(&Config, &Node, &mut Vec<Fault>);

impl Reading {
    /// Reads a file, with the overrides and secrets of `environment`.
    ///
    /// # Errors
    /// The file cannot be read at all.
    pub fn of_file(path: &Path, environment: &Environment) -> io::Result<Self> {
        Self::of_file_under(check::check, path, environment)
    }

    /// The same for a file that may name no workers.
    pub(super) fn policies_of_file(path: &Path, environment: &Environment) -> io::Result<Self> {
        Self::of_file_under(check::check_without_fleet, path, environment)
    }

    fn of_file_under(rules: Rules, path: &Path, environment: &Environment) -> io::Result<Self> {
        let bytes = read_config(path)?;
        let name = path.display().to_string();
        if is_too_large(&bytes) {
            return Ok(Self::refused(Place::start(name), "a configuration has at most 1 MiB"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::under(rules, &name, text, path.parent().unwrap_or(Path::new("")), environment)),
            Err(error) => {
                let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let valid = String::from_utf8_lossy(valid);
                let line = valid.matches('\n').count() + 1;
                let column = valid.chars().rev().take_while(|c| *c != '\n').count() + 1;
                let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
                let place = Place { source: name.into(), line: number(line), column: number(column) };
                Ok(Self::refused(place, "not UTF-8"))
            }
        }
    }

    /// Reads `text`, which messages call `name`. Relative paths in it start from `folder`.
    pub fn of_text(name: &str, text: String, folder: &Path, environment: &Environment) -> Self {
        Self::under(check::check, name, text, folder, environment)
    }

    fn under(rules: Rules, name: &str, text: String, folder: &Path, environment: &Environment) -> Self {
        let mut faults = Vec::new();
        let mut origins = Origins::default();
        let root = document::parse(name, &text, &mut faults);
        let hidden = Hidden::of(root.as_ref(), name, &text);
        let config = root.and_then(|mut root| {
            override_values(&mut root, environment, &mut faults);
            substitute(&mut root, folder, environment, &mut faults);
            origins = Origins::of(&root, name);
            let config = decode_all(&mut root, &mut faults)?;
            rules(&config, &root, &mut faults);
            Some(from_folder(config, folder))
        });
        // What an override says comes after what the file says.
        faults.sort_by(|a, b| (&*a.place.source != name, &a.place).cmp(&(&*b.place.source != name, &b.place)));
        Self { config, faults, origins, text, hidden }
    }

    /// Reads a file with a list of workers for `config`.
    pub(super) fn workers_of_file(
        path: &Path,
        config: &Config,
        environment: &Environment,
    ) -> io::Result<Result<Vec<Worker>, ConfigError>> {
        // Whoever opened a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let bytes = read_config(path)?;
        let name = path.display().to_string();
        let refused = |message| Err(ConfigError::Faulty(vec![Fault::new(Place::start(name.as_str()), message)]));
        if is_too_large(&bytes) {
            return Ok(refused("a list of workers has at most 1 MiB"));
        }
        let Ok(text) = String::from_utf8(bytes) else { return Ok(refused("not UTF-8")) };
        let mut faults = Vec::new();
        let root = document::parse(&name, &text, &mut faults);
        let workers = root.and_then(|mut root| {
            substitute(&mut root, path.parent().unwrap_or(Path::new("")), environment, &mut faults);
            let workers = match &root.content {
                Content::List(_) => decode_all(&mut root, &mut faults)?,
                _ => decode_all::<WorkerList>(&mut root, &mut faults)?.workers,
            };
            let merged = Config { workers, ..config.clone() };
            check::check_workers(&merged, &root, &mut faults);
            Some(merged.workers)
        });
        Ok(match workers {
            Some(workers) if faults.is_empty() => Ok(workers),
            _ => Err(ConfigError::Faulty(faults)),
        })
    }

    /// The line of a fault with a caret below its column, both indented; none where it lies elsewhere than in what was read
    /// under this `name`, or where the line holds a secret.
    pub fn excerpt(&self, name: &str, fault: &Fault) -> Option<String> {
        if self.hidden.has(fault.place.line) { None } else { fault.excerpt(name, &self.text) }
    }

    /// Something to say of `key`, as `section.key` with items by their number, at its place in what was read under this
    /// `name`.
    pub fn at(&self, name: &str, key: &str, message: &str) -> Fault {
        let place = self.origins.place(key, name).unwrap_or_else(|| Place::start(name));
        Fault::new(place, message)
    }

    /// The configuration, if it has no fault.
    ///
    /// # Errors
    /// All its faults.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        match self.config {
            Some(config) if self.faults.is_empty() => Ok(config),
            _ => Err(ConfigError::Faulty(self.faults)),
        }
    }

    fn refused(place: Place, message: &str) -> Self {
        Self {
            config: None,
            faults: vec![Fault::new(place, message)],
            origins: Origins::default(),
            text: String::new(),
            hidden: Hidden::default(),
        }
    }
}

/// A file with nothing but workers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerList {
    workers: Vec<Worker>,
}

/// Decodes the document; reports what does not fit, takes it out, and decodes again.
fn decode_all<T: DeserializeOwned>(root: &mut Node, faults: &mut Vec<Fault>) -> Option<T> {
    for _ in 0..ROUNDS_MAX {
        let misfit = match decode(root) {
            Ok(decoded) => return Some(decoded),
            Err(misfit) => misfit,
        };
        let path = misfit.path();
        if !is_consequence(&misfit, root.at(&path)) {
            let place = misfit.place.unwrap_or_else(|| root.place.clone());
            faults.push(Fault::new(place, &secrecy::told(&misfit.message, root, &path)));
        }
        if !root.remove(&path) {
            return None;
        }
    }
    let last = faults.iter().map(|fault| &fault.place).max();
    let place = last.unwrap_or(&root.place).clone();
    faults.push(Fault::new(place, "there may be more: after so many faults no further values are looked at"));
    None
}

/// Whether a key is missing only because its value was at fault and taken out.
fn is_consequence(misfit: &Misfit, node: Option<&Node>) -> bool {
    match (misfit.missing, node.map(|node| &node.content)) {
        (Some(key), Some(document::Content::Map(map))) => map.removed.iter().any(|removed| removed == key),
        _ => false,
    }
}

fn from_folder(mut config: Config, folder: &Path) -> Config {
    for model in &mut config.models {
        if let Some(TokenizerSource::File(path)) = &mut model.tokenizer {
            *path = folder.join(&*path);
        }
        if let Some(path) = &mut model.chat_template {
            *path = folder.join(&*path);
        }
    }
    config.listen.data_tls.start_from(folder);
    config.listen.admin_tls.start_from(folder);
    if let Some(path) = &mut config.index.snapshots {
        *path = folder.join(&*path);
    }
    if let Some(path) = &mut config.discovery.file.path {
        *path = folder.join(&*path);
    }
    config.events.nats.start_from(folder);
    config.discovery.kubernetes.start_from(folder);
    if let Some(path) = &mut config.record {
        *path = folder.join(&*path);
    }
    config.upstream_tls.start_from(folder);
    config
}
