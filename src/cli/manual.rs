//! `warmpath completions` and `warmpath man`: what shells and `man` want to know of the commands, made from the commands
//! themselves.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::misuse::OrMisuse;
use super::say;

/// What a shell completes after `warmpath`, on standard output: for bash put it into
/// `/usr/share/bash-completion/completions/warmpath`, for zsh into a folder of `$fpath` as `_warmpath`, for fish into
/// `~/.config/fish/completions/warmpath.fish`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// The manual page on standard output, or with --out a page for each command.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write `warmpath.1` and a page for each command into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "warmpath", &mut script);
        shown(&script)
    }
}

impl ManArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let pages = pages()?;
        let Some(folder) = self.out else { return shown(&pages[0].1) };
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display())).or_misuse()?;
        for (name, page) in pages {
            let file = folder.join(name);
            std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display())).or_misuse()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(text: &[u8]) -> anyhow::Result<ExitCode> {
    say(format_args!("{}", String::from_utf8_lossy(text)))?;
    Ok(ExitCode::SUCCESS)
}

/// A page for the program, and behind it one for each command, by the names of their files.
fn pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    page(&program, &mut pages)?;
    Ok(pages)
}

fn page(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    let name = man.get_filename();
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((name, page));
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| self::page(command, pages))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_is_told_of_every_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "warmpath", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            // fish is told without the dashes.
            assert!(script.contains("--metric-names") || script.contains("-l metric-names"), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_page_of_its_own_with_all_its_options() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names[0], names[1]), ("warmpath.1", "warmpath-demo.1"));
        assert!(names.contains(&"warmpath-config-show.1") && names.contains(&"warmpath-events-decode.1"), "{names:?}");
        let serve = &pages.iter().find(|(name, _)| name == "warmpath-serve.1").unwrap().1;
        let serve = String::from_utf8_lossy(serve);
        assert!(serve.contains(".TH") && serve.contains("\\-\\-config"), "{serve}");
    }
}
