//! A target's TCP connections: which wait for a retransmission, and an end to those.
//!
//! After a partition an established connection stays silent until its next retransmission, seconds after the heal. A probe opens a new
//! connection and does not see that. Layouts: `linux/inet_diag.h`, `linux/sock_diag.h`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4},
};

use nix::sys::socket::SockProtocol;

use super::{
    Namespace, NetError,
    netlink::{ACK, DONE, DUMP, ERROR, Messages, REQUEST, Socket, error, messages},
};
use crate::protocol::{Connection, Links};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const ID_BYTES: usize = 48;

/// Established, opening, and closing with something left to send: as `1 << TCP_…` of `linux/tcp_states.h`.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
/// The timers that send again what is not acknowledged. The second, which probes a closed window, also runs for what could not leave
/// at all: a rule that drops on the way out tells the sender's own kernel so, which then tries it like a probe.
const RETRANSMIT: u8 = 1;
const WINDOW_PROBE: u8 = 4;

/// A connection, and how the kernel names it.
struct Found {
    connection: Connection,
    family: u8,
    id: [u8; ID_BYTES],
}

/// The connections of the target with the peers of `links`, both ways, that are open, opening or not yet closed.
pub fn connections(pid: i32, links: &Links) -> Result<Vec<Connection>, NetError> {
    let found = in_target(pid, "listing TCP connections", |socket| list(socket, links))?;
    Ok(found.into_iter().map(|found| found.connection).collect())
}

/// Resets those connections: both ends learn of it at once, if packets get through. Gives those that were reset. What was written on
/// them and not yet acknowledged is lost, so whoever asks for it records it.
pub fn reset(pid: i32, links: &Links) -> Result<Vec<Connection>, NetError> {
    in_target(pid, "resetting TCP connections", |socket| {
        let mut done = Vec::new();
        for Found { connection, family, id } in list(socket, links)? {
            match destroy(socket, family, &id) {
                Ok(()) => done.push(connection),
                // It has ended by itself.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    })
}

/// Whether connections can be reset here. Tries one that cannot exist.
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
    // A server that listens on IPv6 has its IPv4 connections there.
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

/// None, if it is one between IPv6 addresses.
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
