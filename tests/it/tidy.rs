//! The sources and the documents are tidy, and the documents name everything that the code has.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::support::ran;

const COLUMNS_MAX: usize = 120;
const LINES_MAX: usize = 500;

/// Files and folders with longer lines, to be mended. This list must become empty.
const LONG_LINES: &[&str] = &[];
/// Files with more lines, to be mended. This list must become empty.
const LONG_FILES: &[&str] = &[];
/// Messages and events that `docs/worker-protocol.md` does not name yet. This list must become empty.
const UNNAMED: &[&str] = &[];
/// Flags that neither README nor docs name yet. This list must become empty.
const UNNAMED_FLAGS: &[&str] = &[];
/// Public items that nothing names but their definition, each with the reason why it stays.
const UNUSED: &[(&str, &str)] = &[("with_request_timeout", "users of the library `locks` set it")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the tracked files with this extension, with their paths relative to the root.
fn files(extension: &str) -> Vec<(String, String)> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap().map(Result::unwrap) {
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                let is_ours = !name.starts_with('.') && name != "target" && path != Path::new("runs");
                folders.extend(is_ours.then_some(path));
            } else if name.ends_with(&format!(".{extension}")) {
                let text = fs::read_to_string(root().join(&path)).unwrap();
                files.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    files.sort();
    files
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns the numbers of the lines of a document that people read as text and that are too long. Tables, code blocks,
/// and lines with a link or a URL cannot be wrapped.
fn long_text(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            is_code = !is_code;
        }
        let is_link = line.contains("](") || line.contains("://");
        let is_free = is_code || start.starts_with('|') || line.starts_with("    ") || is_link;
        if !is_free && line.chars().count() > COLUMNS_MAX {
            long.push(n + 1);
        }
    }
    long
}

#[test]
fn no_line_has_more_than_120_columns() {
    let mut long = Vec::new();
    for (path, text) in files("rs") {
        let lines = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        long.extend(lines.map(|(n, _)| (path.clone(), n + 1)));
    }
    for (path, text) in files("md") {
        long.extend(long_text(&text).into_iter().map(|n| (path.clone(), n)));
    }
    long.retain(|(path, _)| !LONG_LINES.iter().any(|known| path.starts_with(known)));
    let lines: Vec<String> = long.iter().map(|(path, n)| format!("{path}:{n}")).collect();
    assert!(lines.is_empty(), "longer than {COLUMNS_MAX} columns:\n{}", lines.join("\n"));
}

#[test]
fn no_source_file_has_more_than_500_lines() {
    let long = files("rs").into_iter().map(|(path, text)| (path, text.lines().count()));
    let long: Vec<_> = long.filter(|(path, n)| *n > LINES_MAX && !LONG_FILES.contains(&path.as_str())).collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines: {long:?}");
}

/// Returns the variants of an enum, as serde writes them: `BeforeWrite` as `before-write`.
fn variants(source: &str, name: &str) -> BTreeSet<String> {
    let start = source.find(&format!("pub enum {name} {{")).unwrap_or_else(|| panic!("no enum {name}"));
    let body = source[start..].split("\n}").next().unwrap();
    let variant = |line: &str| {
        let line = line.strip_prefix("    ").filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))?;
        let name: String = line.chars().take_while(char::is_ascii_alphanumeric).collect();
        let mut tag = String::new();
        for c in name.chars() {
            if c.is_ascii_uppercase() && !tag.is_empty() {
                tag.push('-');
            }
            tag.push(c.to_ascii_lowercase());
        }
        Some(tag)
    };
    body.lines().filter_map(variant).collect()
}

