//! House rules that the compiler does not know: who may import whom, how long files and functions may be, which names
//! and words do not occur. Each test collects every breach before it fails. The tables below are the map of
//! ARCHITECTURE.md; whoever changes one changes the other.

#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/source.rs"]
mod source;

use std::fs;

use files::{read, root, rust_files, tracked_files};
use layers::Row;

/// `src/`, from top to bottom. A module imports from its own line and the lines below it, and from the other crates.
/// `main.rs` and `lib.rs` stand above all.
const SRC_ORDER: &[&[&str]] = &[
    &["cli"],
    &["demo"],
    &["app"],
    &["bridge", "calibrate", "doctor"],
    &["mock_engine"],
    &["http"],
    &["door"],
    &["optimize", "tune"],
    &["replay"],
    &["upstream"],
    &["events"],
    &["fleet"],
    &["queue", "decisions"],
    &["tokenize"],
    &["openai"],
    &["telemetry"],
    &["link"],
    &["config"],
    &["error", "pem"],
    &["report"],
    &[
        "alarm",
        "aside",
        "http1",
        "lookup",
        "loss",
        "processor",
        "shutdown",
        "request_id",
        "room",
        "printable",
        "stride",
        "turn",
        "wall_clock",
    ],
];

/// `router-core/src/`, from bottom to top: what a module may import. `cost/*` are the files in the folder.
const ROUTER_CORE: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("units", &[]),
    ("real", &[]),
    ("count", &[]),
    ("recent", &[]),
    ("namespace", &["units"]),
    ("slot_set", &["ids"]),
    ("blocks", &["ids", "units", "namespace"]),
    ("shape", &["ids", "units", "slot_set", "blocks"]),
    ("overlap", &["ids", "units", "slot_set"]),
    ("overlay", &["ids", "units", "slot_set", "overlap"]),
    ("engine_load", &["units"]),
    ("ledger", &["units", "overlay", "engine_load"]),
    ("trust", &["units", "shape"]),
    ("workers", &["ids", "units", "ledger", "trust"]),
    ("observe", &["ids", "units", "slot_set", "shape", "overlap"]),
    ("history", &["ids", "units", "shape"]),
    ("rates", &["real", "recent", "ids", "units", "slot_set", "shape", "overlap", "observe"]),
    ("cost", &["ids", "units", "shape", "overlap", "history"]),
    ("cost/*", &["real", "ids", "units", "shape", "overlap", "observe", "rates", "cost"]),
    ("queue", &["units", "shape"]),
    ("pick", &["real", "cost"]),
    ("retry", &["ids", "cost"]),
    ("policy", &["ids", "shape", "observe", "history", "cost", "pick"]),
    ("session", &["recent", "ids", "shape", "observe", "cost"]),
    ("admission", &["units", "slot_set", "ledger", "workers", "cost"]),
    (
        "scheduler",
        &[
            "ids",
            "units",
            "slot_set",
            "shape",
            "overlap",
            "overlay",
            "ledger",
            "workers",
            "observe",
            "history",
            "cost",
            "pick",
            "policy",
            "session",
            "admission",
        ],
    ),
];

/// `indexer/src/`, from bottom to top: what a module may import, beside `warmpath_core`.
const INDEXER: &[(&str, &[&str])] = &[
    ("event", &[]),
    ("codec", &["event"]),
    ("feed", &[]),
    ("repair", &["feed"]),
    ("table", &[]),
    ("room", &[]),
    ("store", &[]),
    ("snapshot", &["feed", "store"]),
    ("view", &["event", "table", "room", "store", "snapshot"]),
    ("index", &["event", "feed", "room", "store", "snapshot", "view"]),
    ("tree", &["store", "index"]),
    ("concurrent", &["table", "store", "index"]),
    ("approx", &[]),
];

/// `simulator/src/`, from top to bottom, beside `warmpath_core` and `warmpath_indexer`.
const SIMULATOR_ORDER: &[&[&str]] = &[
    &["fleet"],
    &["scheduler"],
    &["job"],
    &["cache", "engine_config"],
    &["tiers", "timing", "announce", "check", "nano"],
    &["request"],
    &["blocks", "radix", "sequence"],
    &["clock", "free_queue", "naming", "stats"],
];

