//! Finds what somebody else has done to a target's network: packet rules, queueing disciplines, interfaces that are
//! down. Layouts: `linux/netfilter/nf_tables.h`, `linux/rtnetlink.h`.
//!
//! Rules of the older interface of iptables (`iptables-legacy`) and routes are not looked at.

use std::{collections::BTreeSet, ffi::CStr, io};

use nix::sys::socket::SockProtocol;

use super::{
    error::NetError,
    namespace::Namespace,
    netlink::{DONE, DUMP, ERROR, Messages, REQUEST, Socket, attributes, error, messages},
    rules::is_ours,
};

/// The netfilter subsystem of nftables, as the high byte of a message's type.
const NFTABLES: u16 = 10 << 8;
const GET_CHAIN: u16 = NFTABLES | 4;
const GET_RULE: u16 = NFTABLES | 7;
/// Address family, version and number of a subsystem's messages: all families.
const ALL_FAMILIES: [u8; 4] = [0; 4];

/// Attributes of a chain.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_POLICY: u16 = 5;
const DROP: u32 = 0;
/// Attributes of a rule.
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
/// The engine translates the addresses of its name server in this table. It cuts nothing off.
const TRANSLATION: &str = "nat";

const GET_LINK: u16 = 18;
const LINK_BYTES: usize = 16;
const LINK_NAME: u16 = 3;
const GET_QUEUEING: u16 = 38;
const QUEUEING_BYTES: usize = 20;
const QUEUEING_KIND: u16 = 1;
/// The discipline of every interface of a container that nobody changed. A network that is connected again brings one.
const NO_QUEUE: &str = "noqueue";

/// How often a list is read again that changed while it was read.
const TRIES: u32 = 5;
const BUFFER_BYTES: usize = 64 << 10;

/// Returns what in the network of process `pid` can keep packets back and is not of a fault of ours, each in words.
///
/// # Errors
/// The process has ended, or this process may not enter its network namespace or list the rules.
pub fn foreign(pid: i32) -> Result<BTreeSet<String>, NetError> {
    let doing = "listing packet rules and interfaces";
    let found = Namespace::of(pid)?.enter(|| -> io::Result<BTreeSet<String>> {
        let netfilter = Socket::open(SockProtocol::NetlinkNetFilter)?;
        let mut found = list(&netfilter, GET_RULE, &ALL_FAMILIES, rule)?;
        found.extend(list(&netfilter, GET_CHAIN, &ALL_FAMILIES, dropping_chain)?);
        let route = Socket::open(SockProtocol::NetlinkRoute)?;
        found.extend(list(&route, GET_LINK, &[0; LINK_BYTES], interface_down)?);
        found.extend(list(&route, GET_QUEUEING, &[0; QUEUEING_BYTES], queueing)?);
        Ok(found)
    })?;
    found.map_err(|source| NetError::Netlink { doing, pid, source, needs: "nftables" })
}

/// Reads a whole list of the kernel, and returns the words for each entry that has some.
fn list(socket: &Socket, kind: u16, fixed: &[u8], words: fn(&[u8]) -> Option<String>) -> io::Result<BTreeSet<String>> {
    for _ in 0..TRIES {
        if let Some(found) = list_once(socket, kind, fixed, words)? {
            return Ok(found);
        }
    }
    Err(io::Error::other("the list changed each time while it was read"))
}

/// As [`list`]; none, if the rules changed meanwhile: each entry has the number of the set of rules that it is of.
fn list_once(
    socket: &Socket,
    kind: u16,
    fixed: &[u8],
    words: fn(&[u8]) -> Option<String>,
) -> io::Result<Option<BTreeSet<String>>> {
    let mut ask = Messages::default();
    ask.message(kind, REQUEST | DUMP, fixed);
    socket.send(&ask)?;
    let (mut found, mut generations) = (BTreeSet::new(), BTreeSet::new());
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        for (answer, rest) in messages(socket.receive(&mut buffer)?) {
            match answer {
                DONE => return Ok((generations.len() <= 1).then_some(found)),
                ERROR => return Err(error(rest).map_or_else(|| io::Error::other("no list came"), io::Error::from)),
                _ if kind & NFTABLES == NFTABLES => drop(generations.insert(rest.get(2..4).map(<[u8]>::to_vec))),
                _ => {}
            }
            found.extend(words(rest));
        }
    }
}

/// The words for a packet rule that is not ours.
fn rule(rest: &[u8]) -> Option<String> {
    let body = rest.get(ALL_FAMILIES.len()..)?;
    let (table, chain) = (text(body, RULE_TABLE)?, text(body, RULE_CHAIN)?);
    // A jump to a chain of ours has that chain's name in its expressions.
    if table == TRANSLATION || is_ours(table.as_bytes()) || is_ours(body) {
        return None;
    }
    let handle = value(body, RULE_HANDLE).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    Some(format!("rule {handle} of chain {chain} in table {table}"))
}

/// The words for a chain that drops the packets that no rule of it accepts.
fn dropping_chain(rest: &[u8]) -> Option<String> {
    let body = rest.get(ALL_FAMILIES.len()..)?;
    let policy = value(body, CHAIN_POLICY).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)?;
    let (table, chain) = (text(body, CHAIN_TABLE)?, text(body, CHAIN_NAME)?);
    (policy == DROP).then(|| format!("chain {chain} in table {table} drops packets"))
}

/// The words for an interface that is down.
fn interface_down(rest: &[u8]) -> Option<String> {
    let flags = u32::from_ne_bytes(rest.get(8..12)?.try_into().ok()?);
    let name = text(rest.get(LINK_BYTES..)?, LINK_NAME)?;
    (flags & libc::IFF_UP as u32 == 0).then(|| format!("interface {name} is down"))
}

/// The words for a queueing discipline that holds packets.
fn queueing(rest: &[u8]) -> Option<String> {
    let interface = i32::from_ne_bytes(rest.get(4..8)?.try_into().ok()?);
    let kind = text(rest.get(QUEUEING_BYTES..)?, QUEUEING_KIND)?;
    (kind != NO_QUEUE).then(|| format!("queueing discipline {kind} on interface {interface}"))
}

fn value(body: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(body).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn text(body: &[u8], kind: u16) -> Option<&str> {
    CStr::from_bytes_until_nul(value(body, kind)?).ok()?.to_str().ok()
}
