//! Completions and pages for `man`.

use std::{fs, process::Command};

use crate::support::ran;

#[test]
fn a_shell_completes_the_commands_of_users_and_no_others() {
    for shell in ["bash", "zsh", "fish"] {
        let script = ran(&["completions", shell]).exits(0).stdout;
        for word in ["explore", "findings", "--nemesis"] {
            let flag = word.trim_start_matches("--");
            assert!(script.contains(flag), "`{word}` is missing for {shell}");
        }
        assert!(!script.contains("harness__power") && !script.contains("subcommand_power"), "{shell} has a hidden one");
    }
    let asked = "source /dev/stdin; COMP_WORDS=(harness exp); COMP_CWORD=1; _harness harness exp harness; \
                 printf '%s\\n' \"${COMPREPLY[@]}\"";
    let script = ran(&["completions", "bash"]).stdout;
    let mut bash = Command::new("bash");
    bash.args(["-c", asked]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = bash.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let offered = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(offered.lines().collect::<Vec<_>>(), ["explore", "export", "explain"]);
    ran(&["completions", "tcsh"]).exits(64);
}

#[test]
fn each_command_of_users_has_a_page() {
    let dir = tempfile::tempdir().unwrap();
    ran(&["man", "--output", dir.path().to_str().unwrap()]).exits(0);
    let mut pages: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    for page in ["harness.1", "harness-run.1", "harness-merge.1"] {
        assert!(pages.iter().any(|found| found == page), "{page} is missing in {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("worker") || page.contains("power")), "{pages:?}");
    let page = ran(&["man"]).exits(0).stdout;
    assert!(page.starts_with(".ie") && page.contains("Exit codes"), "{page}");
    let below_a_file = dir.path().join("harness.1/below");
    let refused = ran(&["man", "--output", below_a_file.to_str().unwrap()]).exits(3);
    assert!(refused.stderr.contains("harness.1/below"), "{}", refused.stderr);
}
