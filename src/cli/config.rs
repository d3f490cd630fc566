//! `warmpath config show` and `warmpath schema`: what counts and who said so, and what could be said.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::overrides::Overrides;
use super::say;
use crate::config::{Environment, Leaf, Origin, Reading, leaves, reference, schema};

/// What can be done with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every value in effect, and who said so: the file, an environment variable, the command line, or nobody.
    Show(ShowArgs),
}

/// Reads the configuration as `serve` does, and shows every value in effect with its origin. Secrets are not shown.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct ShowArgs {
    /// The configuration.
    file: PathBuf,
    /// Leave out what nobody said.
    #[arg(long)]
    set: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    overrides: Overrides,
}

const AFTER: &str = "\
A line for each value: its name, the value, its origin. `default`: nobody said it; `FILE:line:column`, with what is written
there where that refers to the environment or to a file; the name of the variable that overrides the file; or the
`--override` that overrides both.

--json: {\"values\": [{\"key\", \"value\", \"origin\": \"default\", \"file\", \"environment\" or \"flag\", …}]}; with `file` also
line, column and perhaps `from`, with `environment` the variable, with `flag` the flag.

Exit codes: 0 shown, 1 the configuration has faults, 2 an unreadable file.";

/// What can be configured, for editors or for people.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Print the reference as Markdown instead of the JSON Schema.
    #[arg(long)]
    markdown: bool,
}

impl ConfigCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Self::Show(args) = self;
        let mut shown = Vec::new();
        let code = args.show(&args.overrides.environment(), &mut shown, &mut io::stderr().lock());
        say(format_args!("{}", String::from_utf8_lossy(&shown)))?;
        Ok(code)
    }
}

impl SchemaArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = if self.markdown { reference() } else { serde_json::to_string_pretty(&schema())? + "\n" };
        say(format_args!("{text}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowArgs {
    /// Nobody is left to tell where a fault cannot be written, so the exit code alone must do.
    fn show(&self, environment: &Environment, stdout: &mut dyn Write, stderr: &mut dyn Write) -> ExitCode {
        let reading = match Reading::of_file(&self.file, environment) {
            Ok(reading) => reading,
            Err(error) => {
                let _ = writeln!(stderr, "{}: cannot be read: {error}", self.file.display());
                return ExitCode::from(2);
            }
        };
        let (Some(config), []) = (&reading.config, reading.faults.as_slice()) else {
            reading.faults.iter().for_each(|fault| {
                let _ = writeln!(stderr, "{fault}");
            });
            return ExitCode::FAILURE;
        };
        let mut values = leaves(config, &reading.origins);
        values.retain(|leaf| !self.set || leaf.origin != Origin::Default);
        let text = if self.json { format!("{:#}\n", json!({ "values": values })) } else { lines(&values, &self.file) };
        let _ = stdout.write_all(text.as_bytes());
        ExitCode::SUCCESS
    }
}

fn lines(values: &[Leaf], file: &Path) -> String {
    let shown: Vec<_> = values.iter().map(|leaf| (leaf, leaf.value.to_string(), origin(&leaf.origin, file))).collect();
    let width = |of: fn(&(&Leaf, String, String)) -> usize, most| shown.iter().map(of).max().unwrap_or(0).min(most);
    let keys = width(|(leaf, ..)| leaf.key.chars().count(), 60);
    let values = width(|(_, value, _)| value.chars().count(), 40);
    let line =
        |(leaf, value, origin): &(&Leaf, String, String)| format!("{:<keys$}  {value:<values$}  {origin}\n", leaf.key);
    shown.iter().map(line).collect()
}

fn origin(origin: &Origin, file: &Path) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File { line, column, from: None } => format!("{}:{line}:{column}", file.display()),
        Origin::File { line, column, from: Some(from) } => format!("{}:{line}:{column} {from}", file.display()),
        Origin::Environment { variable } => variable.clone(),
        Origin::Flag { flag } => flag.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown_with_its_place() {
        let file = std::env::temp_dir().join(format!("warmpath-show-{}.yaml", std::process::id()));
        let yaml =
            "models: [{name: m}]\nworkers: [{id: w, url: 'http://h:1', model: m}]\nlisten: {admin_token: '${env:T}'}\n";
        std::fs::write(&file, yaml).unwrap();
        let environment: Environment =
            [("T", "hidden"), ("WARMPATH__USAGE", "always"), ("WARMPATH__ROUTING__POLICY", "kv")].into_iter().collect();
        let environment = environment.with(vec!["routing.policy=blocks".parse().unwrap()]);
        let mut text = Vec::new();
        let args = ShowArgs { file: file.clone(), set: true, json: false, overrides: Overrides::default() };
        let code = args.show(&environment, &mut text, &mut Vec::new());
        std::fs::remove_file(&file).unwrap();
        let name = file.display();
        let expected = format!(
            "listen.admin_token  \"[secret]\"    {name}:3:23 ${{env:T}}\n\
             models[m].name      \"m\"           {name}:1:17\n\
             workers[w].id       \"w\"           {name}:2:16\n\
             workers[w].url      \"http://h:1\"  {name}:2:24\n\
             workers[w].model    \"m\"           {name}:2:45\n\
             routing.policy      \"blocks\"      --override routing.policy\n\
             usage               \"always\"      WARMPATH__USAGE\n"
        );
        assert_eq!((code, String::from_utf8(text).unwrap()), (ExitCode::SUCCESS, expected));
    }
}
