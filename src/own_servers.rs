//! `--servers`: a run against servers that exist already.
//!
//! Credentials come from the URLs of the flag or from the environment. They go to the workers by their standard input,
//! and nowhere else: the plan has the URLs without credentials, and `run.json` has the command without them.

use std::{collections::BTreeMap, net::SocketAddrV4};

use anyhow::{Context, anyhow, bail};
use compose::{OwnServer, STORE_ROLE};
use history::{NodeName, Plan};
use locks::{
    access::{Access, Identity, Schemes, Secret, ServerUrl, Tls},
    own_servers,
};

use crate::exit::usage;

/// The value of `--servers` for addresses that are in the environment.
const FROM_ENVIRONMENT: &str = "env";
/// The variable with the addresses, of the same form as `--servers`.
const SERVERS: &str = "HARNESS_SERVERS";
/// The variables with user and password of servers whose URLs have none.
const USER: &str = "HARNESS_SERVERS_USER";
const PASSWORD: &str = "HARNESS_SERVERS_PASSWORD";
/// The variables with files of the format PEM: the trusted roots, the client's certificate, and its key.
const ROOTS: &str = "HARNESS_SERVERS_CA";
const CERTIFICATE: &str = "HARNESS_SERVERS_CERT";
const KEY: &str = "HARNESS_SERVERS_KEY";

/// Servers that exist already, by name.
type Servers = BTreeMap<NodeName, ServerUrl>;

/// The servers of a run, by name: their URLs without credentials, and the access to them.
pub type Own = (BTreeMap<NodeName, String>, BTreeMap<NodeName, Access>);

/// Parses `--servers` for the backend and the facts of a plan.
///
/// # Errors
/// An address cannot be parsed, or a certificate cannot be read. No message repeats credentials.
pub fn of_flag(flag: &str, backend: &str, plan: &Plan) -> anyhow::Result<Own> {
    let text = match flag {
        FROM_ENVIRONMENT => {
            variable(SERVERS)?.ok_or_else(|| usage("servers", format!("`env`: the variable {SERVERS} is not set")))?
        }
        text => text.to_owned(),
    };
    let servers = parse(&text, backend, plan).map_err(|problem| usage("servers", problem))?;
    Ok((public(&servers), access(servers, backend)?))
}

/// Replaces the servers of a plan. The members of one store stand for each other, so some of them are enough.
pub fn use_in(plan: &mut Plan, own_servers: BTreeMap<NodeName, String>) {
    if plan.has_one_store() && own_servers.keys().all(|name| plan.lock_nodes.contains(name)) {
        plan.lock_nodes.retain(|node| own_servers.contains_key(node));
    }
    plan.own_servers = own_servers;
}

/// Finds the access to the servers that a plan names, in the environment.
///
/// # Errors
/// The variable HARNESS_SERVERS names other servers than the plan, or a certificate cannot be read.
pub fn find_access(backend: &str, plan: &Plan) -> anyhow::Result<BTreeMap<NodeName, Access>> {
    access_to_planned(variable(SERVERS)?, backend, plan)
}

/// Does as [`find_access`], with the text of the variable, if it is set.
fn access_to_planned(given: Option<String>, backend: &str, plan: &Plan) -> anyhow::Result<BTreeMap<NodeName, Access>> {
    let listed: Vec<String> = plan.own_servers.iter().map(|(name, url)| format!("{name}={url}")).collect();
    let of_plan = |problem| usage("servers", format!("the plan: {problem}"));
    let planned = parse(&listed.join(","), backend, plan).map_err(of_plan)?;
    let Some(text) = given else { return access(planned, backend) };
    let of_variable = |problem| usage("servers", format!("{SERVERS}: {problem}"));
    let given = parse(&text, backend, plan).map_err(of_variable)?;
    if public(&given) != public(&planned) {
        let problem = "names other servers than the plan; unset it, or give `--servers env` to use them";
        return Err(usage("servers", format!("the variable {SERVERS} {problem}")));
    }
    access(given, backend)
}

fn public(servers: &Servers) -> BTreeMap<NodeName, String> {
    servers.iter().map(|(name, url)| (name.clone(), url.public.clone())).collect()
}

