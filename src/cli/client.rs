//! The command line of `harness client`.

use std::time::Duration;

use clap::{Args, Subcommand};
use history::duration;

use super::values::named_server;

/// Programs that speak the protocol of docs/client-protocol.md.
#[derive(Debug, Args)]
pub struct ClientArgs {
    #[command(subcommand)]
    pub command: ClientCommand,
}

#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Try every message of the protocol on your program, on this machine, against a server that you name
    Check(CheckArgs),
}

/// Every check says ok or FAILED; a failure quotes the line of the program that is wrong. The exit code is 1 if a check
/// fails.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Command of the program: './my-client', 'python3 clients/redis_lock.py'
    pub program: String,
    /// Server that the program gets in `init`; may be repeated
    #[arg(long, value_name = "NAME=HOST:PORT", value_parser = named_server, required = true)]
    pub server: Vec<(String, String)>,
    /// Lease that the checks ask for
    #[arg(long, value_parser = duration, default_value = "2s")]
    pub lease: Duration,
}
