//! Proof, from inside a target, that packets get through, or that they do not.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    time::Duration,
};

use super::{Namespace, NetError};
use crate::{protocol::ProbeAnswer, stamp::monotonic_ns};

/// Opens a TCP connection to `to` from inside the network namespace of process `pid`, and closes it again. The packet that opens it is sent
/// again after 1 s, 3 s, 7 s: a shorter timeout tries one packet each way. Waits as long as `timeout`.
pub fn probe(pid: i32, to: SocketAddrV4, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    Namespace::of(pid)?.enter(|| {
        let before = monotonic_ns();
        let connected = TcpStream::connect_timeout(&to.into(), timeout);
        let latency_ns = monotonic_ns() - before;
        match connected {
            Ok(_) => ProbeAnswer::Connected { latency_ns },
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => ProbeAnswer::Refused { latency_ns },
                ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeAnswer::Silent,
                _ => ProbeAnswer::Failed { why: error.to_string() },
            },
        }
    })
}

/// The same to a port that is opened for it in the network namespace of process `at`, whose address is `to`, and closed again. It tells packets that
/// are rejected on their way from a port on which nobody listens.
pub fn knock(pid: i32, at: i32, to: Ipv4Addr, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    let opened = Namespace::of(at)?.enter(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        std::io::Result::Ok((listener, port))
    })?;
    match opened {
        // The kernel accepts for as long as the listener lives.
        Ok((_listener, port)) => probe(pid, SocketAddrV4::new(to, port), timeout),
        Err(error) => Ok(ProbeAnswer::Failed { why: format!("opening a port at process {at}: {error}") }),
    }
}
