//! CSV: one line for each row, with a head (RFC 4180, lines end with a line feed).

use std::{fmt::Write as _, io::Write};

use history::Arm;

use super::{
    ordered::Item,
    rows::{Row, row},
    source::{Holds, Source},
};

/// Writes the table.
///
/// # Errors
/// The history cannot be read again, or the output cannot be written.
pub fn write(source: &Source, output: &mut dyn Write) -> anyhow::Result<()> {
    let arms = Arm::ALL.map(Arm::name).join(",");
    let (own, after) = ("hold,key,op,token,outcome,reason,number,request", "fault,kind,node");
    writeln!(output, "run,seq,at_ms,process,event,client,{own},{arms},{after}")?;
    let mut holds = Holds::default();
    let mut line = String::new();
    for item in source.ordered()? {
        let Item::Record(record) = item? else { continue };
        holds.apply(&record.event);
        if let Some(row) = row(source, &holds, &record) {
            line.clear();
            line_of(&source.run, &row, &mut line);
            output.write_all(line.as_bytes())?;
        }
    }
    Ok(())
}

fn line_of(run: &str, row: &Row, line: &mut String) {
    text(run, line);
    let (sign, at) = (if row.at_ns < 0 { "-" } else { "" }, row.at_ns.unsigned_abs());
    let _ = write!(line, ",{},{sign}{}.{:06},", row.seq, at / 1_000_000, at % 1_000_000);
    text(&row.process, line);
    let number = |number: Option<u64>, line: &mut String| {
        line.push(',');
        if let Some(number) = number {
            let _ = write!(line, "{number}");
        }
    };
    let word = |word: Option<&str>, line: &mut String| {
        line.push(',');
        text(word.unwrap_or_default(), line);
    };
    word(Some(row.event), line);
    number(row.client.map(u64::from), line);
    number(row.hold, line);
    word(row.key.as_deref(), line);
    number(row.op, line);
    number(row.token, line);
    word(row.outcome, line);
    word(row.reason, line);
    number(row.number, line);
    word(row.request, line);
    row.decisions.iter().for_each(|decision| word(*decision, line));
    number(row.fault, line);
    word(row.kind, line);
    word(row.node.as_deref(), line);
    line.push('\n');
}

/// Adds a text, in quotes where it needs them.
fn text(text: &str, line: &mut String) {
    if text.contains([',', '"', '\n', '\r']) {
        let _ = write!(line, "\"{}\"", text.replace('"', "\"\""));
    } else {
        line.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_comma_or_a_quote_stays_one_field() {
        let mut line = String::new();
        let row = Row { process: "a,\"b\"".into(), event: "read", at_ns: 1_234_567_891, ..Row::default() };
        line_of("r", &row, &mut line);
        assert_eq!(line, format!("r,0,1234.567891,\"a,\"\"b\"\"\",read{}\n", ",".repeat(19)));
    }
}