/// The packages that the lower crates may depend on. A runtime, a socket or a clock is never among them.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("router-core", &["bytemuck", "foldhash", "rand", "serde", "smallvec", "thiserror", "wide", "xxhash-rust"]),
    ("indexer", &["warmpath-core", "foldhash", "rmp", "serde", "serde_json", "smallvec", "thiserror", "xxhash-rust"]),
    (
        "simulator",
        &["warmpath-core", "warmpath-indexer", "foldhash", "rand", "sha2", "smallvec", "thiserror", "xxhash-rust"],
    ),
];

/// What they may use in tests besides.
const DEV_DEPENDENCIES: &[&str] = &["flate2", "proptest", "rand", "serde_json"];

/// Lines of a file outside of its test modules.
const FILE_LINES_MAX: usize = 400;
/// Lines of a function, from `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 60;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "common", "misc", "manager", "types", "helpers"];
/// Macros that mark unfinished work.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// What belongs to one machine or one registry and never into the repository.
const BANNED_WORDS: &[&str] =
    &["/work/", "/root/", "../shared", "crates.io", "registry.npmjs", "pypi.org", "deb.debian"];

/// Files that name them for a good reason.
const BANNED_WORDS_EXEMPT: &[&str] = &["tests/tidy.rs", "Cargo.lock", "scripts/peers/Cargo.lock"];

#[test]
fn modules_import_only_what_the_map_allows() {
    let tables = [
        ("src", layers::rows_of_order(SRC_ORDER)),
        ("simulator/src", layers::rows_of_order(SIMULATOR_ORDER)),
        ("router-core/src", rows(ROUTER_CORE)),
        ("indexer/src", rows(INDEXER)),
    ];
    let mut breaches = Vec::new();
    for (folder, table) in &tables {
        for (path, text) in rust_files() {
            let Some(inside) = path.strip_prefix(&format!("{folder}/")) else { continue };
            breaches
                .extend(layers::breaches(table, inside, &text).into_iter().map(|fault| format!("{folder}/{fault}")));
        }
    }
    report(&breaches);
}

