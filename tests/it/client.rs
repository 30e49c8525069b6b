//! Client programs: refused by name where they cannot run, checked by `harness client check`, judged on real servers.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::support::{harness, ran, run, signalled};

const BASH: &str = "bash tests/shared/redis_lock.bash";
const WITHOUT_NX: &str = "bash tests/shared/redis_lock.bash --without-nx";

#[test]
fn a_client_program_that_cannot_be_used_is_refused_by_name() {
    let table: &[(&[&str], &[&str])] = &[
        (&["run", "--cluster", "sim", "--client", BASH], &["--client", BASH, "simulation cannot run a program"]),
        (&["explore", "--client", BASH], &["--client", "simulation cannot run a program"]),
        (&["run", "--client", "cheking"], &["--client", "`cheking`", "similar words: checking"]),
        (&["run", "--cluster", "docker", "--client", ""], &["--client", "empty"]),
        (&["run", "--cluster", "docker", "--client", "bash 'a"], &["--client", "a quote is not closed"]),
        (&["run", "--cluster", "docker", "--client", "./none"], &["--client", "`none`", "No such file"]),
        (&["run", "--cluster", "docker", "--client", "./README.md"], &["`README.md` is not executable"]),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--client-file", "../x"],
            &["--client-file", "`../x`", "below the current directory"],
        ),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--client-file", "src"],
            &["--client-file", "`src` is a directory"],
        ),
        (&["run", "--cluster", "docker", "--client-packages", "python3"], &["--client-packages", "no client program"]),
        (&["run", "--client", BASH, "--client-packages", "Foo"], &["--client-packages", "Debian packages"]),
        (&["run", "--client", BASH, "--client-packages=--purge"], &["--client-packages", "Debian packages"]),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--client-packages", "jq", "--image", "worker=b"],
            &["--client-packages", "--image worker=NAME"],
        ),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--client-image", "a", "--image", "worker=b"],
            &["--client-image", "--image worker=NAME"],
        ),
        (&["run", "--cluster", "docker", "--client", BASH, "--nemesis", "stop"], &["--nemesis", "SIGSTOP", "`pause`"]),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--nemesis", "stop:worker-1@2s"],
            &["--nemesis", "SIGSTOP", "`pause`"],
        ),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--tokens", "two-phase"],
            &["--tokens", "redis_lock.bash on redlock", "none, own"],
        ),
        (
            &["run", "--cluster", "docker", "--client", BASH, "--backend", "buggy:forgets-nx"],
            &["--client", "--backend redis"],
        ),
        (&["client", "check", "./none", "--server", "redis-1=localhost:1"], &["cannot start", "./none"]),
        (&["client", "check", BASH, "--server", "localhost"], &["--server", "NAME=HOST:PORT"]),
        (&["client", "check", BASH], &["--server"]),
        (&["client", "check", "checkin", "--server", "a=b:1"], &["similar words: checking"]),
    ];
    for (args, words) in table {
        ran(args).exits(64).says(words);
    }
}

#[test]
fn the_command_of_a_row_is_quoted_as_in_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let suite = dir.path().join("s.toml");
    let row = |flags: &str| {
        let row = format!(
            "id = \"a\"\nclaim = \"c\"\nby = \"b\"\nwitness = []\nclusters = [\"docker\"]\nrun = '''{flags}'''"
        );
        fs::write(&suite, format!("schema = 1\n[[row]]\n{row}\n")).unwrap();
        ran(&["suite", suite.to_str().unwrap(), "--cluster", "docker"]).exits(64)
    };
    row(&format!("--backend redis --client '{BASH}' --nemesis stop")).says(&["row a", "SIGSTOP"]);
    row("--client 'bash").says(&["row a", "a quote is not closed"]);
}

/// A server for the scripts of `tests/shared/redis_lock.bash`. Returns its port.
fn tiny_redis() -> u16 {
    type Keys = Arc<Mutex<HashMap<String, (String, Instant)>>>;
    let (listener, keys, counter) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), Keys::default(), Arc::new(Mutex::new(0)));
    let port = listener.local_addr().unwrap().port();
    let serve = move |stream: TcpStream, keys: Keys, counter: Arc<Mutex<u64>>| {
        let mut requests = BufReader::new(stream.try_clone().unwrap());
        let mut answers = stream;
        while let Some(words) = command(&mut requests) {
            let [_, script, _, key, owner, lease] = words.as_slice() else { panic!("{words:?}") };
            let lease = Duration::from_millis(lease.parse().unwrap_or_default());
            let mut keys = keys.lock().unwrap();
            keys.retain(|_, (_, until)| Instant::now() < *until);
            let is_owner = keys.get(key).is_some_and(|(held_by, _)| held_by == owner);
            let is_free = !keys.contains_key(key) || !script.contains("'nx'");
            let value = if script.contains("'set'") && is_free {
                keys.insert(key.clone(), (owner.clone(), Instant::now() + lease));
                let mut counter = counter.lock().unwrap();
                *counter += 1;
                *counter
            } else if script.contains("'pexpire'") && is_owner {
                keys.insert(key.clone(), (owner.clone(), Instant::now() + lease));
                1
            } else if script.contains("'del'") && is_owner {
                keys.remove(key);
                1
            } else {
                0
            };
            if write!(answers, ":{value}\r\n").is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (keys, counter) = (keys.clone(), counter.clone());
            std::thread::spawn(move || serve(stream, keys, counter));
        }
    });
    port
}

