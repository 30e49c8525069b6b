//! `--servers`: a run against servers that the harness did not start.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::{
    redis_binary::redis_server,
    support::{Ran, harness, left_of, may_sweep, ran},
};

/// The password, which nothing may show.
const PASSWORD: &str = "hunter2-S3cret,@/";
/// The password in a URL.
const IN_URL: &str = "hunter2-S3cret%2C%40%2F";
/// The looks, 50 ms apart, within which a Redis must answer: at least a minute.
const LOOKS: u32 = 1_200;
/// The number of ports that are tried.
const TRIES: u32 = 10;

/// A Redis with TLS and a password, on an address of this machine that containers reach.
struct Redis {
    child: Child,
    dir: TempDir,
    host: String,
    port: u16,
}

impl Redis {
    fn start() -> Redis {
        let mut tries = (0..TRIES).map(|_| Redis::begin());
        tries.find_map(|mut redis| redis.wait_until_up().then_some(redis)).expect("a Redis that starts")
    }

    fn begin() -> Redis {
        let host = own_address();
        let dir = tempfile::tempdir().unwrap();
        certify(&host, dir.path());
        let port = TcpListener::bind((host.as_str(), 0)).unwrap().local_addr().unwrap().port();
        let child = redis_server()
            .expect("a Redis: scripts/setup installs one")
            .args(["--bind", &host, "--port", "0", "--tls-port", &port.to_string(), "--tls-auth-clients", "no"])
            .args(["--tls-cert-file", "server.pem", "--tls-key-file", "server.key", "--tls-ca-cert-file", "ca.pem"])
            .args(["--requirepass", PASSWORD, "--save", "", "--appendonly", "no"])
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        Redis { child, dir, host, port }
    }

