//! Proves from inside a target whether packets get through.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    time::Duration,
};

use super::{error::NetError, namespace::Namespace};
use crate::{protocol::ProbeAnswer, stamp::monotonic_ns};

/// The most connections that one probe tries: others may reset them.
pub const CONNECTIONS_MAX: u32 = 6;

/// Opens a TCP connection to `to` from inside the network namespace of process `pid`, and closes the connection. Waits
/// at most `timeout` for each of at most [`CONNECTIONS_MAX`] connections. The kernel retransmits the SYN after 1 s, 3 s
/// and 7 s, so a shorter timeout tries one packet in each direction.
pub fn probe(pid: i32, to: SocketAddrV4, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    Namespace::of(pid)?.enter(|| first_answer(|| connect(to, timeout)))
}

/// The answer to the first connection that nobody resets.
fn first_answer(connect: impl Fn() -> Option<ProbeAnswer>) -> ProbeAnswer {
    let answer = (0..CONNECTIONS_MAX).find_map(|_| connect());
    answer.unwrap_or_else(|| ProbeAnswer::Failed { why: "others reset each connection of it".into() })
}

/// The answer to one connection; none if it must be tried again.
fn connect(to: SocketAddrV4, timeout: Duration) -> Option<ProbeAnswer> {
    let before = monotonic_ns();
    let connected = TcpStream::connect_timeout(&to.into(), timeout);
    let latency_ns = monotonic_ns() - before;
    match connected {
        Ok(_) => Some(ProbeAnswer::Connected { latency_ns }),
        Err(error) => not_connected(&error, latency_ns),
    }
}

/// The answer to a connection that failed; none if this side ended it, as somebody does who resets the connections of
/// the node after another fault.
fn not_connected(error: &io::Error, latency_ns: u64) -> Option<ProbeAnswer> {
    Some(match error.kind() {
        ErrorKind::ConnectionAborted => return None,
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => ProbeAnswer::Refused { latency_ns },
        // A node that is down has no address and no network. The kernel reports an absent address after 3 s, and the
        // timeout of a probe of delayed packets may be longer.
        ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            ProbeAnswer::Silent
        }
        _ => ProbeAnswer::Failed { why: error.to_string() },
    })
}

/// Probes a port that is opened for the probe in the network namespace of process `at`, whose address is `to`. Tells a
/// packet that a fault rejects from a port without a listener.
pub fn knock(pid: i32, at: i32, to: Ipv4Addr, timeout: Duration) -> Result<ProbeAnswer, NetError> {
    let opened = Namespace::of(at)?.enter(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        io::Result::Ok((listener, port))
    })?;
    match opened {
        // The kernel accepts connections while the listener exists.
        Ok((_listener, port)) => probe(pid, SocketAddrV4::new(to, port), timeout),
        Err(error) => Ok(ProbeAnswer::Failed { why: format!("opening a port at process {at}: {error}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_of_an_absent_address_is_silent() {
        let answer = |errno| not_connected(&io::Error::from_raw_os_error(errno), 7);
        for absent in [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT] {
            assert_eq!(answer(absent), Some(ProbeAnswer::Silent), "{absent}");
        }
        assert_eq!(answer(libc::ECONNREFUSED), Some(ProbeAnswer::Refused { latency_ns: 7 }));
        assert_eq!(answer(libc::ECONNABORTED), None);
        assert!(matches!(answer(libc::EADDRNOTAVAIL), Some(ProbeAnswer::Failed { .. })));
    }

    #[test]
    fn a_probe_whose_connections_are_all_reset_shows_nothing() {
        assert!(matches!(first_answer(|| None), ProbeAnswer::Failed { .. }));
        assert_eq!(first_answer(|| Some(ProbeAnswer::Silent)), ProbeAnswer::Silent);
    }
}
