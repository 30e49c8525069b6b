//! Errors in a target's network namespace.

use std::{io, net::SocketAddrV4};

use history::FaultId;

/// The reason why a fault of packets, a probe or a reset failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The target's network namespace could not be opened or entered.
    #[error(
        "entering the network namespace of process {pid}: {source}; it must run, and the agent \
         needs the host's pid namespace and the \
         capabilities SYS_ADMIN and SYS_PTRACE"
    )]
    Namespace {
        /// A process of the target.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// One of the programs could not be started.
    #[error(
        "starting `{program}` for the network namespace of process {pid}: {source}; \
         the agent's image needs the package {package}"
    )]
    NoProgram {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
        /// A process of the target.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// One of the programs refused its rules.
    #[error("`{program}` in the network namespace of process {pid} refused its rules ({rules}): {said}")]
    Refused {
        /// The program.
        program: &'static str,
        /// A process of the target.
        pid: i32,
        /// The rules, on one line.
        rules: String,
        /// The program's output.
        said: String,
    },
    /// The kernel refused something over netlink.
    #[error(
        "{doing} in the network namespace of process {pid}: {source}; \
         the agent needs the capability NET_ADMIN, the kernel {needs}"
    )]
    Netlink {
        /// The operation, as a gerund.
        doing: &'static str,
        /// A process of the target.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
        /// The kernel feature that the operation needs.
        needs: &'static str,
    },
    /// The thread that released a fault's packets ended early. From then on the fault had no effect.
    #[error(
        "the queue of fault {fault} on process {pid} broke while the fault was on, and its packets \
         passed from then on: {source}"
    )]
    QueueBroke {
        /// The fault.
        fault: FaultId,
        /// A process of the target.
        pid: i32,
        /// The error.
        source: io::Error,
    },
    /// A server did not set or remove a marker key.
    #[error("asking the Redis server at {server} about a marker key: {source}; the server must need no password")]
    Marker {
        /// The server.
        server: SocketAddrV4,
        /// The error.
        source: io::Error,
    },
    /// A server did not answer with its time.
    #[error("asking the Redis server of process {pid} for the time, on port {port}: {source}")]
    Time {
        /// A process of the target.
        pid: i32,
        /// The server's port.
        port: u16,
        /// The error.
        source: io::Error,
    },
    /// The order has an invalid parameter.
    #[error("fault {fault} on process {pid}: {why}")]
    Senseless {
        /// The fault.
        fault: FaultId,
        /// A process of the target.
        pid: i32,
        /// The invalid parameter.
        why: &'static str,
    },
}
