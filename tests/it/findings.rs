//! `harness findings`: the pages are those of the templates and the recorded runs, and nothing else gets into them.

use std::{collections::BTreeSet, fs, path::Path};

use crate::support::{Ran, ran};

const FINDINGS: &str = "docs/findings";

/// Copies the committed findings into a directory of their own.
fn copied() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["", "data", "pages"] {
        let (from, to) = (Path::new(FINDINGS).join(sub), dir.path().join(sub));
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
    dir
}

fn findings(dir: &Path, flags: &[&str]) -> Ran {
    ran(&[&["findings", "--dir", dir.to_str().unwrap()], flags].concat())
}

/// Edits a file of the findings.
fn edit(dir: &Path, name: &str, edit: impl FnOnce(String) -> String) {
    let path = dir.join(name);
    let text = fs::read_to_string(&path).unwrap();
    let edited = edit(text.clone());
    assert_ne!(edited, text, "{name} has no such text");
    fs::write(path, edited).unwrap();
}

#[test]
fn the_committed_pages_are_those_of_templates_and_data() {
    let said = ran(&["findings", "--check"]).exits(0);
    assert_eq!(said.stdout, "");
}

/// The names of the pages and pictures in a directory.
fn pages(dir: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md") || name.ends_with(".svg")).collect()
}

#[test]
fn no_committed_page_or_picture_is_left_without_its_template_or_data() {
    let (dir, committed) = (copied(), pages(Path::new(FINDINGS)));
    committed.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
    findings(dir.path(), &[]).exits(0);
    assert_eq!(pages(dir.path()), committed);
}

#[test]
fn an_edited_page_is_found_with_its_line_and_written_again() {
    let dir = copied();
    edit(dir.path(), "kleppmann.md", |page| page.replacen("5 of 5", "4 of 5", 1));
    let found = findings(dir.path(), &["--check"]).exits(1).stdout;
    let page = fs::read_to_string(dir.path().join("kleppmann.md")).unwrap();
    let line = page.lines().position(|line| line.contains("4 of 5")).unwrap() + 1;
    assert!(found.contains(&format!("kleppmann.md, line {line}:")), "{found}");
    findings(dir.path(), &[]).exits(0);
    findings(dir.path(), &["--check"]).exits(0);
}

#[test]
fn another_record_gives_another_page_and_an_exception_on_the_front_page() {
    let dir = copied();
    edit(dir.path(), "data/claims-docker.jsonl", |data| {
        let line = data.lines().find(|line| line.starts_with(r#"{"case":"K1","n":1,"#)).unwrap();
        data.replace(line, &line.replace(r#""outcome":"as-expected""#, r#""outcome":"inconclusive""#))
    });
    let found = findings(dir.path(), &["--check"]).exits(1).stdout;
    assert!(found.contains("README.md") && found.contains("kleppmann.md"), "{found}");
    findings(dir.path(), &[]).exits(0);
    let front = fs::read_to_string(dir.path().join("README.md")).unwrap();
    assert!(front.contains("The exception: K1, seed "), "{front}");
}

#[test]
fn a_figure_that_is_typed_by_hand_is_refused_with_its_line() {
    let dir = copied();
    edit(dir.path(), "pages/etcd.md", |page| page + "\nSeen in 5 of 6 runs.\n");
    let line = fs::read_to_string(dir.path().join("pages/etcd.md")).unwrap().lines().count();
    let refused = findings(dir.path(), &[]).exits(64).stderr;
    assert!(refused.contains(&format!("etcd.md: line {line}: `5` is typed by hand")), "{refused}");
}

#[test]
fn a_template_that_asks_for_unknown_data_is_refused_with_its_line() {
    for (asked, words) in [
        (r#"claim("K99").count"#, "no case `K99`"),
        (r#"figure("K1", "off.data.lost_update") | range"#, "off.data.lost_updates"),
        (r#"dose("pause", "sim", 77).share | percent"#, "77"),
    ] {
        let dir = copied();
        edit(dir.path(), "pages/etcd.md", |page| format!("{page}\n{{{{ {asked} }}}}\n"));
        let refused = findings(dir.path(), &[]).exits(64).stderr;
        assert!(refused.contains("etcd.md: line ") && refused.contains(words), "{asked}: {refused}");
    }
}

#[test]
fn data_that_cannot_be_read_is_refused_by_name() {
    let wrong = |name: &str, text: &str, words: &str| {
        let dir = copied();
        fs::write(dir.path().join("data").join(name), text).unwrap();
        let refused = findings(dir.path(), &[]).exits(64).stderr;
        assert!(refused.contains(name) && refused.contains(words), "{name}: {refused}");
    };
    wrong("notes.txt", "", "expected claims-CLUSTER.jsonl, table-NAME-CLUSTER.jsonl");
    wrong("claims-docker.jsonl", "", "expected the head");
    wrong("claims-docker.jsonl", "{}\n", "no head of a suite's results");
    wrong("dose-pause-sim.json", "{\"of\":\"pause\"}", "missing field");
}

#[test]
fn runs_of_another_plan_or_of_two_builds_are_refused() {
    let dir = copied();
    edit(dir.path(), "data/claims-docker.jsonl", |data| {
        let line = data.lines().find(|line| line.starts_with(r#"{"case":"K2","n":0,"#)).unwrap();
        let (before, after) = line.split_once(r#""fingerprint":""#).unwrap();
        let other = format!(r#"{before}"fingerprint":"0000{}"#, &after[4..]);
        data.replace(line, &other)
    });
    let refused = findings(dir.path(), &[]).exits(64).stderr;
    assert!(refused.contains("run 1 of K2 was made with another plan"), "{refused}");

    let dir = copied();
    edit(dir.path(), "data/claims-docker.jsonl", |data| {
        let line = data.lines().find(|line| line.starts_with(r#"{"case":"K2","n":0,"#)).unwrap();
        let (before, after) = line.split_once(r#""commit":""#).unwrap();
        data.replace(line, &format!(r#"{before}"commit":"0000{}"#, &after[4..]))
    });
    let refused = findings(dir.path(), &[]).exits(64).stderr;
    assert!(refused.contains("runs of 2 builds; expected one"), "{refused}");
}
