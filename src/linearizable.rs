//! `harness check --format jepsen-edn|porcupine-log`: judges a history that another program recorded.

use std::{
    fs::File,
    io::{Read, stdin},
    path::Path,
};

use linearizability::{Asked, Format, FormatError, Verdict, check, read};

use crate::{
    cli::CheckArgs,
    exit::{Exit, Unusable},
    report::print,
};

/// The bytes of a file that show its format. Comments may come before its first operation.
const BEGINNING: u64 = 4_096;

/// Returns the advice for a file that begins as a history of another program does.
pub fn advice(path: &Path) -> Option<&'static str> {
    let text = beginning(path);
    if text.starts_with("INFOjepsen.util-") {
        return Some("the file looks like a log of Jepsen: add `--format porcupine-log`");
    }
    let first = text.trim_start_matches(['[', '(']);
    let is_map = first.starts_with("{:") || first.starts_with("#jepsen");
    // A tuple begins with its process, which is a number or a keyword.
    let kind = match first.strip_prefix(':') {
        Some(process) => process.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "-_".contains(c)),
        None => first.trim_start_matches(|c: char| c.is_ascii_digit()),
    };
    let is_tuple = first.len() < text.len() && (kind.starts_with(":invoke") || kind.starts_with(":info"));
    (is_map || is_tuple).then_some("the file looks like EDN: add `--format jepsen-edn`")
}

/// Returns the beginning of a file without blanks, commas, lines that are comments in EDN, and the mark of UTF-8;
/// nothing if the file cannot be read or is no file.
fn beginning(path: &Path) -> String {
    let mut bytes = Vec::new();
    if path.is_file() {
        // The caller reports a file that cannot be read.
        let _ = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut bytes));
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.trim_start_matches('\u{feff}').lines().filter(|line| !line.trim_start().starts_with(';'));
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace() && *c != ',').collect()
}

/// Reads the whole file, then judges it. The last line has the verdict.
pub fn linearizable(args: &CheckArgs, format: Format) -> anyhow::Result<Exit> {
    let name = args.run.display().to_string();
    if args.expect.is_some() {
        return Err(Unusable("--expect is for runs of this harness; the exit code tells the verdict".to_owned()).into());
    }
    let unreadable = |e: std::io::Error| Unusable(format!("{name}: {e}"));
    let file: Box<dyn Read> = match name.as_str() {
        "-" => Box::new(stdin()),
        _ => Box::new(File::open(&args.run).map_err(unreadable)?),
    };
    let asked = Asked { model: args.model, initial: args.initial.as_deref() };
    let (history, mut options) = read(format, file, asked).map_err(|e| match e {
        FormatError::Line { line, problem } => {
            let is_json = beginning(&args.run).starts_with("{\"");
            let advice = if is_json { "; the file looks like JSON lines: leave out `--format`" } else { "" };
            Unusable(format!("{name}:{line}: {problem}{advice}"))
        }
        FormatError::Asked(problem) => Unusable(problem),
        FormatError::Read(e) => unreadable(e),
    })?;
    if let Some(memory) = args.memory {
        options.memory = memory.saturating_mul(1 << 20);
    }
    let verdict = check(&history, &options);
    let (answered, open) = history.count();
    let operations = if answered == 1 { "operation" } else { "operations" };
    let lines = if history.ignored == 1 { "line" } else { "lines" };
    let mut text = format!(
        "{name}: {}, {} {}, {answered} {operations}{}{}{}\n",
        options.model.name(),
        history.objects.len(),
        if history.objects.len() == 1 { "object" } else { "objects" },
        if open > 0 { format!(" and {open} that nobody knows the answer of") } else { String::new() },
        if history.silent > 0 { format!(", {} that say nothing", history.silent) } else { String::new() },
        if history.ignored > 0 { format!(", {} {lines} of no client", history.ignored) } else { String::new() },
    );
    let (words, exit) = match verdict {
        Verdict::Linearizable => ("linearizable".to_owned(), Exit::Ok),
        Verdict::Inconclusive(reason) => (format!("inconclusive: {reason}"), Exit::Inconclusive),
        Verdict::NotLinearizable(conflict) => {
            if history.objects.len() > 1 {
                text += &format!("key {}\n", history.values.words(conflict.object));
            }
            (format!("not linearizable: {}", conflict.words(&history)), Exit::Violated)
        }
    };
    print(&(text + &words + "\n"))?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_a_format_that_reads_the_file() {
        let operation = "{:process 0, :type :invoke, :f :write, :value 1}\n";
        let comment = "; a comment, and [another]\n".repeat(100);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        for (text, format) in [
            (operation.to_owned(), Some(Format::JepsenEdn)),
            (format!("(\n{operation})"), Some(Format::JepsenEdn)),
            (format!("\u{feff}{operation}"), Some(Format::JepsenEdn)),
            (comment + operation, Some(Format::JepsenEdn)),
            (format!("#jepsen.history.Op{operation}"), Some(Format::JepsenEdn)),
            ("[:nemesis :info :start nil]\n[0 :invoke :write 1]\n".to_owned(), Some(Format::JepsenEdn)),
            ("[[10, :invoke, :write, 1]]".to_owned(), Some(Format::JepsenEdn)),
            ("INFO  jepsen.util - 0\t:invoke\t:write\t1\n".to_owned(), Some(Format::PorcupineLog)),
            ("0 :invoke :write 1\n".to_owned(), None),
            ("# A plan, and no history.\n[workload]\nkeys = 1\n".to_owned(), None),
            ("{\"seq\":0,\"process\":\"controller\"}\n".to_owned(), None),
        ] {
            std::fs::write(&path, &text).unwrap();
            let flag = format.map(|format| match format {
                Format::JepsenEdn => "--format jepsen-edn",
                Format::PorcupineLog => "--format porcupine-log",
            });
            let advised = advice(&path).and_then(|advice| advice.split('`').nth(1));
            assert_eq!(advised, flag, "{text}");
            assert!(format.is_none_or(|format| read(format, text.as_bytes(), Asked::default()).is_ok()), "{text}");
        }
    }
}