#[test]
fn the_worker_protocol_names_every_event_and_message() {
    let document = read("docs/worker-protocol.md");
    let missing: Vec<String> = [
        ("history/src/event.rs", "Event"),
        ("workloads/src/protocol.rs", "Command"),
        ("nemesis/agent/src/protocol.rs", "Order"),
    ]
    .into_iter()
    .flat_map(|(path, name)| variants(&read(path), name))
    .filter(|tag| !document.contains(&format!("`{tag}`")) && !document.contains(&format!("\"{tag}\"")))
    .filter(|tag| !UNNAMED.contains(&tag.as_str()))
    .collect();
    assert!(missing.is_empty(), "docs/worker-protocol.md does not name: {}", missing.join(", "));
}

#[test]
fn the_documents_name_every_flag() {
    let help = ran(&["--help"]).exits(0).stdout;
    let commands = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    // The help of a command may continue on indented lines.
    let commands: Vec<&str> = commands.lines().filter(|line| !line.starts_with("   ")).collect();
    let commands: Vec<&str> = commands.into_iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"explore"), "{commands:?}");
    let mut flags = BTreeSet::new();
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = ran(&[command, "--help"]).exits(0).stdout;
        let of_line = |line: &str| {
            let line = line.trim_start();
            let line = line.strip_prefix("-h, ").unwrap_or(line);
            let flag: String =
                line.strip_prefix("--")?.chars().take_while(|c| *c == '-' || c.is_alphanumeric()).collect();
            (flag != "help").then_some(flag)
        };
        flags.extend(help.lines().filter_map(of_line));
    }
    assert!(flags.len() > 30, "{flags:?}");
    let is_user_document = |path: &str| path == "README.md" || path.starts_with("docs/");
    let documents = files("md").into_iter().filter(|(path, _)| is_user_document(path));
    let documents: String = documents.map(|(_, text)| text).collect();
    let is_named = |flag: &String| {
        let word = format!("--{flag}");
        let mut ends = documents.match_indices(&word).map(|(at, word)| documents[at + word.len()..].chars().next());
        ends.any(|next| next.is_none_or(|c| c != '-' && !c.is_alphanumeric()))
    };
    let missing: Vec<_> = flags.iter().filter(|f| !is_named(f) && !UNNAMED_FLAGS.contains(&f.as_str())).collect();
    assert!(missing.is_empty(), "neither README.md nor docs name: {missing:?}");
}

/// Returns the numbers that come right before `words` in a text: 54 in "54 planted bugs". The headings of the
/// self-test's tables, "planted bugs: …" and "planted bugs that a swarm finds: …", follow a number by chance.
fn counts(text: &str, words: &str) -> Vec<usize> {
    let is_heading = |after: &str| after.starts_with(':') || after.starts_with(" that a swarm finds:");
    let is_count = |at: &usize| !is_heading(&text[at + words.len()..]);
    let before = text.match_indices(words).map(|(at, _)| at).filter(is_count).map(|at| text[..at].trim_end());
    let number = |text: &str| {
        let digits: String = text.chars().rev().take_while(char::is_ascii_digit).collect();
        digits.chars().rev().collect::<String>().parse().ok()
    };
    before.filter_map(number).collect()
}

