//! Servers that exist already, outside of the run's network.

use std::net::{Ipv4Addr, SocketAddrV4};

/// A server that exists already, outside of the run's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnServer {
    /// Its host: a name, or an IPv4 address. A name is resolved once, before the run, so that all workers use one
    /// address and faults of links know this address.
    pub host: String,
    /// Its address.
    pub at: SocketAddrV4,
}

impl OwnServer {
    /// Returns the names that a container of the run resolves to the known addresses.
    pub(crate) fn hosts<'a>(servers: impl Iterator<Item = &'a OwnServer>) -> Option<Vec<String>> {
        let named = servers.filter(|server| server.host.parse::<Ipv4Addr>().is_err());
        let hosts: Vec<String> = named.map(|server| format!("{}:{}", server.host, server.at.ip())).collect();
        (!hosts.is_empty()).then_some(hosts)
    }
}
