//! The hidden subcommand `power`: the first process in the container of a server that can lose power.
//!
//! It puts the file system of [`agent::power`] over the server's data directory, in a process of its own, and then
//! becomes the server. So signals to the container's first process reach the server, and a SIGKILL of the container
//! ends the file system too.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use agent::power::{Canary, ORDER, Place, PowerReport, RolledBack, roll_back, serve};
use anyhow::{Context, bail};

/// The line that the file system prints when it is mounted.
const MOUNTED: &str = "mounted";

/// The arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct PowerArgs {
    /// The server's data directory
    #[arg(long)]
    data: PathBuf,
    /// The directory for the state beside the data
    #[arg(long)]
    state: PathBuf,
    /// Serve the file system
    #[arg(long, conflicts_with = "report")]
    serve: bool,
    /// Print the report of the last loss of power
    #[arg(long)]
    report: bool,
    /// The server's command and its arguments
    #[arg(last = true)]
    command: Vec<String>,
}

/// Becomes the server, or serves its file system, or reports.
pub fn power(args: &PowerArgs) -> anyhow::Result<()> {
    let (logs, report) = (args.state.join("logs"), args.state.join("report.json"));
    let place = Place { data: &args.data, logs: &logs };
    if args.report {
        let text = fs::read(&report).with_context(|| format!("reading {}", report.display()))?;
        return std::io::stdout().write_all(&text).context("printing the report");
    }
    if args.serve {
        let mounted = || {
            let mut out = std::io::stdout();
            writeln!(out, "{MOUNTED}")?;
            out.flush()
        };
        return serve(place, mounted).with_context(|| format!("a file system over {}", args.data.display()));
    }
    become_the_server(args, place, &report)
}

fn become_the_server(args: &PowerArgs, place: Place<'_>, report: &Path) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        bail!("no command of a server after `--`");
    };
    lose_if_ordered(&args.state.join(ORDER), place, report)?;
    let inside = std::env::current_dir().context("looking for the working directory")?;
    let mut serving = Command::new("/proc/self/exe")
        .args(["power", "--serve", "--data"])
        .arg(&args.data)
        .arg("--state")
        .arg(&args.state)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the file system")?;
    let mut line = String::new();
    let said = serving.stdout.take().context("the file system has no output")?;
    BufReader::new(said).read_line(&mut line).context("waiting for the file system")?;
    if line.trim_end() != MOUNTED {
        let ended = serving.wait().context("waiting for the end of the file system")?;
        bail!("the file system over {} did not start ({ended}); its reason is above", args.data.display());
    }
    // Now the same path leads into the mounted directory.
    std::env::set_current_dir(&inside).with_context(|| format!("entering {} again", inside.display()))?;
    Canary::leave(place.data).context("leaving the canary")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("running {program}"))
}

/// Loses what was not synced, if that was ordered. Otherwise removes the report of an earlier loss: it would be taken
/// for the report of a loss that did not happen.
fn lose_if_ordered(order: &Path, place: Place<'_>, report: &Path) -> anyhow::Result<()> {
    if !order.exists() {
        return match fs::remove_file(report) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .with_context(|| format!("removing {}", report.display()));
    }
    let rolled_back = roll_back(place).context("putting back what was not synced")?;
    let said = PowerReport { rolled_back, canary: Canary::look(place.data) };
    fs::write(report, serde_json::to_vec(&said)?).with_context(|| format!("writing {}", report.display()))?;
    fs::remove_file(order).with_context(|| format!("removing {}", order.display()))?;
    let RolledBack { files, pages, cut_bytes } = rolled_back;
    eprintln!("harness: power was lost: {files} files put back, {pages} pages, {cut_bytes} bytes shorter");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_without_an_order_leaves_no_report_of_an_earlier_loss() {
        let dir = tempfile::tempdir().unwrap();
        let (order, report, logs) = (dir.path().join(ORDER), dir.path().join("report.json"), dir.path().join("logs"));
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let place = Place { data: &data, logs: &logs };
        lose_if_ordered(&order, place, &report).unwrap();
        fs::write(&order, "").unwrap();
        lose_if_ordered(&order, place, &report).unwrap();
        assert!(report.exists() && !order.exists());
        lose_if_ordered(&order, place, &report).unwrap();
        assert!(!report.exists());
    }
}
