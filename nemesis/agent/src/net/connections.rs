//! Lists and resets a target's TCP connections, with their retransmission timers.
//!
//! After a partition an established connection stays silent until its next retransmission, which may come seconds after
//! the heal. A probe opens a new connection and does not show this silence. Layouts: `linux/inet_diag.h`,
//! `linux/sock_diag.h`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4},
};

use nix::sys::socket::SockProtocol;

use super::{
    error::NetError,
    namespace::Namespace,
    netlink::{ACK, DONE, DUMP, ERROR, Messages, REQUEST, Socket, error, messages},
};
use crate::protocol::{Connection, Links};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const ID_BYTES: usize = 48;

/// The states established, opening, and closing with unsent data: as `1 << TCP_…` of `linux/tcp_states.h`.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
/// The retransmission timers. The second probes a closed window, and also runs for packets that could not leave: a rule
/// that drops outgoing packets tells the sender's own kernel, which then retries as for a closed window.
const RETRANSMIT: u8 = 1;
const WINDOW_PROBE: u8 = 4;

/// A connection with the kernel's id for it.
struct Found {
    connection: Connection,
    family: u8,
    id: [u8; ID_BYTES],
}

/// Lists the connections of the target with the peers of `links`, in both directions, that are opening, open or
/// closing.
pub fn connections(pid: i32, links: &Links) -> Result<Vec<Connection>, NetError> {
    let found = in_target(pid, "listing TCP connections", |socket| list(socket, links))?;
    Ok(found.into_iter().map(|found| found.connection).collect())
}

