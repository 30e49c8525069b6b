//! The hidden subcommand `lock-server`: a server of `--backend memory` and `lock-manager`.
//!
//! It is a server under test, and no process of the run: it records no events.

use std::{io::Write, sync::Arc};

use anyhow::Context;
use locks::{
    BootClock,
    lock_server::{PORT, serve},
    memory::server_version,
};
use tokio::net::TcpListener;

/// The arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct LockServerArgs {
    /// Address to listen on
    #[arg(long, default_value_t = format!("0.0.0.0:{PORT}"))]
    listen: String,
    /// Ask the server at this address for its version instead
    #[arg(long, conflicts_with = "listen")]
    check: Option<String>,
}

/// Serves until the process is killed, or asks a server whether it answers.
pub async fn lock_server(args: LockServerArgs) -> anyhow::Result<()> {
    if let Some(address) = args.check {
        let version = server_version(&address).await?;
        return writeln!(std::io::stdout(), "version {version}").context("printing the version");
    }
    let listener = TcpListener::bind(&args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
    writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?).context("printing the address")?;
    // Through libc, so that a clock fault of this process changes its leases.
    serve(listener, Arc::new(BootClock)).await;
    Ok(())
}