/// Reads one command in the protocol of Redis.
fn command(requests: &mut impl BufRead) -> Option<Vec<String>> {
    let mut number = |sign: char| {
        let mut line = String::new();
        requests.read_line(&mut line).ok()?;
        let number = line.trim_end().strip_prefix(sign)?.parse::<usize>().ok()?;
        if sign == '*' {
            return Some((number, String::new()));
        }
        let mut word = vec![0; number + 2];
        requests.read_exact(&mut word).ok()?;
        word.truncate(number);
        Some((number, String::from_utf8(word).ok()?))
    };
    let (words, _) = number('*')?;
    (0..words).map(|_| Some(number('$')?.1)).collect()
}

/// The program of [`BASH`] waits for a quarter of the lease for an answer of its server: 500 ms.
fn checked(program: &str) -> crate::support::Ran {
    let server = format!("redis-1=127.0.0.1:{}", tiny_redis());
    ran(&["client", "check", program, "--server", &server, "--lease", "2s"])
}

#[test]
fn a_correct_program_passes_every_check() {
    let passed = checked(BASH);
    assert!(passed.stdout.contains("all 12 checks passed"), "{}{}", passed.stdout, passed.stderr);
    for claim in ["ok      held: ", "ok      expiry: the lock of a silent holder", "tokens grow", "ok      timeout: "] {
        assert!(passed.stdout.contains(claim), "`{claim}` is missing in:\n{}", passed.stdout);
    }
    passed.exits(0);
}

#[test]
fn the_template_for_rust_passes_every_check() {
    // `cargo test` builds the examples, unless it is asked for single targets.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_harness")).with_file_name("examples/redis_lock");
    assert!(program.exists(), "build it first: cargo build --example redis_lock");
    let passed = checked(program.to_str().unwrap());
    assert!(passed.stdout.contains("all 12 checks passed"), "{}{}", passed.stdout, passed.stderr);
    passed.exits(0);
}

