//! `harness`: fault injection for distributed locks. The library has one function for the program, and `fuzzing` for
//! its fuzz targets.

mod agent;
mod check;
mod cli;
mod client_check;
mod command;
mod compare;
mod docker;
mod doctor;
mod dose;
mod drawn;
mod exit;
mod expect;
mod explain;
mod explore;
mod export;
mod findings;
mod fingerprint;
#[cfg(fuzzing)]
pub mod fuzzing;
mod host_clock;
mod judge;
mod linearizable;
mod list;
mod made_by;
mod measures;
mod merge;
mod own_servers;
mod plan_file;
mod process;
mod processes;
mod program;
mod recorded_run;
mod recorder;
mod remove_keys;
mod report;
mod run_dir;
mod runner;
mod scenario;
mod selftest;
mod serve;
mod shard;
mod shell;
mod signals;
mod similar;
mod standard_input;
mod statistics;
mod suite;
mod timeline;
mod unplanned;
mod versions;

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::ExitCode,
};

use clap::{Parser, error::ErrorKind};

use crate::{
    cli::{Cli, Command},
    exit::Exit,
};

/// Runs the program with the arguments of this process.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap exits with 2 after a usage error, but 2 means inconclusive here.
            let is_written = match error.print() {
                Err(e) => error.use_stderr() || e.kind() == std::io::ErrorKind::BrokenPipe,
                Ok(()) => true,
            };
            let text = error.to_string();
            let is_of_plan = text.split("Usage").next().is_some_and(|problem| problem.contains("[PLAN]"));
            if is_of_plan && error.kind() == ErrorKind::ArgumentConflict {
                let advice = "the plan fixes what this flag describes; change and run a copy of the plan";
                let _ = writeln!(std::io::stderr(), "\nharness: {advice}");
            }
            return match (error.use_stderr(), is_written) {
                (true, _) => Exit::Usage,
                (false, true) => Exit::Ok,
                (false, false) => Exit::Failed,
            }
            .into();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("HARNESS_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let done = listens(&cli.command).and_then(|()| carried_out(cli.command));
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            // If standard error is closed, the exit code is enough.
            let _ = writeln!(std::io::stderr(), "{}", report::visible(&format!("harness: {error:#}")));
            Exit::of(&error).into()
        }
    }
}

/// Lets signals end a command that may take long and does not listen for them itself.
fn listens(command: &Command) -> anyhow::Result<()> {
    use Command::{Check, Compare, Explore, Export, Findings, Merge, Selftest};
    match command {
        Explore(_) | Selftest(_) | Merge(_) | Check(_) | Export(_) | Compare(_) | Findings(_) => {
            signals::end_the_process()
        }
        _ => Ok(()),
    }
}

fn carried_out(command: Command) -> anyhow::Result<Exit> {
    match command {
        // The run's own processes have one thread, on which stamps, events and the work take turns.
        Command::Worker => one_thread(process::worker()).map(|()| Exit::Ok),
        Command::Resource(args) => one_thread(process::resource(args)).map(|()| Exit::Ok),
        Command::Agent => one_thread(process::agent()).map(|()| Exit::Ok),
        Command::RemoveKeys => one_thread(remove_keys::remove_keys_here()).map(|()| Exit::Ok),
        Command::LockServer(args) => one_thread(process::lock_server(args)).map(|()| Exit::Ok),
        Command::Power(args) => process::power(&args).map(|()| Exit::Ok),
        Command::Run(args) => command::run(*args),
        Command::Explore(args) => explore::explore(&args),
        Command::Selftest(args) => selftest::selftest(&args),
        Command::Suite(args) => suite::suite(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::Dose(args) => dose::dose(&args),
        Command::Check(args) => check::check(&args),
        Command::Client(args) => client_check::client(&args),
        Command::Export(args) => export::export(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Findings(args) => findings::findings(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Clean(args) => command::clean(&args),
        Command::List(args) => list::list(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}

/// Runs a process on one thread to its end, or until it panics. A read of standard input may be under way then, and it
/// ends only with the next command. A drop of the runtime would wait for that read: the process would go on without its
/// work, and the controller would learn of its end much later, or never.
fn one_thread(process: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(process)));
    runtime.shutdown_background();
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    /// Longer than any process takes to end.
    const NEVER: Duration = Duration::from_secs(20);

    #[test]
    fn a_process_that_fails_waits_for_no_further_command() {
        for panics in [false, true] {
            // As the read of the next command: it is under way, and ends only when this test does.
            let (command, commands) = mpsc::channel::<()>();
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                let process = async move {
                    let (begins, begun) = tokio::sync::oneshot::channel::<()>();
                    let reading = tokio::task::spawn_blocking(move || {
                        drop(begins);
                        let _ = commands.recv();
                    });
                    assert!(begun.await.is_err() && !reading.is_finished());
                    assert!(!panics, "a client panics");
                    Err(anyhow::anyhow!("the store cannot be opened"))
                };
                let failed = catch_unwind(AssertUnwindSafe(|| one_thread(process).is_err()));
                ended.send(failed.map_err(drop)).unwrap();
            });
            let expected = if panics { Err(()) } else { Ok(true) };
            assert_eq!(end.recv_timeout(NEVER), Ok(expected), "the process goes on");
            drop(command);
        }
    }
}
