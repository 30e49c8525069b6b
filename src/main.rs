//! `harness`: what distributed locks do under faults.

mod cli;
mod command;
mod conduct;
mod control;
mod dose;
mod exit;
mod expect;
mod explore;
mod judge;
mod process;
mod pump;
mod record;
mod report;
mod run_dir;
mod scenario;
mod selftest;
mod suite;

use std::{io::Write, process::ExitCode};

use clap::Parser;

use crate::{
    cli::{Cli, Command},
    exit::Exit,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own code for a usage error is 2, which is `inconclusive` here.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Ok }.into();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("HARNESS_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let done = match cli.command {
        // Processes of ours run on one thread: stamps, events and the work itself take turns.
        Command::Worker => one_thread(process::worker()).map(|()| Exit::Ok),
        Command::Resource(args) => one_thread(process::resource(args)).map(|()| Exit::Ok),
        Command::Agent => one_thread(process::agent()).map(|()| Exit::Ok),
        Command::Run(args) => command::run(*args),
        Command::Explore(args) => explore::explore(&args),
        Command::Selftest(args) => selftest::selftest(&args),
        Command::Suite(args) => suite::suite(&args),
        Command::Dose(args) => dose::dose(&args),
        Command::Check(args) => command::check(&args),
        Command::Clean(args) => command::clean(&args),
        Command::List(args) => command::list(&args),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            // The exit code says it too, should nobody be listening.
            let _ = writeln!(std::io::stderr(), "harness: {error:#}");
            Exit::of(&error).into()
        }
    }
}

fn one_thread(process: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(process)
}