#[test]
fn a_broken_program_fails_at_the_line_that_is_wrong() {
    let failed = checked(WITHOUT_NX).exits(1).stdout;
    let held = failed.lines().find(|line| line.starts_with("FAILED  held: ")).unwrap_or_else(|| panic!("{failed}"));
    assert!(
        held.contains("two clients would hold the lock; line ") && held.contains(r#""ok":true,"token":"#),
        "{held}"
    );
    for (program, words) in [
        ("bash -c 'echo Connecting; read -r line'", "line 1 of the program's standard output is no answer"),
        ("bash -c 'echo Connecting; read -r line'", "the line: Connecting"),
        ("bash -c 'exit 4'", "exit status: 4"),
        (r#"bash -c 'read -r line; echo "{\"id\":1,\"ok\":true,\"tokn\":1}"'"#, "unknown field `tokn`"),
    ] {
        let failed = checked(program).exits(1).stdout;
        assert!(failed.starts_with("FAILED  init: ") && failed.contains(words), "{program}: {failed}");
    }
}

/// The program of [`BASH`] with other answers: `sed` replaces `from` by `to`.
fn answering(from: &str, to: &str) -> String {
    format!(r#"bash -c '{BASH} | sed -u "s/{from}/{to}/"'"#)
}

/// Asserts that one check fails, and all others pass.
#[track_caller]
fn fails_one_check(program: &str, words: &str) {
    let failed = checked(program).exits(1).stdout;
    assert!(failed.contains(words) && failed.contains("1 of 12 checks failed"), "{program}: `{words}`\n{failed}");
}

#[test]
fn a_validity_is_judged_by_the_lease_of_its_answer() {
    let program = answering("true,", r#"true,\"valid_ms\":1970,\"lease_ms\":1000,"#);
    fails_one_check(&program, "FAILED  acquire: expected `valid_ms` of at most 988: the lease of 1000 ms");
}

#[test]
fn the_validity_of_a_renewal_is_judged_too() {
    let program = answering("true}", r#"true,\"valid_ms\":1990}"#);
    fails_one_check(&program, "FAILED  renew: expected `valid_ms` of at most 1978: the lease of 2000 ms");
}

/// The program of [`BASH`] on servers that grant this lease, whatever the program asks for.
fn granted(lease_ms: u64, valid_ms: u64) -> String {
    let asks = format!(r#"sed -u "s/lease_ms\":[0-9]*/lease_ms\":{lease_ms}/""#);
    let facts = format!(r#"\"valid_ms\":{valid_ms},\"lease_ms\":{lease_ms}"#);
    format!(r#"bash -c '{asks} | {BASH} | sed -u "s/true\([,}}]\)/true,{facts}\1/"'"#)
}

#[test]
fn a_lease_that_the_servers_made_longer_is_no_session() {
    let passed = checked(&granted(4000, 3900)).exits(0).stdout;
    let expiry = "ok      expiry: the lock of a silent holder is free after its lease";
    // 1 s after a lease of 2 s, a lease of 4 s is not over.
    let late = "ok      late release: a release after the lease has ended does nothing";
    let is_lease = passed.contains(expiry) && passed.contains(late);
    assert!(is_lease && passed.contains("all 12 checks passed"), "{passed}");
}

#[test]
fn a_program_whose_servers_grant_a_shorter_lease_passes() {
    let passed = checked(&granted(1000, 900)).exits(0).stdout;
    assert!(passed.contains("ok      renew: a renewed lock") && passed.contains("all 12 checks passed"), "{passed}");
}

#[test]
fn a_program_that_forgets_one_of_its_two_locks_fails() {
    let words = "FAILED  release: expected `\"ok\":true` of `release` by the holder";
    fails_one_check(&format!("{BASH} --forgets"), words);
}

#[test]
fn a_program_that_goes_on_without_its_output_fails() {
    let words = "FAILED  end of input: expected the program to end within 10s";
    fails_one_check(&format!("bash -c '{BASH}; exec >&-; sleep 60'"), words);
}

#[test]
fn a_signal_ends_the_checks_and_all_processes_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("pid");
    let program = format!("bash -c 'sleep 60 & echo $! > {}; wait'", started.display());
    let mut checks = harness();
    checks.args(["client", "check", &program, "--server", "redis-1=127.0.0.1:1"]);
    let mut checks = checks.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = loop {
        let text = fs::read_to_string(&started).unwrap_or_default();
        if let Some(pid) = text.strip_suffix('\n') {
            break pid.to_owned();
        }
        assert_eq!(checks.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(signalled(&mut checks, Signal::SIGTERM), Some(130));
    // Nobody may be there to wait for a process that has ended.
    let stat = format!("/proc/{pid}/stat");
    let has_ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    for _ in 0..500 {
        if has_ended() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("process {pid} of the program goes on");
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_program_that_is_paused_before_its_write_is_a_stale_holder_on_real_servers() {
    let expect = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,tokens=upheld,release=n/a,\
        writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";
    let args = ["--backend", "redis", "--client", BASH, "--tokens", "own", "--nemesis", "pause@before-write+5s"];
    let run = run(&[&args[..], &["--workers", "2", "--expect", expect]].concat()).exits(0);
    let heading = run.ran.stdout.lines().next().unwrap();
    assert!(heading.contains("bash tests/shared/redis_lock.bash on redis, tokens own"), "{heading}");
    assert!(run.latest().join("client/tests/shared/redis_lock.bash").exists(), "the run keeps its program");
    // The plan runs again from the kept files, wherever the harness is started.
    let plan = run.latest().join("plan.toml");
    crate::support::run(&[plan.to_str().unwrap(), "--expect", "lock=violated"]).exits(0);
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a Docker engine"]
    fn the_python_client_runs_in_an_image_of_its_packages() {
        let expect =
            "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,off.data.stale_accepted>=1";
        let args = ["--backend", "redis", "--client", "python3 clients/redis_lock.py"];
        let packages = ["--client-packages", "python3,python3-redis", "--nemesis", "pause@before-write+5s"];
        run(&[&args[..], &packages, &["--workers", "2", "--expect", expect]].concat()).exits(0);
    }

    #[test]
    #[ignore = "needs a Docker engine"]
    fn a_program_that_forgets_nx_gives_two_holders_that_nothing_explains() {
        // Nobody is refused, so the property `activity` cannot be upheld.
        let expect = "lock=violated,lock.lease_overlap>=1,lock.unexplained>=1,activity=inconclusive";
        let args = ["--backend", "redis", "--client", WITHOUT_NX, "--rate", "20", "--time", "8s"];
        run(&[&args[..], &["--expect", expect]].concat()).exits(0);
    }
}
