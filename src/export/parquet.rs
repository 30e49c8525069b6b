//! Parquet: the table of the CSV, for many runs in one query.

use std::{io::Write, sync::Arc};

use parquet::{
    basic::{Compression, ZstdLevel},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    record::RecordWriter,
};
use parquet_derive::ParquetRecordWriter;

use super::{
    ordered::Item,
    rows::row,
    source::{Holds, Source},
};

/// The rows that are kept before they are written.
const GROUP: usize = 1 << 16;

/// One row: the columns of the CSV, by the same names.
#[derive(ParquetRecordWriter)]
struct ParquetRow {
    run: String,
    seq: u64,
    at_ms: f64,
    process: String,
    event: &'static str,
    client: Option<u64>,
    hold: Option<u64>,
    key: Option<String>,
    op: Option<u64>,
    token: Option<u64>,
    outcome: Option<&'static str>,
    reason: Option<&'static str>,
    number: Option<u64>,
    request: Option<&'static str>,
    off: Option<&'static str>,
    writes: Option<&'static str>,
    reads: Option<&'static str>,
    cas: Option<&'static str>,
    claim: Option<&'static str>,
    deadline: Option<&'static str>,
    guard: Option<&'static str>,
    fault: Option<u64>,
    kind: Option<&'static str>,
    node: Option<String>,
}

/// Writes the table.
///
/// # Errors
/// The history cannot be read again, or the output cannot be written.
pub fn write(source: &Source, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut group: Vec<ParquetRow> = Vec::new();
    let schema = group.as_slice().schema()?;
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut file = SerializedFileWriter::new(output, schema, properties)?;
    let mut holds = Holds::default();
    for item in source.ordered()? {
        let Item::Record(record) = item? else { continue };
        holds.apply(&record.event);
        let Some(row) = row(source, &holds, &record) else { continue };
        let [off, writes, reads, cas, claim, deadline, guard] = row.decisions;
        group.push(ParquetRow {
            run: source.run.clone(),
            seq: row.seq,
            at_ms: row.at_ns as f64 / 1e6,
            process: row.process,
            event: row.event,
            client: row.client.map(u64::from),
            hold: row.hold,
            key: row.key,
            op: row.op,
            token: row.token,
            outcome: row.outcome,
            reason: row.reason,
            number: row.number,
            request: row.request,
            off,
            writes,
            reads,
            cas,
            claim,
            deadline,
            guard,
            fault: row.fault,
            kind: row.kind,
            node: row.node,
        });
        if group.len() == GROUP {
            written(&mut file, &mut group)?;
        }
    }
    written(&mut file, &mut group)?;
    file.close()?;
    Ok(())
}

fn written<W: Write + Send>(file: &mut SerializedFileWriter<W>, group: &mut Vec<ParquetRow>) -> anyhow::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    let mut rows = file.next_row_group()?;
    group.as_slice().write_to_row_group(&mut rows)?;
    rows.close()?;
    group.clear();
    Ok(())
}
