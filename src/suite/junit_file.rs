//! The file of `--junit`: it has whole results of this call, or it is not there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Error, Read},
    path::{Path, PathBuf},
    process,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::Context;

use crate::{exit::usage, fingerprint};

/// The first bytes of JUnit XML.
const BEGINNINGS: [&[u8]; 2] = [b"<?xml", b"<testsuites"];
/// The time within which a pipe or a device must take the results.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// The place of the results as JUnit XML.
pub struct JunitFile(PathBuf);

impl JunitFile {
    /// Makes the directory of the file, and changes nothing else.
    ///
    /// # Errors
    /// The file is there and has something else than JUnit XML, or its directory cannot be made.
    pub fn at(path: PathBuf) -> anyhow::Result<JunitFile> {
        let file = JunitFile(path);
        let dir = file.0.parent().filter(|dir| !dir.as_os_str().is_empty());
        dir.map_or(Ok(()), fs::create_dir_all).with_context(|| file.writing())?;
        file.refuse_foreign()?;
        Ok(file)
    }

    /// Removes the file of an earlier call: a call that ends early must not leave older results. Checks that the file
    /// can be written: before hours of work for it.
    ///
    /// # Errors
    /// The file has something else than JUnit XML, or cannot be written.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        // Again: this call may have made the file since, as the lock of its runs.
        self.refuse_foreign()?;
        self.0 = cleared(&self.0).with_context(|| self.writing())?;
        Ok(())
    }

    /// Writes the results into the file that [`JunitFile::clear`] has removed.
    ///
    /// # Errors
    /// The file has something else than JUnit XML, it cannot be written, or nobody reads the pipe.
    pub fn write(&self, text: String) -> anyhow::Result<()> {
        // Again: this call may have made the file since, as the record of its runs.
        self.refuse_foreign()?;
        let written = if is_special(&self.0) { pass_on(&self.0, text, TAKEN_WITHIN) } else { put(&self.0, text) };
        written.with_context(|| self.writing())
    }

    fn writing(&self) -> String {
        format!("--junit: writing {}", self.0.display())
    }

    fn refuse_foreign(&self) -> anyhow::Result<()> {
        if !is_foreign(&self.0).with_context(|| self.writing())? {
            return Ok(());
        }
        let expected = "expected a new file, or one that begins with `<?xml` or `<testsuites`";
        let problem = format!("{} has something else: {expected}; name another file", self.0.display());
        Err(usage("junit", problem))
    }
}

/// Returns whether a file with something else than JUnit XML is there.
fn is_foreign(path: &Path) -> io::Result<bool> {
    if !path.is_file() {
        return Ok(false);
    }
    let mut beginning = Vec::new();
    let longest = BEGINNINGS.iter().map(|of_junit| of_junit.len()).max().unwrap_or_default();
    File::open(path)?.take(longest as u64).read_to_end(&mut beginning)?;
    Ok(!beginning.is_empty() && !BEGINNINGS.iter().any(|of_junit| beginning.starts_with(of_junit)))
}

/// Returns whether a device or a pipe is there.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Opens a file for writing and removes it. Returns its path: that of the target, if a link leads to it.
fn cleared(path: &Path) -> io::Result<PathBuf> {
    // A pipe without a reader cannot be opened, and the reader of a pipe ends when the pipe is closed.
    if is_special(path) {
        return Ok(path.to_owned());
    }
    // Makes the target of a link, so that the link leads to a file.
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let target = path.canonicalize()?;
    // A mounted file cannot be removed.
    fs::remove_file(&target).or_else(|_| file.set_len(0))?;
    Ok(target)
}

/// Writes a file, which is renamed when it is whole.
fn put(path: &Path, text: String) -> io::Result<()> {
    // A file that could not be removed cannot be replaced.
    if path.exists() {
        return fs::write(path, text);
    }
    // The name of the file may be as long as a name can be.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{}-{}", fingerprint::of([&*name]), process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The error says what is wrong; a file that was never made cannot be removed.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes to a device or a pipe. A pipe takes the text only while somebody reads the pipe.
fn pass_on(path: &Path, text: String, within: Duration) -> io::Result<()> {
    let (path, (done, taken)) = (path.to_owned(), mpsc::channel());
    // The thread ends with the process, if nobody reads the pipe. Then nobody gets its result.
    thread::spawn(move || done.send(fs::write(path, text)));
    taken.recv_timeout(within).unwrap_or_else(|_| {
        Err(Error::other(format!(
            "the pipe did not take the results within {} s; start its reader first, and let it read to the end",
            within.as_secs()
        )))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;
    use crate::exit::Exit;

    const XML: &str = "<?xml version=\"1.0\"?>";

    /// Takes a path from its check to its content.
    fn write(path: &Path) {
        let mut file = JunitFile::at(path.to_owned()).unwrap();
        file.clear().unwrap();
        file.write(XML.to_owned()).unwrap();
    }

    #[test]
    fn a_file_with_something_else_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("suite-s-sim.jsonl");
        for (text, is_replaced) in [("{\"schema\":2}\n", false), ("<test", false), ("", true), (XML, true)] {
            fs::write(&path, text).unwrap();
            match JunitFile::at(path.clone()) {
                Ok(_) => assert!(is_replaced, "{text}"),
                Err(refused) => {
                    assert!(!is_replaced && Exit::of(&refused) == Exit::Usage, "{text}: {refused:#}");
                    assert!(refused.to_string().contains("name another file"), "{refused}");
                }
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "nothing is removed before the lock is taken");
        }
    }

    #[test]
    fn a_record_that_was_made_meanwhile_is_not_replaced_by_the_results() {
        let dir = tempfile::tempdir().unwrap();
        let (path, record) = (dir.path().join("suite-s-sim.jsonl"), "{\"schema\":2}\n");
        let mut file = JunitFile::at(path.clone()).unwrap();
        file.clear().unwrap();
        fs::write(&path, record).unwrap();
        let refused = file.write(XML.to_owned()).unwrap_err();
        assert_eq!(Exit::of(&refused), Exit::Usage, "{refused:#}");
        assert_eq!(fs::read_to_string(&path).unwrap(), record);
    }

    #[test]
    fn a_link_stays_and_its_target_gets_the_results() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target.xml"), dir.path().join("link.xml"));
        symlink(&target, &link).unwrap();
        // The target is not there at first.
        for _ in 0..2 {
            write(&link);
            assert!(link.is_symlink() && !target.is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), XML);
        }
        JunitFile::at(link).unwrap().clear().unwrap();
        assert!(!target.exists());
    }

    #[test]
    fn a_name_may_be_as_long_as_the_system_allows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("{}.xml", "x".repeat(251)));
        write(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), XML);
    }

    #[test]
    fn a_pipe_is_opened_only_for_the_results() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let mut file = JunitFile::at(pipe.clone()).unwrap();
        file.clear().unwrap();
        let reader = thread::spawn(move || fs::read_to_string(pipe).unwrap());
        file.write(XML.to_owned()).unwrap();
        assert_eq!(reader.join().unwrap(), XML);
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let error = pass_on(&pipe, XML.to_owned(), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("the pipe did not take the results"), "{error}");
    }
}