#[test]
fn the_maps_of_the_lower_crates_allow_no_more_than_is_imported() {
    let mut breaches = Vec::new();
    for (name, folder, table) in
        [("ROUTER_CORE", "router-core/src/", ROUTER_CORE), ("INDEXER", "indexer/src/", INDEXER)]
    {
        let inside = |(path, text): (String, String)| Some((path.strip_prefix(folder)?.to_owned(), text));
        let files: Vec<_> = rust_files().into_iter().filter_map(inside).collect();
        breaches.extend(layers::unused(&rows(table), &files).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    report(&breaches);
}

#[test]
fn the_maps_of_the_lower_crates_read_from_the_bottom_up() {
    let mut breaches = Vec::new();
    for (name, table) in [("ROUTER_CORE", ROUTER_CORE), ("INDEXER", INDEXER)] {
        for (at, (module, allowed)) in table.iter().enumerate() {
            let unknown = allowed.iter().filter(|import| !table[..at].iter().any(|(lower, _)| lower == *import));
            breaches.extend(
                unknown.map(|import| format!("{name}: `{module}` may import `{import}`, which has no row above it")),
            );
        }
    }
    report(&breaches);
}

#[test]
fn the_architecture_names_every_module_and_every_dependency() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let modules = SRC_ORDER.iter().chain(SIMULATOR_ORDER).copied().flatten().copied();
    let modules = modules.chain(ROUTER_CORE.iter().chain(INDEXER).map(|(module, _)| *module));
    let absent = modules.filter(|module| !module.contains('/'));
    let absent = absent.filter(|module| !architecture.contains(&format!("\n  {module}.rs")));
    let mut breaches: Vec<String> =
        absent.map(|module| format!("ARCHITECTURE.md: the map has no line for `{module}.rs`")).collect();
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml is there");
    let section = manifest.split("[workspace.dependencies]").nth(1).and_then(|rest| rest.split("\n[").next());
    let names = section.unwrap_or_default().lines().filter_map(|line| Some(line.split_once(" = ")?.0.trim()));
    let ours = |name: &str| name.starts_with("warmpath-");
    let words: Vec<&str> = architecture.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').collect();
    let unjustified = names.filter(|name| !ours(name) && !words.contains(name));
    breaches.extend(unjustified.map(|name| format!("ARCHITECTURE.md: `{name}` has no line with its reason")));
    report(&breaches);
}

#[test]
fn the_lower_crates_depend_only_on_what_they_may() {
    let mut breaches = Vec::new();
    for (folder, allowed) in DEPENDENCIES {
        let manifest = format!("{folder}/Cargo.toml");
        breaches.extend(breaches_of_manifest(&manifest, &read(&manifest), allowed));
    }
    report(&breaches);
}

#[test]
fn no_file_is_too_long() {
    report(&in_each_file(|path, code| {
        let lines = source::lines_outside_tests(code);
        let fault = format!(
            "{path}: {lines} lines outside of its tests, {FILE_LINES_MAX} are allowed: move one concept into a file of its \
             own, `x/part.rs` below `x.rs`"
        );
        Vec::from_iter((lines > FILE_LINES_MAX).then_some(fault))
    }));
}

#[test]
fn no_function_is_too_long() {
    report(&in_each_file(|path, code| {
        let long = source::functions(code).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        let fault = |f: source::Function| {
            format!(
                "{path}:{}: `{}` has {} lines, {FUNCTION_LINES_MAX} are allowed: split it at its steps",
                f.line, f.name, f.lines
            )
        };
        long.map(fault).collect()
    }));
}

#[test]
fn files_and_modules_are_named_for_what_they_hold() {
    let mut breaches: Vec<String> = rust_files().iter().flat_map(|(path, _)| breaches_of_path(path)).collect();
    breaches.extend(in_each_file(breaches_of_module_names));
    report(&breaches);
}

#[test]
fn lints_are_expected_with_a_reason_and_never_allowed() {
    report(&in_each_file(breaches_of_attributes));
}

#[test]
fn nothing_is_left_unfinished() {
    report(&in_each_file(breaches_of_macros));
}

#[test]
fn no_text_names_a_machine_or_a_registry() {
    let mut breaches = Vec::new();
    for path in tracked_files() {
        if BANNED_WORDS_EXEMPT.contains(&path.as_str()) {
            continue;
        }
        // What is not UTF-8 is no text; what is tracked and gone is about to be removed.
        if let Ok(text) = fs::read_to_string(root().join(&path)) {
            breaches.extend(breaches_of_words(&path, &text));
        }
    }
    report(&breaches);
}

fn breaches_of_manifest(path: &str, manifest: &str, allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (section, name) in layers::dependencies(manifest) {
        let in_tests = section == "dev-dependencies" && DEV_DEPENDENCIES.contains(&name.as_str());
        if !in_tests && !allowed.contains(&name.as_str()) {
            found.push(format!(
                "{path}: [{section}] `{name}` is not for this crate: do what needs it in `src/`, or add it to the table in \
                 tests/tidy.rs, with the reason in ARCHITECTURE.md"
            ));
        }
    }
    found
}

fn breaches_of_path(path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in path.trim_end_matches(".rs").split('/') {
        if EMPTY_NAMES.contains(&part) {
            found.push(format!("{path}: `{part}` says nothing: name it for the noun that it holds"));
        }
    }
    if path.ends_with("/mod.rs") {
        found.push(format!("{path}: put `x.rs` beside `x/` (for tests: `#[path = \"x/part.rs\"] mod part;`)"));
    }
    found
}

fn breaches_of_module_names(path: &str, code: &str) -> Vec<String> {
    let names = source::words(code, "mod").map(|at| (at, source::leading_name(code[at + 3..].trim_start())));
    let empty = names.filter(|(_, name)| EMPTY_NAMES.contains(name));
    let fault = |(at, name)| {
        format!(
            "{path}:{}: module `{name}` says nothing: name it for the noun that it holds",
            source::line_of(code, at)
        )
    };
    empty.map(fault).collect()
}

fn breaches_of_attributes(path: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, attribute) in source::attributes(code) {
        if source::words(attribute, "allow").any(|at| attribute[at..].starts_with("allow(")) {
            found.push(format!(
                "{path}:{line}: write `#[expect(lint, reason = \"…\")]`, which ends when its cause does"
            ));
        }
        let expects = source::words(attribute, "expect").any(|at| attribute[at..].starts_with("expect("));
        if expects && source::words(attribute, "reason").next().is_none() {
            found.push(format!("{path}:{line}: `#[expect(…)]` without `reason = \"…\"`"));
        }
    }
    found
}

