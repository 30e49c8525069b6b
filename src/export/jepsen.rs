//! Jepsen's EDN: one map for each entry, on a line of its own. Knossos and elle-cli read it.

use std::io::Write;

use history::Key;

use super::{
    operations::{Kind, Process, each},
    source::Source,
};
use crate::cli::JepsenModel;

/// Writes the operations of one model.
///
/// # Errors
/// The history cannot be read again, or the output cannot be written.
pub fn write(source: &Source, model: JepsenModel, key: Option<&Key>, output: &mut dyn Write) -> anyhow::Result<()> {
    let mut index = 0u64;
    each(source, model, key, |entry| {
        let kind = match entry.kind {
            Kind::Invoke => "invoke",
            Kind::Ok => "ok",
            Kind::Fail => "fail",
            Kind::Info => "info",
        };
        let process = match entry.process {
            Process::Client(number) => number.to_string(),
            Process::Nemesis => ":nemesis".to_owned(),
        };
        let (f, value, time) = (&entry.f, &entry.value, source.ns(entry.at));
        let what = format!("{{:type :{kind}, :f :{f}, :value {value}");
        writeln!(output, "{what}, :process {process}, :time {time}, :index {index}}}")?;
        index += 1;
        Ok(())
    })
}