/// The form of the addresses for the backend of the plan.
fn schemes(backend: &str) -> Result<Schemes, String> {
    if backend.starts_with("buggy:") {
        return Err("servers of your own get a correct client only, and this one has a planted bug".into());
    }
    own_servers::schemes(backend).ok_or_else(|| {
        let possible = own_servers::clients().collect::<Vec<_>>().join(", ");
        format!("backend {backend} runs only on servers that the harness starts; possible are: {possible}")
    })
}

/// Parses `NAME=ADDRESS,…`. A message names an address by its name or its place in the list.
fn parse(text: &str, backend: &str, plan: &Plan) -> Result<Servers, String> {
    let schemes = schemes(backend)?;
    let mut servers = Servers::new();
    for (number, entry) in text.split(',').enumerate() {
        let Some((name, address)) = entry.split_once('=').filter(|(name, _)| is_name(name.trim())) else {
            let form = "expected NAME=HOST:PORT or NAME=URL (in a password, `,` is %2C)";
            return Err(format!("entry {}: {form}", number + 1));
        };
        let name = name.trim();
        let url = ServerUrl::parse(address.trim(), &schemes, plan.servers.port)
            .map_err(|problem| format!("`{name}`: {problem}"))?;
        refuse_loopback(name, &url.host)?;
        refuse_node(name, &url.host)?;
        if servers.insert(name.into(), url).is_some() {
            return Err(format!("`{name}` is listed twice"));
        }
    }
    Ok(servers)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Refuses an address that is another machine's in each container.
fn refuse_loopback(name: &str, host: &str) -> Result<(), String> {
    let is_local = match host.parse::<std::net::Ipv4Addr>() {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    };
    if !is_local {
        return Ok(());
    }
    // Connecting a UDP socket sends nothing: the kernel only chooses the address from which it would send.
    let outwards = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let instead = outwards.map_or_else(|_| "one that `ip -4 address` shows".to_owned(), |at| at.ip().to_string());
    Err(format!(
        "`{name}`: inside a worker's container, {host} is the container itself; use an address of the server's machine \
         that other machines reach (of this machine: {instead}), and let the server listen on it"
    ))
}

/// Refuses the name of a node that a process of the run looks up. Each container has the names of the servers in its
/// host file, which comes before the name server of the run's network.
fn refuse_node(name: &str, host: &str) -> Result<(), String> {
    if !["resource", STORE_ROLE].contains(&host) {
        return Ok(());
    }
    Err(format!(
        "`{name}`: {host} is a node of the run itself; write the server's full name, such as {host}.example, or its \
         IPv4 address"
    ))
}

/// Completes the access of each server from the environment.
fn access(servers: Servers, backend: &str) -> anyhow::Result<BTreeMap<NodeName, Access>> {
    let (user, password) = (variable(USER)?.map(Secret::new), variable(PASSWORD)?.map(Secret::new));
    let files = Tls { roots: pem(ROOTS)?, identity: identity()? };
    let needs_user = schemes(backend).is_ok_and(|schemes| schemes.needs_user);
    if files != Tls::default() && !servers.values().any(|url| url.access.tls.is_some()) {
        let problem = "name certificates, but no URL asks for TLS (rediss://, https://, sslmode=verify-full)";
        return Err(usage("servers", format!("the variables {ROOTS}, {CERTIFICATE}, {KEY} {problem}")));
    }
    files.check().map_err(|problem| usage("servers", format!("{ROOTS}, {CERTIFICATE}, {KEY}: {problem}")))?;
    let common = Access { user, password, tls: Some(files), ..Access::default() };
    let complete = |(name, url): (NodeName, ServerUrl)| {
        let access = completed(url.access, &common);
        if needs_user && access.password.is_some() && access.user.is_none() {
            return Err(usage("servers", format!("`{name}`: there is a password without a user; set {USER}")));
        }
        Ok((name, access))
    };
    servers.into_iter().map(complete).collect()
}

/// Returns the access of a URL, completed by the access that all servers have in common. A URL that does not ask for
/// TLS gets no certificates.
fn completed(own: Access, common: &Access) -> Access {
    Access {
        user: own.user.or_else(|| common.user.clone()),
        password: own.password.or_else(|| common.password.clone()),
        tls: own.tls.and_then(|_| common.tls.clone()),
        ..own
    }
}

fn identity() -> anyhow::Result<Option<Identity>> {
    match (pem(CERTIFICATE)?, pem(KEY)?) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => Ok(Some(Identity { certificates, key: Secret::new(key) })),
        _ => Err(usage("servers", format!("set both {CERTIFICATE} and {KEY}, or neither"))),
    }
}