/// Resets those of these connections that have retransmitted without an answer, and returns them. Others stay: a
/// healthy connection can be a session that holds a lock. If packets get through, both ends learn of the reset at once.
/// Unacknowledged data is lost, so the caller must record the reset.
pub fn reset(pid: i32, links: &Links) -> Result<Vec<Connection>, NetError> {
    in_target(pid, "resetting TCP connections", |socket| {
        let mut done = Vec::new();
        let stale = list(socket, links)?.into_iter().filter(|found| found.connection.is_stale());
        for Found { connection, family, id } in stale {
            match destroy(socket, family, &id) {
                Ok(()) => done.push(connection),
                // The connection has ended by itself.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    })
}

/// Checks that connections can be reset. Tries a connection that cannot exist.
pub(super) fn can_reset(pid: i32) -> Result<(), NetError> {
    in_target(pid, "resetting a TCP connection", |socket| match destroy(socket, libc::AF_INET as u8, &[0; ID_BYTES]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    })
}

fn in_target<T: Send>(
    pid: i32,
    doing: &'static str,
    work: impl FnOnce(&Socket) -> io::Result<T> + Send,
) -> Result<T, NetError> {
    let inside = || work(&Socket::open(SockProtocol::NetlinkSockDiag)?);
    let needs = "INET_DIAG with INET_DIAG_DESTROY";
    Namespace::of(pid)?.enter(inside)?.map_err(|source| NetError::Netlink { doing, pid, source, needs })
}

fn list(socket: &Socket, links: &Links) -> io::Result<Vec<Found>> {
    let mut all = Vec::new();
    // A server that listens on IPv6 has its IPv4 connections in the IPv6 table.
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        dump(socket, family, &mut all)?;
    }
    all.retain(|Found { connection: Connection { peer, .. }, .. }| {
        (links.peers.is_empty() || links.peers.contains(peer.ip())) && links.port.is_none_or(|port| port == peer.port())
    });
    Ok(all)
}

fn dump(socket: &Socket, family: u8, all: &mut Vec<Found>) -> io::Result<()> {
    let mut asked = Messages::default();
    asked.message(BY_FAMILY, REQUEST | DUMP, &request(family, &[0; ID_BYTES]));
    socket.send(&asked)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        for (kind, rest) in messages(socket.receive(&mut buffer)?) {
            match kind {
                DONE => return Ok(()),
                ERROR => return error(rest).map_or(Ok(()), |errno| Err(errno.into())),
                _ => all.extend(found(rest)),
            }
        }
    }
}

fn destroy(socket: &Socket, family: u8, id: &[u8; ID_BYTES]) -> io::Result<()> {
    let mut asked = Messages::default();
    asked.message(DESTROY, REQUEST | ACK, &request(family, id));
    socket.ask(&asked)
}

fn request(family: u8, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let mut fixed = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    fixed.extend(STATES.to_ne_bytes());
    fixed.extend(id);
    fixed
}

/// Returns none for a connection between IPv6 addresses.
fn found(rest: &[u8]) -> Option<Found> {
    let [family, _, timer, retransmits] = *rest.first_chunk()?;
    let id: [u8; ID_BYTES] = rest.get(4..4 + ID_BYTES)?.try_into().ok()?;
    let number = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let (expires_ms, unacknowledged_bytes) = (number(4 + ID_BYTES)?, number(4 + ID_BYTES + 8)?);
    let waits = [RETRANSMIT, WINDOW_PROBE].contains(&timer);
    let connection = Connection {
        local: SocketAddrV4::new(address(family, &id[4..20])?, u16::from_be_bytes([id[0], id[1]])),
        peer: SocketAddrV4::new(address(family, &id[20..36])?, u16::from_be_bytes([id[2], id[3]])),
        retransmits: if waits { retransmits } else { 0 },
        next_retransmit_ms: waits.then_some(expires_ms),
        unacknowledged_bytes,
    };
    Some(Found { connection, family, id })
}

fn address(family: u8, bytes: &[u8]) -> Option<Ipv4Addr> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    if i32::from(family) == libc::AF_INET {
        return Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]));
    }
    match IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical() {
        IpAddr::V4(mapped) => Some(mapped),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two addresses of a connection, as the kernel writes them.
    type Ends = [[u8; 16]; 2];

    /// The kernel's message about a connection with three retransmissions.
    fn message(family: i32, timer: u8, ends: Ends) -> Vec<u8> {
        let mut bytes = vec![family as u8, 1, timer, 3];
        bytes.extend(6_379_u16.to_be_bytes());
        bytes.extend(50_000_u16.to_be_bytes());
        bytes.extend(ends.concat());
        // The interface, and the kernel's cookie.
        bytes.extend([0; 12]);
        // The time to the timer, the unread bytes and the unacknowledged bytes.
        for number in [200_u32, 7, 5] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    fn ipv4(last: u8) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[10, 0, 0, last]);
        bytes
    }

    fn connection(retransmits: u8, next_retransmit_ms: Option<u32>) -> Connection {
        let [local, peer] = ["10.0.0.1:6379", "10.0.0.2:50000"].map(|address| address.parse::<SocketAddrV4>().unwrap());
        Connection { local, peer, retransmits, next_retransmit_ms, unacknowledged_bytes: 5 }
    }

    #[test]
    fn only_the_timers_of_unacknowledged_packets_make_a_connection_stale() {
        // No timer, retransmission, a healthy connection that is probed when it is idle, a closed one, a closed window.
        for (timer, waits) in [(0, false), (1, true), (2, false), (3, false), (4, true)] {
            let found = found(&message(libc::AF_INET, timer, [ipv4(1), ipv4(2)])).unwrap();
            let expected = if waits { connection(3, Some(200)) } else { connection(0, None) };
            assert_eq!(found.connection, expected, "timer {timer}");
            assert_eq!(found.connection.is_stale(), waits, "timer {timer}");
        }
    }

    #[test]
    fn a_connection_over_ipv4_is_found_in_the_table_of_ipv6_too() {
        let mapped = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        let whole = message(libc::AF_INET6, 1, [mapped(1), mapped(2)]);
        assert_eq!(found(&whole).unwrap().connection, connection(3, Some(200)));
        assert!((0..whole.len()).all(|length| found(&whole[..length]).is_none()));
        let other = Ipv6Addr::LOCALHOST.octets();
        for ends in [[other, other], [mapped(1), other], [other, mapped(2)]] {
            assert!(found(&message(libc::AF_INET6, 1, ends)).is_none());
        }
    }
}
