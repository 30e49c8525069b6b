//! Progress on standard error while a run goes on.

use std::{
    borrow::Cow,
    io::{ErrorKind, IsTerminal, Write},
};

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
        let (mut stderr, what) = (std::io::stderr(), visible(what));
        let _ = match stderr.is_terminal() {
            true => writeln!(stderr, "\x1b[2m· {what}\x1b[0m"),
            false => writeln!(stderr, "· {what}"),
        };
    }

    /// Prints a problem that does not end the run.
    pub fn warn(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "harness: {}", visible(what));
    }

    /// The run begins: the servers' versions are known.
    pub fn begins(&self, versions: &str) {
        if self.print_heading {
            // A run is not ended by an output that cannot be written; the report after the run says so.
            let _ = print(&format!("{}\n", (self.heading)(versions)));
        }
    }
}

/// Returns the text with each control character as its code, such as `\u001b`, so that no key, error or verdict from a
/// file can command the terminal. JSON, TOML and EDN read the code as the character. Ends of lines stay. So do tabs,
/// which shell scripts contain.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_command = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_command(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Prints to standard output, with control characters as their codes. A closed output (`| head`) is no error.
///
/// # Errors
/// The output cannot be written, for example because a disk is full.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(visible(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_as_their_codes() {
        assert_eq!(visible("k\u{1b}[31m\u{9b}2J\r\u{7f}\n\té"), "k\\u001b[31m\\u009b2J\\u000d\\u007f\n\té");
        assert!(matches!(visible("two\nlines"), Cow::Borrowed(_)));
    }
}