    /// Returns whether the server came up. Another process may have taken the port first.
    fn wait_until_up(&mut self) -> bool {
        for _ in 0..LOOKS {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if self.asked(&["PING"]) == "PONG" {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the Redis does not answer");
    }

    fn roots(&self) -> std::path::PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Asks the server, and returns what it answers.
    fn asked(&self, words: &[&str]) -> String {
        let asking = Command::new("redis-cli")
            .args(["--tls", "--cacert"])
            .arg(self.roots())
            .args(["-h", &self.host, "-p", &self.port.to_string(), "--no-auth-warning"])
            .args(words)
            .env("REDISCLI_AUTH", PASSWORD)
            .output();
        String::from_utf8_lossy(&asking.unwrap().stdout).trim().to_owned()
    }

    fn url(&self, scheme: &str, credentials: &str) -> String {
        format!("redis-1={scheme}://{credentials}{}:{}", self.host, self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The address from which this machine sends to others. Connecting a UDP socket sends nothing.
fn own_address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").expect("a route to other machines");
    socket.local_addr().unwrap().ip().to_string()
}

/// Writes a root, and the certificate of a server at this address.
fn certify(host: &str, dir: &Path) {
    let mut root = CertificateParams::default();
    // With one name for both, a server would count as signed by itself.
    root.distinguished_name.push(DnType::CommonName, "root of a test");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &root).unwrap();
    fs::write(dir.join("ca.pem"), root.pem()).unwrap();
    fs::write(dir.join("server.pem"), server.pem()).unwrap();
    fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
}

/// All files below `dir`, each with its content.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: std::path::PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![(path.display().to_string(), fs::read(&path).unwrap())],
    };
    entries.flat_map(of).collect()
}

/// Fails if any output or any file of the runs shows the password.
#[track_caller]
fn shows_no_password(ran: &Ran, runs: &Path) {
    let outputs =
        [("stdout", &ran.stdout), ("stderr", &ran.stderr)].map(|(name, text)| (name.to_owned(), text.clone().into()));
    for (name, content) in files(runs).into_iter().chain(outputs) {
        for secret in [PASSWORD, IN_URL, "hunter2"] {
            let found = content.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{name} shows the password");
        }
    }
}

fn command(redis: &Redis, runs: &Path, args: &[&str], password: Option<&str>) -> Command {
    let mut command = harness();
    command.arg("run").args(args).arg("--runs").arg(runs).env("HARNESS_SERVERS_CA", redis.roots());
    if let Some(password) = password {
        command.env("HARNESS_SERVERS_PASSWORD", password);
    }
    command
}

fn run(redis: &Redis, runs: &Path, args: &[&str], password: Option<&str>) -> Ran {
    let _guard = may_sweep();
    let ran = Ran::from(command(redis, runs, args, password).output().unwrap());
    eprintln!("{}{}", ran.stderr, ran.stdout);
    ran
}

/// Runs a command until a history other than that of the run `before` has this text, and interrupts it.
fn interrupted(command: &mut Command, runs: &Path, before: &Path, text: &str) -> Ran {
    let _guard = may_sweep();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_come = || {
        let latest = runs.join("latest").canonicalize().unwrap();
        latest != before && fs::read_to_string(latest.join("history.jsonl")).is_ok_and(|found| found.contains(text))
    };
    // The run ends by itself if the text never comes.
    while child.try_wait().unwrap().is_none() && !has_come() {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(Command::new("kill").args(["-INT", &child.id().to_string()]).status());
    let ran = Ran::from(child.wait_with_output().unwrap());
    eprintln!("{}{}", ran.stderr, ran.stdout);
    ran
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_redis_of_ones_own_shows_the_stale_holder_and_keeps_no_key_of_the_run() {
    let (redis, runs) = (Redis::start(), tempfile::tempdir().unwrap());
    assert_eq!(redis.asked(&["SET", "lock:{k0}", "of somebody else"]), "OK");

    let servers = redis.url("rediss", &format!(":{IN_URL}@"));
    let scenario = ["--backend", "redis", "--nemesis", "pause@before-write+5s", "--workers", "2", "--time", "9s"];
    let args = [&scenario[..], &["--seed", "1", "--servers", &servers]].concat();
    let violated = run(&redis, runs.path(), &args, None).exits(1);
    assert!(violated.stdout.contains("acted") && violated.stdout.contains("cause: pause"), "{}", violated.stdout);
    shows_no_password(&violated, runs.path());
    let latest = runs.path().join("latest").canonicalize().unwrap();
    assert_eq!(left_of(&latest), Vec::<String>::new());
    assert_eq!(redis.asked(&["KEYS", "*"]), "lock:{k0}");
    assert_eq!(redis.asked(&["GET", "lock:{k0}"]), "of somebody else");

    // The plan repeats the run. Its links are cut this time, the password comes from the environment, and Ctrl-C ends
    // the run, which removes its keys all the same.
    let plan = latest.join("plan.toml");
    let cut = runs.path().join("cut.toml");
    let text = fs::read_to_string(&plan).unwrap();
    assert!(text.contains(&format!("rediss://{}:{}", redis.host, redis.port)), "{text}");
    let (before, _) = text.split_once("[[plan.schedule]]").unwrap();
    let step = "id = 1\nfault = { kind = \"partition\", for = \"2s\", from = [\"redis-1\"] }\n\
                target = { node = \"worker-1\" }\nwhen = { at = \"1s\" }\n";
    fs::write(&cut, format!("{before}[[plan.schedule]]\n{step}")).unwrap();
    let mut repeating = command(&redis, runs.path(), &[cut.to_str().unwrap()], Some(PASSWORD));
    let repeated = interrupted(&mut repeating, runs.path(), &latest, "\"phase\":\"heal-proved\"").exits(130);
    let history = fs::read_to_string(runs.path().join("latest/history.jsonl")).unwrap();
    for phase in ["proved", "heal-proved"] {
        assert!(history.contains(&format!("\"phase\":\"{phase}\"")), "{phase}: {}", repeated.stderr);
    }
    shows_no_password(&repeated, runs.path());
    assert_eq!(redis.asked(&["KEYS", "*"]), "lock:{k0}");
    assert_eq!(left_of(&runs.path().join("latest").canonicalize().unwrap()), Vec::<String>::new());
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_refused_password_ends_a_run_without_being_shown() {
    let (redis, runs) = (Redis::start(), tempfile::tempdir().unwrap());
    let servers = redis.url("rediss", "");
    let args = ["--backend", "redis", "--time", "1s", "--workers", "1", "--servers", &servers];
    let refused = run(&redis, runs.path(), &args, Some("hunter2-wrong")).exits(3);
    assert!(refused.stderr.contains("authentication failed"), "{}", refused.stderr);
    shows_no_password(&refused, runs.path());
}

#[test]
fn a_plan_takes_credentials_only_from_a_variable_that_names_its_servers() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, runs) = (dir.path().join("plan.toml"), dir.path().join("runs"));
    let k1 = fs::read_to_string("suites/kleppmann/k1.toml").unwrap();
    let urls: String = (1..=5).map(|n| format!("redis-{n} = \"redis://staging-{n}:6379\"\n")).collect();
    fs::write(&plan, format!("{k1}\n[plan.own_servers]\n{urls}")).unwrap();
    let run = |environment: &str| -> Ran {
        let servers = (1..=5).map(|n| format!("redis-{n}=redis://:hunter2@{environment}-{n}:6379"));
        let mut command = harness();
        command.arg("run").arg(&plan).arg("--runs").arg(&runs).env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        command.env("HARNESS_SERVERS", servers.collect::<Vec<_>>().join(",")).output().unwrap().into()
    };
    run("production").exits(64).says(&["HARNESS_SERVERS names other servers than the plan", "--servers env"]);
    run("staging").exits(3).says(&["no Docker engine answers"]);
}

#[test]
fn everything_that_needs_a_server_is_refused_by_name_before_a_run() {
    let own = ["run", "--backend", "redis", "--servers", "redis-1=redis://u:hunter2@staging:6379"];
    let refused = |more: &[&str], said: &[&str]| {
        let ran = ran(&[&own[..], more].concat()).exits(64).says(said);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    };
    for (nemesis, word) in [
        ("amnesia", "any-lock-node"),
        ("powerloss", "any-lock-node"),
        ("clock", "any-lock-node"),
        ("pause:redis-1", "redis-1"),
        ("pause:leader", "leader"),
        ("partition", "any-lock-node"),
        ("kill:rolling", "rolling"),
    ] {
        refused(&["--nemesis", nemesis], &[&format!("`{word}`"), "no access to their machines"]);
    }
    ran(&["run", "--backend", "etcd", "--servers", "etcd-1=staging:2379", "--resource", "etcd"]).exits(64).says(&[
        "--resource",
        "`etcd`",
        "without the run's prefix",
    ]);
    refused(&["--cluster", "sim"], &["--servers", "--cluster docker"]);
    refused(&["--persistence", "always"], &["--persistence"]);
    refused(&["--keep"], &["--keep"]);
    refused(&["--image", "redis=redis:7"], &["--image", "`redis`"]);
    refused(&["--client", "bash x"], &["--client", "which keys"]);

    let wrong = |args: &[&str], said: &[&str]| {
        let ran = ran(&[&["run", "--servers"], args].concat()).exits(64).says(said);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    };
    wrong(&["redis-1=redis://:hunter2@staging"], &["`redis-2` is missing", "redis-1, redis-2, redis-3"]);
    wrong(&["redis-9=staging:1", "--backend", "redis"], &["`redis-9` is no server"]);
    wrong(&["redis-1=redis://:hun/ter2@staging", "--backend", "redis"], &["`redis-1`", "%XX"]);
    wrong(&["redis-1=localhost:6379", "--backend", "redis"], &["the container itself"]);
    wrong(&["env", "--backend", "redis"], &["HARNESS_SERVERS is not set"]);
    wrong(&["zookeeper-1=a:1", "--backend", "zookeeper"], &["zookeeper", "only on servers that the harness starts"]);
}
