//! Files that results are written to.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::misuse::{OrMisuse, misuse};
use super::say;
use crate::report::Page;

/// Standard output by the name that it has among files. Opened as one it would be written from its beginning again.
const STREAM: &str = "/dev/stdout";

/// Files that a command reads, each with the option that names it. No result takes the place of one.
pub(super) type Inputs<'a> = &'a [(&'static str, Option<&'a Path>)];

/// A file that was opened before the work whose result it is to hold, so that no work is done in vain. What it held
/// stays until there is a result, and one that was made for a result that does not come goes again.
pub(super) struct Output {
    path: PathBuf,
    /// None for standard output.
    file: Option<File>,
    /// Whether it was made here and holds nothing yet.
    is_new: bool,
}

impl Output {
    /// Opens what an option names, if it names anything.
    ///
    /// # Errors
    /// It cannot be written, or is one of the `inputs`.
    pub(super) fn asked(path: Option<&Path>, inputs: Inputs<'_>) -> anyhow::Result<Option<Self>> {
        path.map(|path| Self::open(path, inputs)).transpose()
    }

    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// It cannot be written, or is one of the `inputs`.
    pub(super) fn open(path: &Path, inputs: Inputs<'_>) -> anyhow::Result<Self> {
        if path == Path::new(STREAM) {
            return Ok(Self { path: path.to_owned(), file: None, is_new: false });
        }
        let same = inputs.iter().find(|(_, input)| input.is_some_and(|input| are_one_file(input, path)));
        if let Some((option, _)) = same {
            return Err(misuse(format!("cannot write {}: it is the file that {option} reads", path.display())));
        }
        let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Made where it is a link to what is not there.
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
                file.map(|file| (file, false))
            }
            made => made.map(|file| (file, true)),
        };
        let (file, is_new) = opened.with_context(|| format!("cannot write {}", path.display())).or_misuse()?;
        Ok(Self { path: path.to_owned(), file: Some(file), is_new })
    }

    /// Opens the file beside one that an option names, whose ending is `ending` instead; none beside standard output.
    ///
    /// # Errors
    /// It cannot be written, or is one of the `inputs`.
    pub(super) fn beside(path: Option<&Path>, ending: &str, inputs: Inputs<'_>) -> anyhow::Result<Option<Self>> {
        let file = path.filter(|path| *path != Path::new(STREAM));
        file.map(|path| Self::open(&path.with_extension(ending), inputs)).transpose()
    }

    /// Writes the result in place of what the file held.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn write(mut self, text: &str) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return say(format_args!("{text}")) };
        replaced(file, text).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.is_new = false;
        Ok(())
    }

    /// Writes a page that says by which command it was made.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn page(self, page: Page) -> anyhow::Result<()> {
        self.write(&page.command(command()).render())
    }
}

/// The command as it was given, to be given to a shell again.
fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| shell_word(&word.to_string_lossy()));
    std::iter::once("warmpath".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A word in the quotes, if any, that a shell wants.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Whether both names, through links, lead to one file. What is no file, such as a terminal, may be read and written.
fn are_one_file(a: &Path, b: &Path) -> bool {
    let known = |path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    let both = known(a).zip(known(b));
    both.is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

fn replaced(mut file: &File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    // A pipe or a terminal has no length.
    if file.metadata()?.is_file() {
        file.set_len(u64::try_from(text.len()).unwrap_or(u64::MAX))?;
    }
    Ok(())
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            // Where it cannot be removed it stays, empty.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_it_otherwise() {
        for (word, quoted) in
            [("--speed", "--speed"), ("4,8", "4,8"), ("a b", "'a b'"), ("", "''"), ("it's", r"'it'\''s'")]
        {
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn a_file_that_was_made_for_a_result_goes_where_none_comes() {
        let path = std::env::temp_dir().join(format!("warmpath-output-new-{}", std::process::id()));
        drop(Output::open(&path, &[]).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "before").unwrap();
        drop(Output::open(&path, &[]).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        std::fs::remove_file(&path).unwrap();
        Output::open(&path, &[]).unwrap().write("result").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "result");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_keeps_what_it_held_until_there_is_a_result() {
        let path = std::env::temp_dir().join(format!("warmpath-output-{}", std::process::id()));
        std::fs::write(&path, "longer than before").unwrap();
        let output = Output::open(&path, &[]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "longer than before");
        output.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_read_is_not_written_by_whatever_name() {
        let folder = std::env::temp_dir().join(format!("warmpath-output-inputs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [input, link, hard, other] = ["input", "link", "hard", "other"].map(|name| folder.join(name));
        std::fs::write(&input, "input").unwrap();
        std::os::unix::fs::symlink(&input, &link).unwrap();
        std::fs::hard_link(&input, &hard).unwrap();
        let inputs: Inputs<'_> = &[("--config", None), ("--trace", Some(&input))];
        for name in [&input, &link, &hard, &folder.join(".").join("input")] {
            let error = Output::asked(Some(name), inputs).err().unwrap();
            let expected = format!("cannot write {}: it is the file that --trace reads", name.display());
            assert_eq!(error.to_string(), expected);
        }
        assert!(Output::asked(Some(&other), inputs).is_ok());
        assert!(Output::asked(Some(Path::new("/dev/null")), &[("--trace", Some(Path::new("/dev/null")))]).is_ok());
        assert_eq!(std::fs::read_to_string(&input).unwrap(), "input");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
