//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Entries at any depth that hold nothing of ours.
const FOREIGN_ENTRIES: &[&str] = &["target", ".git", ".cache"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Path and text of every Rust file, tracked or not.
pub(crate) fn rust_files() -> Vec<(String, String)> {
    let files = walk().into_iter().filter(|path| path.ends_with(".rs"));
    let files: Vec<_> = files.map(|path| (path.clone(), read(&path))).collect();
    assert!(!files.is_empty(), "no Rust file found below {}", root().display());
    files
}

/// What git tracks; every file, where there is no git or no repository, as in an unpacked archive.
pub(crate) fn tracked_files() -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z"]).current_dir(root());
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(variable);
    }
    let listed = git.output().ok().filter(|output| output.status.success() && !output.stdout.is_empty());
    let Some(output) = listed else { return walk() };
    output.stdout.split(|byte| *byte == 0).filter_map(|path| String::from_utf8(path.to_vec()).ok()).collect()
}

/// Every file below the root, with `/` between the parts of its path, sorted.
fn walk() -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder of the repository is readable") {
            let entry = entry.expect("an entry of a folder is readable");
            let path = folder.join(entry.file_name());
            if FOREIGN_ENTRIES.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            let kind = entry.file_type().expect("the kind of an entry is readable");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                files.extend(path.to_str().map(|path| path.replace('\\', "/")));
            }
        }
    }
    files.sort();
    files
}
