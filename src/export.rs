//! `harness export`: writes a recorded run in a format of another program.

mod csv;
mod jepsen;
mod operations;
mod ordered;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod porcupine;
mod rows;
mod source;

use std::{
    fs::File,
    io::{BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use history::Key;

use self::source::Source;
use crate::{
    cli::{ExportArgs, JepsenModel},
    exit::{Exit, Unusable, usage},
    run_dir::Recorded,
    similar::similar,
};

/// The receiver of a format's bytes. Parquet's writer must be `Send`.
type Output<'a> = &'a mut (dyn Write + Send);

/// The choices of the user, complete.
struct Choices {
    model: JepsenModel,
    /// The key; the only one of the run, unless the format reads all keys.
    key: Option<Key>,
}

/// One format.
struct Format {
    name: &'static str,
    /// Writes the run.
    write: fn(&Source, &Choices, Output) -> anyhow::Result<()>,
    /// True if the format reads the sections and one arm's decisions, and so takes `--key` and `--arm`.
    has_sections: bool,
}

/// All formats, by name.
const FORMATS: [Format; 5] = [
    Format { name: "csv", write: |source, _, output| csv::write(source, output), has_sections: false },
    Format {
        name: "jepsen",
        write: |source, choices, output| jepsen::write(source, choices.model, choices.key.as_ref(), output),
        has_sections: true,
    },
    Format { name: "parquet", write: write_parquet, has_sections: false },
    Format { name: "perfetto", write: |source, _, output| perfetto::write(source, output), has_sections: false },
    Format {
        name: "porcupine",
        write: |source, choices, output| porcupine::write(source, choices.key.as_ref(), output),
        has_sections: true,
    },
];

#[cfg(feature = "parquet")]
fn write_parquet(source: &Source, _: &Choices, output: Output) -> anyhow::Result<()> {
    parquet::write(source, output)
}

#[cfg(not(feature = "parquet"))]
fn write_parquet(_: &Source, _: &Choices, _: Output) -> anyhow::Result<()> {
    Err(without_parquet())
}

#[cfg(not(feature = "parquet"))]
fn without_parquet() -> anyhow::Error {
    let mend = "build it with `cargo build --features parquet`, or use `--to csv`, which has the same columns";
    usage("to", format!("this harness was built without parquet; {mend}"))
}

/// `harness export`
pub fn export(args: &ExportArgs) -> anyhow::Result<Exit> {
    let format = FORMATS.iter().find(|format| format.name == args.to).ok_or_else(|| {
        let (names, near) = (FORMATS.map(|format| format.name), similar(&args.to, FORMATS.map(|format| format.name)));
        usage("to", format!("`{}` is no format; the formats are {}{near}", args.to, names.join(", ")))
    })?;
    #[cfg(not(feature = "parquet"))]
    if format.name == "parquet" {
        return Err(without_parquet());
    }
    refuse_without_effect(args, format)?;
    let recorded = Recorded::find(&args.run)?;
    if !recorded.history.is_file() {
        let problem = "no regular file, and an export reads the history twice; give a file";
        return Err(Unusable(format!("{}: {problem}", recorded.history.display())).into());
    }
    let target = Target::of(&args.output, &recorded.history)?;
    let source = Source::read(&recorded.history, args.arm, format.has_sections)?;
    let choices = choose(args, format, &source)?;
    target.write(|output| (format.write)(&source, &choices, output))?;
    Ok(Exit::Ok)
}

/// Refuses flags that the format does not read.
fn refuse_without_effect(args: &ExportArgs, format: &Format) -> anyhow::Result<()> {
    let model = args.model.unwrap_or(JepsenModel::Mutex);
    let is_jepsen = format.name == "jepsen";
    let reads_key = format.has_sections && !(is_jepsen && model == JepsenModel::RwRegister);
    let reads_arm = format.has_sections && !(is_jepsen && model == JepsenModel::Mutex);
    let given = [
        ("model", args.model.is_some() && !is_jepsen),
        ("key", args.key.is_some() && !reads_key),
        ("arm", args.arm.is_some() && !reads_arm),
    ];
    match given.into_iter().find(|(_, is_useless)| *is_useless) {
        Some((flag, _)) => Err(usage(flag, format!("it has no effect on this export to {}", format.name))),
        None => Ok(()),
    }
}

fn choose(args: &ExportArgs, format: &Format, source: &Source) -> anyhow::Result<Choices> {
    let model = args.model.unwrap_or(JepsenModel::Mutex);
    if let Some(parent) = source.plan.workload.parent().filter(|_| format.has_sections) {
        let problem = "acts on the data of all other keys, and each operation of the model is one of its own key";
        return Err(usage("to", format!("`{}`: a hold of {parent} {problem}; use `--to csv`", format.name)));
    }
    let shared = source.shared.filter(|_| format.name == "jepsen" && model == JepsenModel::Mutex);
    if let Some(mode) = shared {
        let problem = format!("the run has attempts in the mode `{mode}`, and a mutex has no readers who share it");
        return Err(usage("model", format!("{problem}; use `cas-register` or `rw-register`")));
    }
    if let Some(arm) = args.arm.filter(|arm| !source.plan.arms.contains(arm)) {
        let arms: Vec<_> = source.plan.arms.iter().map(|arm| arm.name()).collect();
        return Err(usage("arm", format!("the run has no arm `{arm}`; its arms are {}", arms.join(", "))));
    }
    let keys = || source.keys.iter().map(Key::as_str).collect::<Vec<_>>().join(", ");
    let key = match &args.key {
        Some(name) => {
            let key = source.keys.get(&Key::new(name));
            Some(
                key.ok_or_else(|| {
                    usage("key", format!("no client of the run used `{name}`; its keys are {}", keys()))
                })?,
            )
        }
        None if model == JepsenModel::RwRegister || !format.has_sections => None,
        None if source.keys.len() > 1 => {
            return Err(usage("key", format!("the run has several keys, and the model one: choose among {}", keys())));
        }
        None => source.keys.first(),
    };
    Ok(Choices { model, key: key.cloned() })
}

/// The place that an export goes to.
enum Target {
    /// Standard output.
    Standard,
    /// A device or a pipe, which is written as it is.
    Special(PathBuf),
    /// A file, which appears under its name when it is whole.
    File(PathBuf),
}

impl Target {
    /// # Errors
    /// The output is a directory, or the history itself.
    fn of(output: &Path, history: &Path) -> anyhow::Result<Target> {
        if output.as_os_str() == "-" {
            return Ok(Target::Standard);
        }
        let refused = |problem: &str| usage("output", format!("{}: {problem}", output.display()));
        let Ok(found) = output.metadata() else { return Ok(Target::File(output.to_owned())) };
        if found.is_dir() {
            return Err(refused("this is a directory; name a file in it"));
        }
        // The target of a link is replaced, and not the link. A link such as `/dev/stdout` may lead to a pipe, and a
        // pipe has no path of its own.
        let Ok(path) = output.canonicalize() else { return Ok(Target::Special(output.to_owned())) };
        if history.canonicalize().is_ok_and(|history| history == path) {
            return Err(refused("this is the history itself; choose another name"));
        }
        Ok(if found.is_file() { Target::File(path) } else { Target::Special(path) })
    }

    fn write(&self, export: impl FnOnce(Output) -> anyhow::Result<()>) -> anyhow::Result<()> {
        match self {
            Target::Standard => {
                let written = whole(std::io::stdout(), export);
                // A closed output (`| head`) is no error.
                if written.as_ref().is_err_and(is_closed) {
                    Ok(())
                } else {
                    written.context("writing to standard output")
                }
            }
            Target::Special(path) => {
                let doing = || format!("writing {}", path.display());
                whole(File::options().write(true).open(path).with_context(doing)?, export).with_context(doing)
            }
            Target::File(path) => {
                let doing = || format!("writing {}", path.display());
                let name = path.file_name().with_context(doing)?.to_string_lossy();
                let beside = path.with_file_name(format!(".{name}-{}", std::process::id()));
                let written = File::create(&beside)
                    .map_err(anyhow::Error::from)
                    .and_then(|file| whole(file, export))
                    .and_then(|()| Ok(std::fs::rename(&beside, path)?));
                if written.is_err() {
                    // The error says what is wrong; a file that was never made cannot be removed.
                    let _ = std::fs::remove_file(&beside);
                }
                written.with_context(doing)
            }
        }
    }
}

/// Writes everything that `export` gives, through a buffer.
fn whole(to: impl Write + Send, export: impl FnOnce(Output) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut output = BufWriter::with_capacity(1 << 16, to);
    let exported = export(&mut output);
    if exported.is_err() {
        // What the buffer still has is not written.
        let _ = output.into_parts();
        return exported;
    }
    Ok(output.flush()?)
}

fn is_closed(error: &anyhow::Error) -> bool {
    let is_closed = |cause: &std::io::Error| cause.kind() == ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_closed))
}

#[cfg(test)]
mod tests;