#[test]
fn the_counts_in_documents_are_those_of_the_code() {
    let table = read("src/selftest/bugs.rs");
    let table = table.split("pub const HUNTS").nth(1).unwrap().split("\n];").next().unwrap();
    let is_row = |line: &&str| ["lock(", "resource(", "Hunt {"].iter().any(|row| line.trim_start().starts_with(row));
    let bugs = table.lines().filter(is_row).count();
    let mutants = read("checker/mutants/mutants.toml").matches("[[mutant]]").count();
    assert!(bugs > 40 && mutants > 80, "{bugs} bugs, {mutants} mutants");
    let mut wrong = Vec::new();
    for (path, text) in files("md").into_iter().filter(|(path, _)| path != "CHANGELOG.md") {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (words, right) in [(" planted bugs", bugs), (" mutants", mutants)] {
            let of_document = counts(&text, words).into_iter().filter(|count| *count != right);
            wrong.extend(of_document.map(|count| format!("{path}: {count}{words}, the code has {right}")));
        }
        if let Some(told) = text.split("planted bugs: ").nth(1) {
            let all = format!("{bugs} of {bugs} caught");
            wrong.extend((!told.starts_with(&all)).then(|| format!("{path}: planted bugs: expected {all}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_test_that_the_page_of_the_checker_names_exists_once() {
    let sources = files("rs");
    let mut functions: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, text) in &sources {
        let names = text.split("fn ").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0));
        names.for_each(|name| *functions.entry(name).or_default() += 1);
    }
    let page = read("docs/checker.md");
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_test = |word: &&str| word.matches('_').count() > 2 && word.chars().all(is_plain);
    let named: BTreeSet<&str> = page.split('`').filter(is_test).collect();
    assert!(named.len() > 200, "{} names", named.len());
    let wrong: Vec<&str> = named.into_iter().filter(|name| functions.get(name) != Some(&1)).collect();
    assert!(wrong.is_empty(), "docs/checker.md: no test has this name, or several have it: {wrong:?}");
}

#[test]
fn no_test_is_left_out_silently() {
    // The test harness shows what a macro has printed only if the test fails.
    let tells_nobody = |text: &str| {
        let printed = ["print!(", "println!("].into_iter().flat_map(move |print| text.split(print).skip(1));
        printed.map(str::trim_start).any(|words| words.starts_with("\"SKIPPED") || words.starts_with("\"LEFT OUT"))
    };
    assert!(tells_nobody("return eprintln!(\n    \"SKIPPED: no server\"\n);"));
    let silent: Vec<String> =
        files("rs").into_iter().filter(|(_, text)| tells_nobody(text)).map(|(path, _)| path).collect();
    assert!(silent.is_empty(), "use tests/shared/say.rs: {silent:?}");
}

#[test]
fn no_program_of_a_library_measures_time_by_a_clock_that_a_fault_changes() {
    let programs = ["rs", "py", "java", "go"].into_iter().flat_map(files);
    let programs = programs.filter(|(path, _)| path.starts_with("clients/libraries/"));
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, text) in programs {
        seen += 1;
        let clocks = ["Instant::now", "monotonic()", "time.time()", "nanoTime()", "currentTimeMillis()", "time.Now()"];
        wrong.extend(clocks.iter().filter(|clock| text.contains(**clock)).map(|clock| format!("{path}: {clock}")));
    }
    assert!(seen > 15, "{seen} programs");
    assert!(wrong.is_empty(), "use CLOCK_MONOTONIC_RAW: {wrong:?}");
}

#[test]
fn each_feature_has_a_target_that_tests_it() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let makefile = read("Makefile");
    let is_tested = |feature: &str| {
        let words = ["$(CARGO) test --package harness ".to_owned(), format!("--features {feature} ")];
        makefile.lines().any(|line| words.iter().all(|word| line.contains(word)))
    };
    let untested: Vec<&String> =
        manifest["features"].as_table().unwrap().keys().filter(|feature| !is_tested(feature)).collect();
    assert!(untested.is_empty(), "the Makefile tests no build with {untested:?}");
}

#[test]
fn every_public_item_is_used() {
    let sources = files("rs");
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, text) in &sources {
        for word in text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            *count.entry(word).or_default() += 1;
        }
    }
    let mut unused = Vec::new();
    for (path, text) in &sources {
        for line in text.lines().map(str::trim_start) {
            let Some(item) = line.strip_prefix("pub ") else { continue };
            let item = item.strip_prefix("const fn").or(item.strip_prefix("async fn")).map_or(item, |rest| rest);
            let mut words = item.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty());
            let kinds = ["fn", "struct", "enum", "trait", "const", "type", "static"];
            let name = match words.next() {
                Some(kind) if kinds.contains(&kind) => words.next(),
                first if line.contains("fn ") => first,
                _ => None,
            };
            if let Some(name) = name.filter(|name| count[name] == 1 && UNUSED.iter().all(|(known, _)| known != name)) {
                unused.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(unused.is_empty(), "public, and used nowhere:\n{}", unused.join("\n"));
}
