//! The run's own network, in which every node keeps its address when it restarts.

use std::{collections::HashMap, net::Ipv4Addr};

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};

use crate::{
    Engine,
    error::{Error, status},
};

/// Number of retries if another run takes the subnet between our inspection and our creation of the network.
const TRIES: usize = 20;

/// The network of one run.
#[derive(Debug)]
pub(crate) struct Network {
    /// The network's id. The engine accepts two networks of one name, which makes the name ambiguous.
    pub id: String,
    subnet: Subnet,
}

impl Network {
    /// Creates the network. The engine assigns fixed addresses only in a subnet that was requested, and only the engine
    /// knows which subnets are free. So the engine first chooses a subnet, and the network then requests this subnet.
    pub(crate) async fn create(engine: &Engine, name: &str, labels: &HashMap<String, String>) -> Result<Self, Error> {
        let request = |ipam| request(name, labels, ipam);
        let doing = || format!("creating the network {name}");
        let docker = engine.docker();
        for _ in 0..TRIES {
            let probe = engine.create_network(request(None)).await.map_err(|e| Error::engine(doing(), &e))?;
            let found = docker.inspect_network(&probe, None).await;
            docker.remove_network(&probe).await.map_err(|e| Error::engine(doing(), &e))?;
            let found = found.map_err(|e| Error::engine(doing(), &e))?;
            let chosen = found.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
            let Some((subnet, config)) = chosen.into_iter().find_map(ipv4) else {
                return Err(Error::Engine { doing: doing(), why: "it chose no IPv4 subnet".to_owned() });
            };
            let ipam = Ipam { config: Some(vec![config]), ..Default::default() };
            match engine.create_network(request(Some(ipam))).await {
                Ok(id) => return Ok(Self { id, subnet }),
                // Another run has taken the subnet meanwhile.
                Err(error) if status(&error).is_some() => tracing::debug!(%error, "subnet was taken"),
                Err(error) => return Err(Error::engine(doing(), &error)),
            }
        }
        Err(Error::Engine { doing: doing(), why: format!("every subnet it chose was taken by others, {TRIES} times") })
    }

    /// Returns the first `count` addresses for nodes.
    pub(crate) fn addresses(&self, count: usize) -> Result<Vec<Ipv4Addr>, Error> {
        let addresses: Vec<_> = self.subnet.hosts().take(count).collect();
        if addresses.len() < count {
            return Err(Error::Spec(format!(
                "{count} nodes do not fit the subnet {}/{} that the engine chose; start fewer workers, or give the \
                 engine larger address pools (default-address-pools)",
                self.subnet.base, self.subnet.bits
            )));
        }
        Ok(addresses)
    }
}

/// Returns the request for the network. The network has no IPv6, whatever the engine's default is: faults of links and
/// their probes know only IPv4, so a client could evade a fault that is proved.
fn request(name: &str, labels: &HashMap<String, String>, ipam: Option<Ipam>) -> NetworkCreateRequest {
    NetworkCreateRequest {
        name: name.to_owned(),
        labels: Some(labels.clone()),
        ipam,
        enable_ipv6: Some(false),
        ..Default::default()
    }
}

/// Returns the subnet of the configuration, with the configuration that requests it again.
fn ipv4(config: IpamConfig) -> Option<(Subnet, IpamConfig)> {
    let text = config.subnet?;
    let (base, bits) = text.split_once('/')?;
    let gateway: Option<Ipv4Addr> = config.gateway.as_deref().and_then(|gateway| gateway.parse().ok());
    let subnet = Subnet { base: base.parse().ok()?, bits: bits.parse().ok().filter(|bits| *bits <= 32)?, gateway };
    let config =
        IpamConfig { subnet: Some(text), gateway: gateway.map(|gateway| gateway.to_string()), ..Default::default() };
    Some((subnet, config))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Subnet {
    base: Ipv4Addr,
    bits: u32,
    gateway: Option<Ipv4Addr>,
}

impl Subnet {
    /// Returns the addresses that nodes may have, in order: not the network address, not the first address (the gateway
    /// if the engine names none), not the gateway, and not the broadcast address.
    fn hosts(&self) -> impl Iterator<Item = Ipv4Addr> {
        let base = self.base.to_bits();
        let size = 1u64 << (32 - self.bits);
        let gateway = self.gateway;
        (2..size.saturating_sub(1))
            .filter_map(move |at| u32::try_from(at).ok()?.checked_add(base))
            .map(Ipv4Addr::from_bits)
            .filter(move |address| Some(*address) != gateway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_no_ipv6_whatever_the_engines_default_is() {
        for ipam in [None, Some(Ipam::default())] {
            let made = serde_json::to_value(request("run", &HashMap::new(), ipam)).unwrap();
            assert_eq!(made["EnableIPv6"], false, "{made}");
        }
    }

    #[test]
    fn nodes_get_neither_the_gateway_nor_the_ends_of_the_subnet() {
        let config = |subnet: &str, gateway: Option<&str>| IpamConfig {
            subnet: Some(subnet.to_owned()),
            gateway: gateway.map(str::to_owned),
            ..Default::default()
        };
        let hosts = |subnet, gateway| {
            let (subnet, _) = ipv4(config(subnet, gateway)).unwrap();
            subnet.hosts().map(|host| host.to_string()).take(4).collect::<Vec<_>>()
        };
        assert_eq!(
            hosts("172.18.0.0/16", Some("172.18.0.1")),
            ["172.18.0.2", "172.18.0.3", "172.18.0.4", "172.18.0.5"]
        );
        assert_eq!(hosts("10.0.0.8/29", Some("10.0.0.11")), ["10.0.0.10", "10.0.0.12", "10.0.0.13", "10.0.0.14"]);
        assert_eq!(hosts("10.0.0.8/30", None), ["10.0.0.10"]);
        assert!(hosts("10.0.0.8/31", None).is_empty());
        assert!(hosts("255.255.255.254/31", None).is_empty());
        assert_eq!(ipv4(config("fd00::/64", None)), None);
    }
}
