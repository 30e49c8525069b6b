//! Progress on standard error while a run goes on.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Context;

/// Prints progress to standard error, and the heading to standard output as soon as the versions are known.
pub struct Terminal {
    heading: Box<dyn Fn(&str) -> String + Sync>,
    print_heading: bool,
}

impl Terminal {
    /// `heading` makes the first line of the output from the servers' versions.
    pub fn new(heading: impl Fn(&str) -> String + Sync + 'static, print_heading: bool) -> Terminal {
        Terminal { heading: Box::new(heading), print_heading }
    }

    /// Prints a step that takes time.
    pub fn progress(&self, what: &str) {
        // Dimmed for eyes, plain for logs. Nobody listening is no reason to stop: least of all while a cluster is taken
        // down.
        let mut stderr = std::io::stderr();
        let _ = match stderr.is_terminal() {
            true => writeln!(stderr, "\x1b[2m· {what}\x1b[0m"),
            false => writeln!(stderr, "· {what}"),
        };
    }

    /// Prints a problem that does not end the run.
    pub fn warn(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "harness: {what}");
    }

    /// The run begins: the servers' versions are known.
    pub fn begins(&self, versions: &str) {
        if self.print_heading {
            // A run is not ended by an output that cannot be written; the report after the run says so.
            let _ = print(&format!("{}\n", (self.heading)(versions)));
        }
    }
}

/// Prints to standard output. A closed output (`| head`) is no error.
///
/// # Errors
/// The output cannot be written, for example because a disk is full.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to standard output"),
    }
}
