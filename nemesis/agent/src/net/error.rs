//! What can go wrong in a target's network namespace.

use std::io;

use crate::protocol::FaultNumber;

/// A fault of packets, a probe or a reset could not be done.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The target's network namespace could not be opened or entered.
    #[error(
        "entering the network namespace of process {pid}: {source}; it must run, and the agent needs the host's pid namespace and the \
         capabilities SYS_ADMIN and SYS_PTRACE"
    )]
    Namespace {
        /// A process of the target.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// One of the programs could not be started.
    #[error(
        "starting `{program}` for the network namespace of process {pid}: {source}; the agent's image needs the package {package}"
    )]
    NoProgram {
        /// Which.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
        /// A process of the target.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// One of the programs refused its rules.
    #[error("`{program}` in the network namespace of process {pid} refused its rules ({rules}): {said}")]
    Refused {
        /// Which.
        program: &'static str,
        /// A process of the target.
        pid: i32,
        /// What it was given, on one line.
        rules: String,
        /// What it said.
        said: String,
    },
    /// The kernel refused something over netlink.
    #[error(
        "{doing} in the network namespace of process {pid}: {source}; the agent needs the capability NET_ADMIN, the kernel {needs}"
    )]
    Netlink {
        /// What was tried, as a gerund.
        doing: &'static str,
        /// A process of the target.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
        /// The part of the kernel that does it.
        needs: &'static str,
    },
    /// The thread that released a fault's packets ended before it was told to. Since then the fault had no effect.
    #[error(
        "the queue of fault {fault} on process {pid} broke while the fault was on, and its packets passed from then on: {source}"
    )]
    QueueBroke {
        /// Which fault.
        fault: FaultNumber,
        /// A process of the target.
        pid: i32,
        /// Why.
        source: io::Error,
    },
    /// A server did not tell the time.
    #[error("asking the Redis server of process {pid} for the time, on port {port}: {source}")]
    Time {
        /// A process of the target.
        pid: i32,
        /// Where it was asked.
        port: u16,
        /// What went wrong.
        source: io::Error,
    },
    /// What was asked for makes no sense.
    #[error("fault {fault} on process {pid}: {why}")]
    Senseless {
        /// Which fault.
        fault: FaultNumber,
        /// A process of the target.
        pid: i32,
        /// What is wrong with it.
        why: &'static str,
    },
}
