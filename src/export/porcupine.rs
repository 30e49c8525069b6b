//! The log that Porcupine's own tests read for etcd: a register with reads, writes and compare-and-set.

use std::io::Write;

use history::Key;

use super::{
    operations::{Kind, Process, each},
    source::Source,
};
use crate::cli::JepsenModel;

/// Writes the operations on one key of one arm.
///
/// # Errors
/// The history cannot be read again, or the output cannot be written.
pub fn write(source: &Source, key: Option<&Key>, output: &mut dyn Write) -> anyhow::Result<()> {
    each(source, JepsenModel::CasRegister, key, |entry| {
        let Process::Client(process) = entry.process else { return Ok(()) };
        // In this model a failed compare-and-set says that the value was another one. A refusal does not say that, and
        // a write that did not happen constrains nothing.
        if entry.is_void {
            return Ok(());
        }
        let (kind, value) = match (entry.kind, entry.f.as_str()) {
            (Kind::Invoke, _) => ("invoke", entry.value.as_str()),
            (Kind::Ok, _) => ("ok", entry.value.as_str()),
            (Kind::Fail, "read") => ("fail", ":timed-out"),
            // Porcupine takes an operation without an end to be one that may still happen.
            (Kind::Fail | Kind::Info, _) => return Ok(()),
        };
        writeln!(output, "INFO  jepsen.util - {process}\t:{kind}\t:{}\t{value}", entry.f)?;
        Ok(())
    })
}