fn breaches_of_macros(path: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in UNFINISHED {
        for at in source::words(code, name).filter(|at| code[at + name.len()..].starts_with('!')) {
            found.push(format!("{path}:{}: `{name}!` is left: finish it or take it out", source::line_of(code, at)));
        }
    }
    found
}

fn breaches_of_words(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in BANNED_WORDS.iter().filter(|word| line.contains(**word)) {
            found.push(format!("{path}:{}: `{word}` means one machine or registry: leave it out", number + 1));
        }
    }
    found
}

fn rows<'a>(table: &'a [(&'a str, &'a [&'a str])]) -> Vec<Row<'a>> {
    table.iter().map(|(module, allowed)| (*module, allowed.to_vec())).collect()
}

/// Fails with all breaches, if there are any.
#[track_caller]
fn report(breaches: &[String]) {
    assert!(breaches.is_empty(), "{} breaches of the house rules:\n{}\n", breaches.len(), breaches.join("\n"));
}

/// Runs `judge` on each Rust file's path and masked code.
fn in_each_file(judge: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    rust_files().iter().flat_map(|(path, text)| judge(path, &source::mask(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_in_a_lower_crate_is_a_breach() {
        let manifest =
            "[dependencies]\nserde = \"1\"\ntokio = \"1\"\n[dev-dependencies]\nproptest = \"1\"\nhyper = \"1\"\n";
        let found = breaches_of_manifest("core/Cargo.toml", manifest, &["serde"]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("core/Cargo.toml: [dependencies] `tokio` is not for this crate"), "{}", found[0]);
        assert!(found[1].contains("[dev-dependencies] `hyper`"), "{}", found[1]);
    }

    #[test]
    fn an_empty_name_is_a_breach_as_file_folder_and_module() {
        assert_eq!(breaches_of_path("src/utils.rs").len(), 1);
        assert_eq!(breaches_of_path("src/common/ring.rs").len(), 1);
        assert_eq!(breaches_of_path("src/http/mod.rs").len(), 1);
        assert_eq!(breaches_of_path("src/http/types_of_event.rs").len(), 0);
        assert_eq!(breaches_of_module_names("a.rs", "pub mod ring;\nmod helpers {}\n").len(), 1);
    }

    #[test]
    fn an_allowed_lint_and_one_without_a_reason_are_breaches() {
        assert_eq!(breaches_of_attributes("a.rs", "#![allow(dead_code)]\n").len(), 1);
        assert_eq!(breaches_of_attributes("a.rs", "#[cfg_attr(test, allow(unused))]\n").len(), 1);
        assert_eq!(breaches_of_attributes("a.rs", "#[expect(unused)]\n").len(), 1);
        assert_eq!(
            breaches_of_attributes("a.rs", "#[expect(unused, reason = \" \")]\n#[test]\nfn allow() {}\n").len(),
            0
        );
    }

    #[test]
    fn an_unfinished_macro_is_a_breach_and_its_name_alone_is_not() {
        assert_eq!(
            breaches_of_macros("a.rs", "fn a() {\n    todo!()\n}\n"),
            ["a.rs:2: `todo!` is left: finish it or take it out"]
        );
        assert_eq!(breaches_of_macros("a.rs", "let todo = dbg; a.todo != 1"), Vec::<String>::new());
    }

    #[test]
    fn a_banned_word_is_found_in_every_line_that_has_it() {
        let found = breaches_of_words("a.md", "cd /root/x\nfine\nsee crates.io and /root/\n");
        let places: Vec<_> = found.iter().map(|fault| &fault[..7]).collect();
        assert_eq!(places, ["a.md:1:", "a.md:3:", "a.md:3:"]);
    }
}
