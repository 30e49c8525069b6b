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

/// The bytes of a file that show its format.
const BEGINNING: u64 = 256;

/// Returns whether a file begins as a history in EDN does.
pub fn looks_like_edn(path: &Path) -> bool {
    let text = beginning(path);
    let first = text.trim_start_matches('[');
    let without_process = first.trim_start_matches(|c: char| c.is_ascii_digit());
    ["{:", "#jepsen"].iter().any(|start| first.starts_with(start)) || without_process.starts_with(":invoke")
}

/// Returns the beginning of a file without blanks; nothing if the file cannot be read or is no file.
fn beginning(path: &Path) -> String {
    let mut bytes = Vec::new();
    if path.is_file() {
        // The caller reports a file that cannot be read.
        let _ = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).split_whitespace().collect()
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
    let mut text = format!(
        "{name}: {}, {} {}, {answered} operations{}{}{}\n",
        options.model.name(),
        history.objects.len(),
        if history.objects.len() == 1 { "object" } else { "objects" },
        if open > 0 { format!(" and {open} that nobody knows the answer of") } else { String::new() },
        if history.silent > 0 { format!(", {} that say nothing", history.silent) } else { String::new() },
        if history.ignored > 0 { format!(", {} lines of no client", history.ignored) } else { String::new() },
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
