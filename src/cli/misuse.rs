//! What commands exit with when they fail, and what they say then.

use std::process::ExitCode;

use super::remark;
use crate::config::ConfigError;
use crate::printable;

/// What was asked cannot be done as it was asked, or a file that was named cannot be read: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Misuse(anyhow::Error);

/// Errors that are the fault of what was asked.
pub(super) trait OrMisuse<T> {
    /// The same, where an error ends the command with exit code 2.
    ///
    /// # Errors
    /// Those there were.
    fn or_misuse(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrMisuse<T> for Result<T, E> {
    fn or_misuse(self) -> anyhow::Result<T> {
        self.map_err(|error| Misuse(error.into()).into())
    }
}

/// The fault of what was asked, as a sentence says it.
pub(super) fn misuse(said: impl Into<String>) -> anyhow::Error {
    Misuse(anyhow::Error::msg(said.into())).into()
}

/// Says on standard error why a command failed. Faults of a configuration stay lines that editors read.
pub fn told(error: &anyhow::Error) -> ExitCode {
    if let Some(faulty) = error.downcast_ref::<ConfigError>() {
        remark(format_args!("{faulty}\n"));
        return ExitCode::from(faulty.exit_code());
    }
    remark(format_args!("warmpath: {}\n", printable::lines(&format!("{error:#}"))));
    let is_misuse = error.chain().any(|cause| cause.is::<Misuse>());
    if is_misuse { ExitCode::from(2) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn misuse_is_known_below_any_context_and_tells_its_causes() {
        let failed = || Err::<(), _>(std::io::Error::other("gone"));
        let error = failed().context("f").or_misuse().context("--trace").unwrap_err();
        assert_eq!((format!("{error:#}").as_str(), told(&error)), ("--trace: f: gone", ExitCode::from(2)));
        let error = failed().context("f").unwrap_err();
        assert_eq!(told(&error), ExitCode::FAILURE);
        assert_eq!(told(&misuse("no")), ExitCode::from(2));
    }
}
