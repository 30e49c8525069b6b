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

/// Returns whether a character is a command to a terminal: a control character, or one that changes the direction of
/// the text, and with it the order in which a reader sees a line. Ends of lines and tabs are none.
pub fn is_command(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Returns the code of a command to a terminal, such as `\u001b`. JSON, TOML and EDN read the code as the character.
pub fn code_of(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}

fn with_codes(text: &str, is_shown_as_code: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_shown_as_code) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_shown_as_code(c) { code_of(c) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Returns the text with each command to a terminal as its code, so that no key, error or verdict from a file can
/// command the terminal. Ends of lines stay. So do tabs, which shell scripts contain.
pub fn visible(text: &str) -> Cow<'_, str> {
    with_codes(text, is_command)
}

/// Returns a text from a record for a place inside a line: as [`visible`], and with each end of a line as its code, so
/// that no key or name can add a line to a report.
pub fn in_a_line(text: &str) -> Cow<'_, str> {
    with_codes(text, |c| is_command(c) || matches!(c, '\n' | '\u{2028}' | '\u{2029}'))
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
        assert_eq!(visible("k0\u{202e}detrevni\u{2066}"), "k0\\u202edetrevni\\u2066");
    }

    #[test]
    fn a_text_inside_a_line_ends_no_line() {
        assert_eq!(in_a_line("k0\n  verdict: upheld\r\u{2028}\té"), "k0\\u000a  verdict: upheld\\u000d\\u2028\té");
        assert!(matches!(in_a_line("k0"), Cow::Borrowed(_)));
    }
}
