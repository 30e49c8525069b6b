//! Words of tests for the terminal; test binaries take this file by its path.

use std::io::Write;

/// Prints a line. A macro would not do: the output of the print macros is lost if the test passes.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Tells that a test, or a part of one, is left out.
pub fn left_out(why: &str) {
    say(&format!("LEFT OUT: {why}"));
}
