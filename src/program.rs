//! The client program of a run: its command, its files, and its image.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Component, Path},
};

use compose::File;
use history::{Program, ProgramFile};
use sha2::{Digest, Sha256};

use crate::{
    cli::{ClientFlag, ProgramArgs},
    exit::usage,
    plan_file::PlanFile,
    run_dir::RunDir,
    similar::similar,
};

/// The built-in kinds of clients.
const KINDS: [&str; 2] = ["unchecked", "checking"];
/// The most bytes of a file of the client program, which may be a compiled program.
const FILE_MAX: u64 = 256 << 20;

/// Returns the client program that the flags describe; none if `--client` names a kind of client.
///
/// # Errors
/// The command cannot be parsed, or a file of the program cannot be read.
pub fn program(client: &ClientFlag, args: &ProgramArgs) -> anyhow::Result<Option<Program>> {
    let ClientFlag::Program(text) = client else {
        let others = [
            ("client-image", args.client_image.is_some()),
            ("client-packages", !args.client_packages.is_empty()),
            ("client-file", !args.client_file.is_empty()),
        ];
        return match others.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(usage(flag, "there is no client program; add `--client 'COMMAND'`")),
            None => Ok(None),
        };
    };
    let command = words(text)?;
    let named = command.iter().enumerate().filter(|(i, word)| is_own_file(*i, word)).map(|(_, word)| word);
    let mut files = Vec::new();
    for (flag, path) in named.map(|word| ("client", word)).chain(args.client_file.iter().map(|f| ("client-file", f))) {
        let name = relative(path).map_err(|problem| usage(flag, problem))?;
        let (mode, content) = read(Path::new(&name)).map_err(|problem| usage(flag, problem))?;
        if mode & 0o111 == 0 && flag == "client" && *path == command[0] {
            let remedy = "use `chmod +x`, or put the interpreter before it, as in `python3 lock.py`";
            return Err(usage(flag, format!("`{name}` is not executable; {remedy}")));
        }
        let file = ProgramFile { name, sha256: format!("{:x}", Sha256::digest(&content)) };
        if !files.contains(&file) {
            files.push(file);
        }
    }
    Ok(Some(Program { command, files }))
}

/// Splits a command into its words, as a shell does.
///
/// # Errors
/// A quote is not closed, or the command is empty or a misspelled kind of client.
pub fn words(text: &str) -> anyhow::Result<Vec<String>> {
    let Some(words) = shlex::split(text) else {
        return Err(usage("client", format!("`{text}`: a quote is not closed, or a backslash is the last character")));
    };
    let [first, ..] = words.as_slice() else {
        return Err(usage("client", "the command is empty; expected a program and its arguments"));
    };
    let near = similar(first, KINDS);
    if words.len() == 1 && !first.contains('/') && !near.is_empty() {
        let expected = "expected unchecked, checking, or the command of your own lock such as './my-client'";
        return Err(usage("client", format!("`{first}` is no kind of client{near}; {expected}")));
    }
    Ok(words)
}

/// Returns whether a word of the command names a file of the user's. The first word without a slash is looked up in the
/// image, and an absolute path is a path of the image.
fn is_own_file(place: usize, word: &str) -> bool {
    let is_path = word.contains('/') || place > 0;
    is_path && !word.starts_with('/') && (place == 0 || Path::new(word).is_file())
}

/// Returns the path without `.`, relative to the current directory.
fn relative(path: &str) -> Result<String, String> {
    let is_below = |part: &Component| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(path).components().all(|part| is_below(&part)) {
        return Err(format!(
            "`{path}`: expected a path below the current directory, so that the program finds the file by the same \
             path in the worker's container; start the harness in a directory above the file"
        ));
    }
    let parts = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
    Ok(parts.collect::<std::path::PathBuf>().display().to_string())
}

