//! Who may import whom: finds the modules that a file names, and judges them by a table.
use std::collections::HashSet;

use crate::source::{closed, inline_modules, leading_name, line_of, mask, without_tests, words};

/// A module of a crate, with a `/*` behind it for the files in its folder where they have rules of their own, and the
/// modules that it may import beside itself.
pub(crate) type Row<'a> = (&'a str, Vec<&'a str>);

/// Turns an order from top to bottom, modules on one level in one slice, into rows: each may import its own level and
/// those below it.
pub(crate) fn rows_of_order<'a>(order: &[&[&'a str]]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for (level, modules) in order.iter().enumerate() {
        let below: Vec<&str> = order[level..].concat();
        rows.extend(modules.iter().map(|module| (*module, below.clone())));
    }
    rows
}

/// What `path`, relative to its crate's `src/`, breaks. Code in test modules may import what it likes.
pub(crate) fn breaches(table: &[Row<'_>], path: &str, text: &str) -> Vec<String> {
    if matches!(path, "lib.rs" | "main.rs") || path.ends_with("/tests.rs") || path.contains("/tests/") {
        return Vec::new();
    }
    let (entry, depth) = place_of(path);
    let Some((_, allowed)) = row_of(table, path) else {
        return vec![format!(
            "{path}: `{entry}` has no place in the map: add it to its table in tests/tidy.rs and to ARCHITECTURE.md"
        )];
    };
    let code = without_tests(&mask(text));
    let mut found = Vec::new();
    for (line, module) in imports(&code, depth) {
        if module == entry || allowed.contains(&module) {
            continue;
        }
        let fault = match module {
            "*" => "imports all of the crate's root: name the modules".to_owned(),
            _ if row(table, module).is_none() => {
                format!("`crate::{module}` is no module in the map: import from the file that defines it")
            }
            _ => format!(
                "`{entry}` may not import `{module}`: hand in what it needs, or move the code; if the map itself is \
                 wrong, change the table in tests/tidy.rs together with ARCHITECTURE.md"
            ),
        };
        found.push(format!("{path}:{line}: {fault}"));
    }
    found
}

/// What modules may import and none of their files does: an allowance is for something. `files` have paths as in
/// [`breaches`].
pub(crate) fn unused(table: &[Row<'_>], files: &[(String, String)]) -> Vec<String> {
    let mut used = HashSet::new();
    for (path, text) in files {
        let code = without_tests(&mask(text));
        let (_, depth) = place_of(path);
        let Some((module, _)) = row_of(table, path) else { continue };
        used.extend(imports(&code, depth).into_iter().map(|(_, import)| (*module, import.to_owned())));
    }
    let mut found = Vec::new();
    for (module, allowed) in table {
        for import in allowed.iter().filter(|import| !used.contains(&(*module, (**import).to_owned()))) {
            found.push(format!(
                "`{module}` may import `{import}` and does not: take it out of the table in tests/tidy.rs and of \
                 ARCHITECTURE.md"
            ));
        }
    }
    found
}

/// The module at the crate's root that a file belongs to, and how many modules below the root the file is.
fn place_of(path: &str) -> (&str, usize) {
    let path = path.trim_end_matches(".rs");
    (path.split('/').next().unwrap_or(path), path.split('/').count())
}

fn row<'t, 'a>(table: &'t [Row<'a>], name: &str) -> Option<&'t Row<'a>> {
    table.iter().find(|(module, _)| *module == name)
}

/// The row that a file goes by.
fn row_of<'t, 'a>(table: &'t [Row<'a>], path: &str) -> Option<&'t Row<'a>> {
    let (entry, depth) = place_of(path);
    let of_folder = if depth > 1 { row(table, &format!("{entry}/*")) } else { None };
    of_folder.or_else(|| row(table, entry))
}

/// The modules at the crate's root that masked code of a file `depth` modules below the root names, by `crate::…` or a
/// chain of `super::…`, with their lines.
fn imports(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut collect = |at: usize, from: usize| {
        let line = line_of(code, at);
        found.extend(first_names(code, from).into_iter().map(|name| (line, name)));
    };
    for at in words(code, "crate") {
        let part_of_longer = code[..at].ends_with('$') || code[..at].ends_with("in ");
        if !part_of_longer && code[at..].starts_with("crate::") {
            collect(at, at + "crate::".len());
        }
    }
    let inline = inline_modules(code);
    for at in words(code, "super") {
        if code[..at].ends_with("super::") || code[..at].ends_with("in ") {
            continue;
        }
        let rest = code[at..].trim_start_matches("super::");
        let chain = (code.len() - at - rest.len()) / "super::".len();
        let depth_here = depth + inline.iter().filter(|module| module.contains(&at)).count();
        if chain == depth_here {
            collect(at, code.len() - rest.len());
        }
    }
    found
}

/// The first names of the paths at `from`: one, or those in braces. Macros (`name!`) are left out: they have no module.
fn first_names(code: &str, from: usize) -> Vec<&str> {
    let rest = &code[from..];
    let mut names = Vec::new();
    if rest.starts_with('{') {
        let end = closed(code, from).map_or(code.len(), |end| end - 1);
        let mut item = from + 1;
        let mut nested = 0_usize;
        for (at, c) in code[..end].char_indices().skip_while(|(at, _)| *at <= from) {
            match c {
                '{' => nested += 1,
                '}' => nested = nested.saturating_sub(1),
                ',' if nested == 0 => {
                    names.push(first_name(&code[item..at]));
                    item = at + 1;
                }
                _ => {}
            }
        }
        names.push(first_name(&code[item..end]));
    } else {
        names.push(first_name(rest));
    }
    names.retain(|name| !name.is_empty());
    names
}

