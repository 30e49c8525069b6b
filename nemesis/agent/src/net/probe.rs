//! Proves from inside a target whether packets get through.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    time::Duration,
};

use super::{error::NetError, namespace::Namespace};
use crate::{protocol::ProbeAnswer, stamp::monotonic_ns};

/// The most connections that one probe tries: others may reset them.
const CONNECTIONS_MAX: u32 = 6;

/// Opens a TCP connection to `to` from inside the network namespace of process `pid`, and closes the connection. Waits
/// at most `timeout`. The kernel retransmits the SYN after 1 s, 3 s and 7 s, so a shorter timeout tries one packet in
/// each direction.
pub fn probe(pid: i32, to: SocketAddrV4, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    Namespace::of(pid)?.enter(|| {
        let answer = (0..CONNECTIONS_MAX).find_map(|_| connect(to, timeout));
        answer.unwrap_or_else(|| ProbeAnswer::Failed { why: "others reset each connection of it".into() })
    })
}

/// The answer to one connection; none if this side ended it, as somebody does who resets the connections of the node
/// after another fault.
fn connect(to: SocketAddrV4, timeout: Duration) -> Option<ProbeAnswer> {
    let before = monotonic_ns();
    let connected = TcpStream::connect_timeout(&to.into(), timeout);
    let latency_ns = monotonic_ns() - before;
    Some(match connected {
        Ok(_) => ProbeAnswer::Connected { latency_ns },
        Err(error) => match error.kind() {
            ErrorKind::ConnectionAborted => return None,
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => ProbeAnswer::Refused { latency_ns },
            ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeAnswer::Silent,
            _ => ProbeAnswer::Failed { why: error.to_string() },
        },
    })
}

/// Probes a port that is opened for the probe in the network namespace of process `at`, whose address is `to`. Tells a
/// packet that a fault rejects from a port without a listener.
pub fn knock(pid: i32, at: i32, to: Ipv4Addr, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    let opened = Namespace::of(at)?.enter(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        std::io::Result::Ok((listener, port))
    })?;
    match opened {
        // The kernel accepts connections while the listener exists.
        Ok((_listener, port)) => probe(pid, SocketAddrV4::new(to, port), timeout),
        Err(error) => Ok(ProbeAnswer::Failed { why: format!("opening a port at process {at}: {error}") }),
    }
}