/// Reads a file and its permissions. Every user of the container may read it.
fn read(path: &Path) -> Result<(u32, Vec<u8>), String> {
    let shown = path.display();
    let failed = |e: std::io::Error| format!("`{shown}`: cannot read the file of the client program: {e}");
    let facts = std::fs::metadata(path).map_err(failed)?;
    if facts.is_dir() {
        return Err(format!("`{shown}` is a directory; name each of its files by --client-file"));
    }
    let mode = if facts.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
    Ok((mode, compose::read_file(path, FILE_MAX).map_err(failed)?))
}

/// Reads the files of the plan's program: from the directory of the run from which the plan comes, otherwise from the
/// current directory.
///
/// # Errors
/// A file cannot be read, or differs from the file of the plan.
pub fn files(file: &PlanFile) -> anyhow::Result<Vec<File>> {
    let Some(program) = &file.plan.program else { return Ok(Vec::new()) };
    let of_file = |ProgramFile { name, sha256 }: &ProgramFile| {
        let kept = file.kept_files.as_ref().map(|dir| dir.join(name)).filter(|path| path.is_file());
        let path = kept.unwrap_or_else(|| name.into());
        relative(name).map_err(|problem| usage("client", problem))?;
        let (mode, content) = read(&path).map_err(|problem| usage("client", problem))?;
        let found = format!("{:x}", Sha256::digest(&content));
        if found != *sha256 {
            let problem = format!("expected the file of the plan, SHA-256 {sha256}, and found {found}");
            return Err(usage("client", format!("`{}`: {problem}; make the plan anew", path.display())));
        }
        Ok(File { path: name.clone(), mode, content })
    };
    program.files.iter().map(of_file).collect()
}

/// Keeps copies of the program's files in the directory of the run.
pub fn keep(files: &[File], dir: &RunDir) -> anyhow::Result<()> {
    for File { path, mode, content } in files {
        let copy = dir.client().join(path);
        let above = copy.parent().unwrap_or(&copy);
        std::fs::create_dir_all(above).map_err(anyhow::Error::from)?;
        dir.write(&copy, content)?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(*mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use history::Plan;

    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_command_is_split_as_by_a_shell_and_a_misspelled_kind_is_refused() {
        assert_eq!(words("python3 'my lock.py' -x").unwrap(), ["python3", "my lock.py", "-x"]);
        for (text, said) in [("", "is empty"), ("a 'b", "not closed"), ("cheking", "similar words: checking")] {
            let error = words(text).unwrap_err().to_string();
            assert!(error.starts_with("--client: ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_device_is_no_file_of_the_program() {
        let refused = read(Path::new("/dev/zero")).unwrap_err();
        assert!(refused.contains("cannot read the file of the client program: expected a regular file"), "{refused}");
    }

    #[test]
    fn a_plan_runs_only_with_its_own_program() {
        let dir = tempfile::tempdir().unwrap();
        let kept = ProgramFile { name: "lock".to_owned(), sha256: format!("{:x}", Sha256::digest("version 1")) };
        let program = Program { command: vec!["./lock".to_owned()], files: vec![kept] };
        let scenario = Scenario::of("redis").unwrap();
        let plan = Plan { program: Some(program), ..scenario.base.clone() };
        let file = PlanFile { kept_files: Some(dir.path().to_owned()), ..scenario.file(String::new(), plan) };
        std::fs::write(dir.path().join("lock"), "version 1").unwrap();
        assert_eq!(files(&file).unwrap()[0].content, b"version 1");
        std::fs::write(dir.path().join("lock"), "version 2").unwrap();
        let refused = files(&file).unwrap_err().to_string();
        assert!(refused.contains("expected the file of the plan, SHA-256") && refused.contains("lock"), "{refused}");
    }

    #[test]
    fn files_lie_below_the_current_directory() {
        assert_eq!(relative("./clients/a.py").unwrap(), "clients/a.py");
        for path in ["../a.py", "/usr/bin/python3"] {
            assert!(relative(path).unwrap_err().contains("below the current directory"));
        }
        assert!(is_own_file(0, "./no-such-client") && !is_own_file(0, "Cargo.toml") && is_own_file(1, "Cargo.toml"));
        assert!(is_own_file(0, "target/no-such-client"));
        assert!(!is_own_file(1, "/etc/passwd") && !is_own_file(1, "no-such-file"));
    }
}