/// Reads the file that a variable names.
fn pem(name: &str) -> anyhow::Result<Option<String>> {
    let Some(path) = variable(name)? else { return Ok(None) };
    Ok(Some(content(name, &path).map_err(|problem| usage("servers", problem))?))
}

/// Reads a file of the format PEM. A message repeats no path that is the text of a key.
fn content(name: &str, path: &str) -> Result<String, String> {
    if path.contains("-----BEGIN") || path.contains('\n') {
        return Err(format!("{name}: expected the path of a file, and found a text such as that of the file"));
    }
    std::fs::read_to_string(path).map_err(|error| format!("{name}: reading the file {path}: {error}"))
}

fn variable(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        // The error of the library would repeat the text.
        Err(std::env::VarError::NotUnicode(_)) => bail!("the variable {name} is no UTF-8"),
    }
}

/// Returns the words of a command without the credentials in the value of `--servers`.
pub fn without_credentials(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut is_value = false;
    let hide = |word: String| {
        if std::mem::replace(&mut is_value, word == "--servers") {
            return hidden(&word);
        }
        word.strip_prefix("--servers=").map(|value| format!("--servers={}", hidden(value))).unwrap_or(word)
    };
    words.map(hide).collect()
}

/// Each address without all that comes before its last `@`.
fn hidden(list: &str) -> String {
    let public = |entry: &str| {
        let Some((before, address)) = entry.rsplit_once('@') else { return entry.to_owned() };
        let name_and_scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
        format!("{name_and_scheme}://{address}")
    };
    list.split(',').map(public).collect::<Vec<_>>().join(",")
}

/// The text before each key of a run; empty, if the run starts its servers.
pub fn namespace(run: &str, plan: &Plan) -> String {
    if plan.has_own_servers() { format!("harness-{run}:") } else { String::new() }
}

/// The addresses of the lock nodes, as a worker connects to them.
pub fn addresses(plan: &Plan) -> Vec<(NodeName, String)> {
    let address = |node: &NodeName| match plan.own_servers.get(node) {
        Some(url) => host_and_port(url).to_owned(),
        None => format!("{node}:{}", plan.servers.port),
    };
    plan.lock_nodes.iter().map(|node| (node.clone(), address(node))).collect()
}

/// `HOST:PORT` of a URL without credentials.
fn host_and_port(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}

/// The access to the lock nodes, with the schema for a namespace in databases.
pub fn with_schema(access: &BTreeMap<NodeName, Access>, backend: &str, namespace: &str) -> BTreeMap<NodeName, Access> {
    let schema = own_servers::schema(backend, namespace);
    let with_schema = |(name, access): (&NodeName, &Access)| {
        let access = Access { schema: schema.clone(), ..access.clone() };
        (name.clone(), access)
    };
    access.iter().map(with_schema).collect()
}

