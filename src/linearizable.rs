//! `harness check --format jepsen-edn|porcupine-log`: judges a history that another program recorded.

use std::{
    fs::File,
    io::{Read, stdin},
};

use linearizability::{Asked, Format, FormatError, Verdict, check, read};

use crate::{
    cli::CheckArgs,
    exit::{Exit, Unusable},
    report::print,
};

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
        FormatError::Line { line, problem } => Unusable(format!("{name}:{line}: {problem}")),
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