fn first_name(path: &str) -> &str {
    let path = path.trim_start();
    let name = leading_name(path);
    match path[name.len()..].chars().next() {
        Some('!') => "",
        Some('*') if name.is_empty() => "*",
        _ => name,
    }
}

/// Names of the packages that `manifest` depends on, with the heading of their table, such as `dev-dependencies`.
pub(crate) fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut section = String::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(heading) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = heading.to_owned();
            if let Some((table, name)) = heading.rsplit_once("dependencies.") {
                found.push((format!("{table}dependencies"), name.to_owned()));
            }
        } else if section.ends_with("dependencies") && !line.is_empty() && !line.starts_with('#') {
            let end = line.find(['.', '=', ' ']).unwrap_or(line.len());
            found.push((section.clone(), line[..end].trim_matches('"').to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let table = rows_of_order(&[&["app"], &["queue", "mock_engine"], &["fleet"], &["config"]]);
        breaches(&table, path, text)
    }

    #[test]
    fn a_file_may_import_its_own_level_and_those_below() {
        let text = "use crate::fleet::Fleet;\nuse crate::{config, mock_engine::{Engine, app}, queue};\n";
        assert_eq!(faults("queue.rs", text), Vec::<String>::new());
    }

    #[test]
    fn an_import_from_above_is_a_breach_with_its_line() {
        let found = faults("fleet/health.rs", "use std::fmt;\nuse crate::{\n    config::Config,\n    app::App,\n};\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("fleet/health.rs:2: `fleet` may not import `app`"), "{}", found[0]);
    }

    #[test]
    fn a_path_inside_a_function_and_a_chain_of_super_are_imports_too() {
        assert_eq!(faults("fleet.rs", "fn f() {\n    crate::app::run();\n}\n").len(), 1);
        assert_eq!(faults("fleet.rs", "use super::queue::Queue;\n").len(), 1);
        assert_eq!(faults("fleet/health.rs", "use super::super::queue::Queue;\n").len(), 1);
        assert_eq!(faults("fleet/health.rs", "use super::queue;\n").len(), 0);
        assert_eq!(faults("fleet.rs", "mod inner {\n    use super::queue;\n}\n").len(), 0);
        assert_eq!(faults("fleet.rs", "mod inner {\n    use super::super::queue;\n}\n").len(), 1);
    }

    #[test]
    fn the_crates_root_and_unknown_modules_are_not_imported_from() {
        assert!(faults("app.rs", "use crate::*;\n")[0].contains("name the modules"));
        assert!(faults("app.rs", "use crate::Thing;\n")[0].contains("no module in the map"));
    }

    #[test]
    fn comments_strings_tests_and_macros_import_nothing() {
        let text = "//! crate::app\nconst A: &str = \"crate::app\";\nmacro_rules! m { () => { $crate::app::f() } }\n\
                    pub(in crate::fleet) fn f() { crate::shout!() }\n#[cfg(test)]\nmod tests {\n    use crate::app::App;\n}\n";
        assert_eq!(faults("fleet.rs", text), Vec::<String>::new());
        assert_eq!(faults("fleet/tests.rs", "use crate::app::App;\n"), Vec::<String>::new());
        assert_eq!(faults("fleet/tests/more.rs", "use crate::app::App;\n"), Vec::<String>::new());
    }

    #[test]
    fn a_file_without_a_row_is_a_breach() {
        assert!(faults("oracle.rs", "")[0].starts_with("oracle.rs: `oracle` has no place in the map"));
    }

    #[test]
    fn files_of_a_folder_may_have_a_row_of_their_own() {
        let table: Vec<Row<'_>> = vec![("ids", vec![]), ("cost", vec![]), ("cost/*", vec!["ids"])];
        let text = "use crate::ids::Slot;\nuse crate::cost::Cost;\n";
        assert_eq!(breaches(&table, "cost/kv.rs", text), Vec::<String>::new());
        assert_eq!(breaches(&table, "cost.rs", text).len(), 1);
        assert_eq!(breaches(&table, "ids.rs", "use crate::cost::Cost;\n").len(), 1);
    }

    #[test]
    fn what_may_be_imported_and_is_not_is_told() {
        let table: Vec<Row<'_>> = vec![("ids", vec![]), ("cost", vec!["ids"]), ("cost/*", vec!["ids", "cost"])];
        let (root, kv) =
            ("use crate::ids::Slot;\n", "use super::super::ids;\n#[cfg(test)]\nmod tests { use crate::cost; }\n");
        let files = |root: &str, kv: &str| {
            [("cost.rs", root), ("cost/kv.rs", kv)].map(|(path, text)| (path.to_owned(), text.to_owned()))
        };
        let found = unused(&table, &files(root, kv));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("`cost/*` may import `cost` and does not"), "{}", found[0]);
        assert_eq!(unused(&table, &files(root, "use crate::{cost, ids};\n")), Vec::<String>::new());
    }

    #[test]
    fn dependencies_are_read_in_every_form() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\n# none\na.workspace = true\nb = \"1\"\n\
                        [dev-dependencies]\nc = { version = \"1\" }\n[dependencies.d]\nversion = \"1\"\n\
                        [target.'cfg(unix)'.dependencies]\ne = \"1\"\n";
        let found = dependencies(manifest);
        let found: Vec<_> = found.iter().map(|(section, name)| (section.as_str(), name.as_str())).collect();
        let expected = [
            ("dependencies", "a"),
            ("dependencies", "b"),
            ("dev-dependencies", "c"),
            ("dependencies", "d"),
            ("target.'cfg(unix)'.dependencies", "e"),
        ];
        assert_eq!(found, expected);
    }
}
