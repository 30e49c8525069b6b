//! `harness check`: judges a recorded run again.

use std::io::ErrorKind;

use serde::Deserialize;

use crate::{
    cli::{CheckArgs, CheckFormat, Format},
    command::{Report, expectation},
    exit::{Exit, Unusable},
    expect::Expectation,
    judge::judge,
    linearizable::{advice, linearizable},
    made_by,
    report::{Terminal, heading, print, versions},
    run_dir::{Recorded, RunDir},
};

/// `harness check`
pub fn check(args: &CheckArgs) -> anyhow::Result<Exit> {
    let format = match args.format {
        CheckFormat::Text => Format::Text,
        CheckFormat::Json => Format::Json,
        CheckFormat::JepsenEdn => return linearizable(args, linearizability::Format::JepsenEdn),
        CheckFormat::PorcupineLog => return linearizable(args, linearizability::Format::PorcupineLog),
    };
    for (flag, is_given) in
        [("--model", args.model.is_some()), ("--initial", args.initial.is_some()), ("--memory", args.memory.is_some())]
    {
        if is_given {
            let problem = "is for histories of other programs; give `--format jepsen-edn` or `--format porcupine-log`";
            return Err(Unusable(format!("{flag} {problem}")).into());
        }
    }
    let given = expectation(args.expect.as_deref())?;
    let is_given = given.is_some();
    let Recorded { dir, history } = Recorded::find(&args.run)?;
    let earlier = match (&given, &dir) {
        (None, Some(dir)) => Earlier::of(dir)?,
        _ => Earlier::Nothing,
    };
    let is_lost = matches!(earlier, Earlier::Lost);
    let expectation = match earlier {
        Earlier::Expected(expectation) => Some(expectation),
        Earlier::Nothing | Earlier::Lost => given,
    };
    let mut judged = judge(&history).map_err(|e| match advice(&history) {
        Some(advice) => e.context(advice),
        None => e,
    })?;
    if let Some(made_by) = dir.as_ref().and_then(|dir| made_by::read(dir, judged.made_by.as_ref())) {
        judged.made_by = Some(made_by);
    }
    if is_given {
        expectation.iter().try_for_each(|expectation| expectation.check(&judged.plan))?;
    }
    let report = Report::of(&mut judged, expectation.as_ref())?;
    if format == Format::Text {
        print(&(heading(&judged.plan, &versions(&judged.servers), &args.run) + "\n"))?;
    }
    report.print(format)?;
    let Some(dir) = dir else { return Ok(report.exit()) };
    let warn = |problem: &str| Terminal::new(|_| String::new(), false).progress(problem);
    if is_lost {
        let path = dir.verdict();
        let problem = "says `as_expected`, but not what was expected; the file stays as it is. Give --expect";
        warn(&format!("warning: {} {problem} to replace it", path.display()));
    } else if let Err(e) = report.write(&judged, &dir) {
        warn(&format!("warning: {e:#}; the verdicts above are complete, but the run directory has no new report"));
    }
    Ok(report.exit())
}

/// The expectation with which a run was judged before.
enum Earlier {
    /// The run was not judged, or was judged without an expectation.
    Nothing,
    /// The expectation, which `verdict.json` contains.
    Expected(Expectation),
    /// The run was judged with an expectation that `verdict.json` does not contain: an older harness wrote it.
    Lost,
}

impl Earlier {
    fn of(dir: &RunDir) -> Result<Earlier, Unusable> {
        #[derive(Deserialize)]
        struct Outline {
            as_expected: Option<bool>,
            expect: Option<String>,
        }
        let text = match std::fs::read_to_string(dir.verdict()) {
            Ok(text) => text,
            // There is no such file, or nothing in it that a harness has written.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::InvalidData) => {
                return Ok(Earlier::Nothing);
            }
            // The file may contain the expectation.
            Err(e) => {
                let path = dir.verdict();
                return Err(Unusable(format!("{}: {e}; make it readable, or give --expect", path.display())));
            }
        };
        // A file that is no JSON contains nothing to keep.
        let Ok(Outline { as_expected, expect }) = serde_json::from_str(&text) else { return Ok(Earlier::Nothing) };
        match (expect, as_expected) {
            (Some(expect), _) => {
                let named = |e: Unusable| Unusable(format!("{}: {e}", dir.verdict().display()));
                expect.parse().map(Earlier::Expected).map_err(named)
            }
            (None, Some(_)) => Ok(Earlier::Lost),
            (None, None) => Ok(Earlier::Nothing),
        }
    }
}
