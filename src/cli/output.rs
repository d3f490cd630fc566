//! Files that results are written to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::misuse::OrMisuse;

/// A file that was opened before the work whose result it is to hold, so that no work is done in vain. What it held
/// stays until there is a result.
pub(super) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens what an option names, if it names anything.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn asked(path: Option<&Path>) -> anyhow::Result<Option<Self>> {
        path.map(Self::open).transpose()
    }

    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display())).or_misuse()?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the result in place of what the file held.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn write(self, text: &str) -> anyhow::Result<()> {
        self.replaced(text).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn replaced(&self, text: &str) -> io::Result<()> {
        (&self.file).write_all(text.as_bytes())?;
        // A pipe or a terminal has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(u64::try_from(text.len()).unwrap_or(u64::MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_what_it_held_until_there_is_a_result() {
        let path = std::env::temp_dir().join(format!("warmpath-output-{}", std::process::id()));
        std::fs::write(&path, "longer than before").unwrap();
        let output = Output::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "longer than before");
        output.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        std::fs::remove_file(&path).unwrap();
    }
}