/// Resolves the names of the servers, once for the whole run.
///
/// # Errors
/// This machine finds no IPv4 address for a name, or a fault of links would hit a server that the plan spares.
pub async fn resolve(plan: &Plan) -> anyhow::Result<BTreeMap<NodeName, OwnServer>> {
    let mut servers = BTreeMap::new();
    for (name, url) in &plan.own_servers {
        let address = host_and_port(url);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let failed = || format!("--servers: `{name}`: finding the address of {host}");
        let mut found = tokio::net::lookup_host(address).await.with_context(failed)?;
        let at = found.find_map(|at| match at {
            std::net::SocketAddr::V4(at) => Some(at),
            std::net::SocketAddr::V6(_) => None,
        });
        let at: SocketAddrV4 = at.ok_or_else(|| anyhow!("{}: it has no IPv4 address", failed()))?;
        refuse_loopback(name.as_str(), &at.ip().to_string()).map_err(|problem| usage("servers", problem))?;
        servers.insert(name.clone(), OwnServer { host: host.to_owned(), at });
    }
    let addresses: BTreeMap<_, _> = servers.iter().map(|(name, server)| (name.clone(), *server.at.ip())).collect();
    plan.check_addresses(&addresses).map_err(|e| usage(e.field, e.problem))?;
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use history::{Direction, Fault, FaultId, Step, Target, When, fault};

    use super::*;
    use crate::{plan_file::PlanFile, scenario::Scenario};

    fn plan(backend: &str) -> Plan {
        Scenario::of(backend).unwrap().base
    }

    fn parsed(backend: &str, text: &str) -> Result<BTreeMap<NodeName, String>, String> {
        parse(text, backend, &plan(backend)).map(|servers| public(&servers))
    }

    #[test]
    fn a_list_is_parsed_by_the_schemes_of_the_backend() {
        let servers = parsed("redis", "redis-1=rediss://:hunter2@staging:7000").unwrap();
        assert_eq!(servers[&NodeName::new("redis-1")], "rediss://staging:7000");
        let servers = parsed("etcd", "etcd-1=10.0.0.1:2379, etcd-2=https://b").unwrap();
        assert_eq!(servers[&NodeName::new("etcd-2")], "https://b:2379");
        for (backend, text, said) in [
            ("redis", "redis-1=https://:hunter2@staging:7000", "none of redis://, rediss://"),
            ("redis", "rediss://:hunter2@staging:7000", "entry 1: expected NAME="),
            ("redis", "redis-1=redis://:a,hunter2@staging:7000", "%2C"),
            ("redis", "redis-1=a:1,redis-1=b:1", "`redis-1` is listed twice"),
            ("redis", "redis-1=localhost:6379", "the container itself"),
            ("redis", "redis-1=127.0.0.1:6379", "the container itself"),
            ("redis", "redis-1=resource:6379", "a node of the run itself"),
            ("redis", "redis-1=rediss://:hunter2@Resource-Store", "a node of the run itself"),
            ("zookeeper", "zookeeper-1=a:2181", "runs only on servers that the harness starts"),
            ("buggy:forgets-nx", "redis-1=a:1", "planted bug"),
        ] {
            let refused = parsed(backend, text).unwrap_err();
            assert!(refused.contains(said) && !refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn a_recorded_command_has_no_credentials() {
        let words = ["harness", "run", "--servers", "a=rediss://u:hunter2@h:1,b=h:2", "--seed", "1"];
        let hidden = without_credentials(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(hidden.join(" "), "harness run --servers a=rediss://h:1,b=h:2 --seed 1");
        let one = without_credentials(["--servers=a=redis://:hun@ter2@h:1".to_owned()].into_iter());
        assert_eq!(one, ["--servers=a=redis://h:1"]);
    }

    #[test]
    fn a_key_in_the_place_of_its_file_is_not_repeated() {
        for text in ["-----BEGIN PRIVATE KEY-----\\nhunter2", "hunter2\nhunter2"] {
            let refused = content(KEY, text).unwrap_err();
            assert!(refused.contains("expected the path of a file") && !refused.contains("hunter2"), "{refused}");
        }
        let refused = content(KEY, "/no/such/file").unwrap_err();
        assert!(refused.starts_with("HARNESS_SERVERS_KEY: reading the file /no/such/file: "), "{refused}");
    }

    #[test]
    fn some_members_of_a_store_are_enough_and_independent_servers_must_be_complete() {
        let used = |backend: &str, text: &str| {
            let mut plan = plan(backend);
            plan.cluster = history::ClusterKind::Docker;
            let (servers, _) = of_flag(text, backend, &plan).unwrap();
            use_in(&mut plan, servers);
            plan.validate().map(|()| plan.lock_nodes).map_err(|error| error.to_string())
        };
        assert_eq!(used("etcd", "etcd-2=a:1"), Ok(vec!["etcd-2".into()]));
        assert!(used("etcd", "etcd-2=a:1,etcd-7=b:1").unwrap_err().contains("one or more of: etcd-1, etcd-2, etcd-3"));
        assert!(used("redlock", "redis-1=a:1").unwrap_err().contains("`redis-2` is missing"));
    }

    #[tokio::test]
    async fn a_fault_of_links_hits_all_servers_of_a_resolved_address_or_none() {
        let resolved = |from: &[&str]| {
            let (second, from) = (Duration::from_secs(1), from.iter().map(|name| (*name).into()).collect());
            let fault = Fault::new(fault::Partition::default(), second).on_links(Direction::Both, from);
            let step = Step { id: FaultId(1), fault, target: Target::Node("worker-1".into()), when: When::At(second) };
            // Two notations of one address, which need no name server.
            let servers = [("redis-1", "redis://10.0.0.1:6379"), ("redis-2", "redis://10.1:6380")];
            let own_servers = servers.map(|(name, url)| (name.into(), url.to_owned())).into();
            let plan = Plan { schedule: vec![step], own_servers, ..plan("redlock") };
            async move { resolve(&plan).await.map(|servers| servers.len()).map_err(|error| error.to_string()) }
        };
        assert_eq!(resolved(&["redis-1", "redis-2"]).await, Ok(2));
        let refused = resolved(&["redis-1"]).await.unwrap_err();
        assert!(refused.contains("`redis-1` and `redis-2` have one address"), "{refused}");
    }

    #[tokio::test]
    async fn a_name_of_this_machine_is_refused_when_its_address_is_known() {
        // Another notation of 127.0.0.1, which needs no name server.
        let own_servers = BTreeMap::from([(NodeName::new("redis-1"), "redis://127.1:6379".to_owned())]);
        let plan = Plan { own_servers, ..plan("redis") };
        let refused = resolve(&plan).await.map(|servers| servers.len()).unwrap_err().to_string();
        assert!(refused.contains("`redis-1`") && refused.contains("the container itself"), "{refused}");
    }

    #[test]
    fn the_servers_of_a_plan_get_the_credentials_of_a_variable_that_names_them() {
        let own_servers = BTreeMap::from([(NodeName::new("redis-1"), "rediss://staging:7000".to_owned())]);
        let plan = Plan { own_servers, ..plan("redis") };
        let found = |given: Option<&str>| {
            let found = access_to_planned(given.map(str::to_owned), "redis", &plan);
            found.map_err(|error| error.to_string()).map(|mut access| access.remove(&NodeName::new("redis-1")).unwrap())
        };
        let secret = |text: &str| Some(Secret::new(text.to_owned()));
        let given = found(Some("redis-1=rediss://alice:hunter2@staging:7000")).unwrap();
        assert!(given.user == secret("alice") && given.password == secret("hunter2") && given.tls.is_some());
        let of_plan = found(None).unwrap();
        assert!(of_plan.password != secret("hunter2") && of_plan.tls.is_some());
        for (text, said) in [
            ("redis-1=rediss://alice:hunter2@production:7000", "names other servers than the plan"),
            ("redis-1=rediss://alice:hunter2@staging:7001", "names other servers than the plan"),
            ("redis-1=redis://alice:hunter2@staging:7000", "names other servers than the plan"),
            ("redis-2=rediss://alice:hunter2@staging:7000", "names other servers than the plan"),
            ("rediss://alice:hunter2@staging:7000", "HARNESS_SERVERS: entry 1: expected NAME="),
        ] {
            let refused = found(Some(text)).unwrap_err();
            assert!(refused.contains(said) && !refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn certificates_are_only_for_urls_that_ask_for_tls() {
        let secret = |text: &str| Some(Secret::new(text.to_owned()));
        let tls = Tls { roots: Some("roots".to_owned()), identity: None };
        let common = Access { user: secret("a"), password: secret("b"), tls: Some(tls), ..Access::default() };
        let plain = completed(Access { user: secret("c"), ..Access::default() }, &common);
        assert!(plain == Access { user: secret("c"), password: secret("b"), ..Access::default() });
        let secure = completed(Access { tls: Some(Tls::default()), ..Access::default() }, &common);
        assert!(secure == common);
    }

    #[test]
    fn every_key_of_a_run_on_own_servers_has_its_namespace() {
        let plan = plan("postgres");
        assert_eq!(namespace("r-1", &plan), "");
        let (own_servers, access) = of_flag("postgres-1=postgres://u:hunter2@pg/app", "postgres", &plan).unwrap();
        let plan = Plan { own_servers, ..plan };
        assert_eq!(namespace("r-1", &plan), "harness-r-1:");
        assert_eq!(addresses(&plan), [("postgres-1".into(), "pg:5432".to_owned())]);
        let access = with_schema(&access, "postgres", "harness-r-1:");
        assert_eq!(access[&NodeName::new("postgres-1")].schema.as_deref(), Some("harness-r-1"));
        let scenario = Scenario::of("postgres").unwrap();
        let file = PlanFile { access, ..scenario.file(String::new(), plan) };
        assert!(!file.to_toml().unwrap().contains("hunter2") && !format!("{file:?}").contains("hunter2"));
    }
}
