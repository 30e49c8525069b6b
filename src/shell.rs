//! Completions for shells, and pages for `man`, both from the command line's own definition.

use std::{
    fs,
    io::{self, Write},
};

use anyhow::Context;
use clap::CommandFactory;

use crate::{
    cli::{Cli, CompletionsArgs, ManArgs},
    exit::Exit,
};

/// `harness completions`
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "harness", &mut script);
    print(&script)
}

/// `harness man`
pub fn man(args: &ManArgs) -> anyhow::Result<Exit> {
    let Some(dir) = &args.output else {
        let mut page = Vec::new();
        clap_mangen::Man::new(visible()).render(&mut page)?;
        return print(&page);
    };
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    clap_mangen::generate_to(visible(), dir).with_context(|| format!("cannot write into {}", dir.display()))?;
    Ok(Exit::Ok)
}

/// The command line without the commands that only the harness itself starts.
fn visible() -> clap::Command {
    let all = Cli::command();
    let about = all.get_about().cloned().unwrap_or_default();
    let after_help = all.get_after_help().cloned().unwrap_or_default();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect::<Vec<_>>();
    clap::Command::new("harness")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .after_help(after_help)
        .subcommands(shown)
}

/// Prints bytes. A reader that has seen enough is no error.
fn print(bytes: &[u8]) -> anyhow::Result<Exit> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(Exit::Ok),
    }
}
