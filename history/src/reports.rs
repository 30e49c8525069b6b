//! The reader of reports.

use crate::{line, report::Report};

/// Reads reports. A usual line is read by position, as the lines of a history are.
#[derive(Debug, Default)]
pub struct Reports {
    names: line::Names,
}

impl Reports {
    /// Reads a line without its newline.
    ///
    /// # Errors
    /// The line is no JSON, or lacks a field of a report or of its event.
    pub fn read(&mut self, line: &[u8]) -> serde_json::Result<Report> {
        match line::parse_report(line, &mut self.names) {
            Some(report) => Ok(report),
            None => serde_json::from_slice(line),
        }
    }
}
