//! Bad input: each mistake has its own message and the exit code that the README promises.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
};

use crate::support::{harness, ran};

#[test]
fn wrong_flags_are_usage_errors_and_name_what_is_wrong() {
    let table: &[(&[&str], &[&str])] = &[
        (&["run", "--backend", "redlok"], &["--backend", "`redlok` is no backend", "redis, redis-replicated"]),
        (&["run", "--backend", "buggy:nothing"], &["`nothing` is no planted bug", "forgets-nx"]),
        (&["run", "--nemesis", "puase"], &["--nemesis", "`puase`", "unknown fault", "pause, stop, slow, kill"]),
        (&["run", "--nemesis", "pause@before-wrte"], &["`before-wrte`", "before-write"]),
        (&["run", "--nemesis", "pause:worker-9"], &["`worker-9`", "worker-1 to worker-5"]),
        (&["run", "--lease", "2"], &["--lease", "duration such as `2s`"]),
        (&["run", "--lease", "1ms"], &["--lease", "outside 50ms"]),
        (&["run", "--lease", "0s"], &["--lease", "0s is outside 50ms"]),
        (&["run", "--work", "2s..1s"], &["--work", "upside down"]),
        (&["run", "--workers", "0"], &["--workers", "outside 1 to 64"]),
        (&["run", "--rate", "0"], &["--rate", "expected more than 0"]),
        (&["run", "--renew", "3s"], &["--renew", "the lease"]),
        (&["run", "--backend", "redis", "--session"], &["--session", "lacks the capability `sessions`", "etcd, zoo"]),
        (&["run", "--reenter", "1", "--client", "true"], &["--reenter", "true on redlock", "`reentrant`"]),
        (&["run", "--locks-per-section", "2"], &["--locks-per-section", "add `--keys`"]),
        (&["run", "--opposite"], &["--opposite", "--locks-per-section 2 --keys 2"]),
        (&["run", "--arms", "off,wriets"], &["--arms", "`wriets`", "off, writes, reads, cas"]),
        (&["run", "--arms", "reads", "--fence", "strict"], &["--fence", "reads"]),
        (&["run", "--tokens", "none", "--arms", "writes"], &["--arms", "tokens"]),
        (&["run", "--backend", "redis", "--tokens", "two-phase"], &["--tokens", "counter, none"]),
        (&["run", "--image", "redis"], &["--image", "ROLE=NAME"]),
        (
            &["run", "--cluster", "docker", "--image", "postgres=postgres:15"],
            &["--image", "`postgres` is no role", "redis, worker"],
        ),
        (
            &["run", "--cluster", "docker", "--image", "redis=a:1", "--image", "redis=b:2"],
            &["--image", "`redis` has two images, a:1 and b:2"],
        ),
        (
            &["client", "check", "true", "--server", "redis-1=a:1", "--server", "redis-1=b:2"],
            &["--server", "`redis-1` is given twice"],
        ),
        (&["run", "--expect", "lock"], &["--expect", "PROPERTY=VERDICT"]),
        (&["run", "--expect", "lock=borken"], &["--expect", "`borken`", "violated"]),
        (&["run", "--cluster", "sim", "--expect", "lokc=violated"], &["--expect", "`lokc`", "similar words: lock"]),
        (&["run", "--cluster", "sim", "--expect", "cas.data=upheld"], &["--expect", "`cas.data`", "this plan"]),
        (&["run", "--expect", "lock=violated,lock=upheld"], &["--expect", "exclude each other"]),
        (&["run", "--expect", "lock.windows>=3,lock.windows<=2"], &["--expect", "exclude each other"]),
        (&["selftest", "--short", "--only", "redlokc"], &["--only", "`redlokc`", "redlock"]),
        (&["selftest", "--short", "--table", "locks", "--only", "forgets-nx"], &["--only", "`forgets-nx`"]),
        (&["selftest", "--short", "--seeds", "0"], &["--seeds", "at least one"]),
        (&["selftest", "--short", "--seed", "18446744073709551615"], &["--seed: 200 seeds from", "pass 2^53"]),
        (&["selftest", "--short", "--table", "swarm", "--searches", "0"], &["--searches", "at least one"]),
        (&["selftest", "--short", "--table", "swarm", "--seeds", "5"], &["--seeds", "no effect"]),
        (&["selftest", "--short", "--table", "locks", "--schedules", "5"], &["--schedules", "no effect"]),
        (&["selftest", "--short", "--table", "planted", "--seed", "5"], &["--seed", "no effect"]),
        (&["run", "--nemesis", "pause:worker-1@5s+60s", "--time", "10s"], &["--nemesis", "60s", "longer"]),
        (&["run", "--nemesis", "pause+1s,pause:worker-1@5s+60s", "--time", "10s"], &["--nemesis", "60s", "longer"]),
        (&["run", "suites/kleppmann/k1.toml", "--seed", "3"], &["--seed", "cannot be used with", "a copy of the plan"]),
        (&["run", "suites/kleppmann.toml"], &["this is a suite", "harness suite suites/kleppmann.toml"]),
        (
            &["suite", "--cluster", "sim", "suites/kleppmann/k1.toml"],
            &["this is a plan", "harness run suites/kleppmann/k1.toml"],
        ),
        (&["explore", "--backend", "zookeeper"], &["--backend", "no model of the servers of `zookeeper`"]),
        (&["run", "--cluster", "sim", "--expect", "loc=violated"], &["similar words: lock;"]),
        (&["run", "suites/kleppmann/k1.toml", "--lease-clock", "both"], &["--lease-clock", "cannot be used with"]),
        (&["run", "--renew-for", "3s"], &["--renew"]),
        (&["run", "--cluster", "sim", "--backend", "etcd", "--persistence", "always"], &["--persistence", "not Redis"]),
        (&["run", "--cluster", "sim", "--backend", "redis", "--lease-clock", "both"], &["--lease-clock", "no effect"]),
        (&["run", "--cluster", "sim", "--revokes-on-resume"], &["--revokes-on-resume", "no effect"]),
        (&["run", "--cluster", "sim", "--backend", "etcd", "--lock-checks-key"], &["--lock-checks-key", "no effect"]),
        (&["run", "--fence", "strict", "--arms", "off,cas"], &["--fence", "no arm compares tokens"]),
        (&["run", "--resource", "postgers"], &["--resource", "`postgers` is no resource", "service, postgres, etcd"]),
        (
            &["run", "--cluster", "docker", "--backend", "redis", "--resource", "etcd"],
            &["--resource", "`redis`", "--backend etcd"],
        ),
        (
            &["run", "--cluster", "docker", "--backend", "etcd", "--resource", "etcd", "--nemesis", "kill:resource@2s"],
            &["--nemesis", "kill of `resource`", "another --resource"],
        ),
        (&["run", "--cluster", "sim", "--arms", "off,guard"], &["--arms", "`guard`", "--resource etcd"]),
        (&["run", "--resource", "buggy:nothing"], &["--resource", "`nothing`", "admits-stale"]),
        (
            &["run", "--cluster", "sim", "--resource", "postgres"],
            &["--resource", "`postgres`", "no model", "--cluster docker"],
        ),
        (&["run", "--no-such-flag"], &["--no-such-flag"]),
        (&["run", "no-such-plan.toml"], &["no-such-plan.toml"]),
        (&["check", "no-such-run"], &["no-such-run", "harness list --runs"]),
        (&["frobnicate"], &["frobnicate"]),
        (&[], &["Usage"]),
    ];
    for (args, words) in table {
        ran(args).exits(64).says(words);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    assert!(ran(&["--help"]).exits(0).stdout.contains("Exit codes"));
    assert!(ran(&["--version"]).exits(0).stdout.contains("harness"));
    let listed = ran(&["list"]).exits(0).stdout;
    for word in ["redlock", "two-phase", "pause", "before-write", "reads"] {
        assert!(listed.contains(word), "{listed}");
    }
}

#[test]
fn explain_defines_each_word_of_the_reports_and_suggests_near_words() {
    let said = ran(&["explain", "stale-holder"]).exits(0).stdout;
    assert!(said.starts_with("stale-holder\n") && said.len() > 50, "{said}");
    let all = ran(&["explain"]).exits(0).stdout;
    for word in ["\nstale-holder\n", "\nlease-overlap\n", "\nentitled\n", "\nmeasured\n", "\nwrites\n"] {
        assert!(all.contains(word), "{word:?} in {all}");
    }
    assert!(all.lines().all(|line| line.chars().count() <= 100), "{all}");
    assert!(ran(&["explain", "fencing", "token"]).exits(0).stdout.starts_with("fencing token\n"));
    ran(&["explain", "stale-hodler"]).exits(64).says(&["`stale-hodler`", "stale-holder", "harness explain"]);
    ran(&["explain", "zzz"]).exits(64).says(&["`zzz`", "harness explain"]);
}

#[test]
fn a_broken_plan_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.toml");
    fs::write(&plan, "run = \"x\"\nbackend = \"redlock\"\n[plan]\nschema = = 1\n").unwrap();
    ran(&["run", plan.to_str().unwrap()]).exits(64).says(&["plan.toml", "line 4"]);
    fs::write(&plan, "run = \"x\"\nbackend = \"redlock\"\nfancy = true\n").unwrap();
    ran(&["run", plan.to_str().unwrap()]).exits(64).says(&["plan.toml", "fancy"]);
}

#[test]
fn a_plan_that_no_run_can_have_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.toml");
    let k1 = fs::read_to_string("suites/kleppmann/k1.toml").unwrap();
    let nodes = k1.lines().find(|line| line.starts_with("lock_nodes = ")).unwrap();
    for (from, to, words) in [
        (nodes, "lock_nodes = []", "at least one lock node"),
        (nodes, "lock_nodes = [\"redis-1\", \"redis-2\", \"redis-1\"]", "`redis-1` is listed twice"),
        ("time = \"10s\"\nlease = \"2s\"", "time = \"4s\"\nlease = \"1s\"", "longer than the whole fault phase"),
        ("for = \"5s\"", "for = \"10s 1ms\"", "longer than the whole fault phase"),
        ("for = \"5s\"", "for = \"100years\"", "outside 20ms to 24h"),
        ("for = \"5s\"", "for = \"0s\"", "outside 20ms to 24h"),
        ("node = \"worker-1\" }", "node = \"redis-1\" }", "only workers come to protocol points"),
    ] {
        assert!(k1.contains(from), "{from}");
        fs::write(&path, k1.replace(from, to)).unwrap();
        let ran = ran(&["run", path.to_str().unwrap(), "--cluster", "sim"]);
        assert!(ran.code == Some(64) && ran.stderr.contains(words), "{words}: {:?} {}", ran.code, ran.stderr);
    }
}

/// Runs the harness with this standard output.
fn to(output: impl Into<std::process::Stdio>, args: &[&str]) -> crate::support::Ran {
    let child = harness().args(args).stdout(output).stderr(std::process::Stdio::piped()).spawn().unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_full_output_is_a_failure_and_a_closed_one_is_quiet() {
    let runs = tempfile::tempdir().unwrap();
    let run = ["run", "--cluster", "sim", "--time", "4s", "--seed", "1", "--runs", runs.path().to_str().unwrap()];
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [&["list"][..], &["explain"][..], &["--help"][..], &run[..]] {
        let ran = to(full(), args).exits(3);
        assert!(args == ["--help"] || ran.stderr.contains("standard output"), "{args:?}: {}", ran.stderr);
    }
    assert!(runs.path().join("latest/verdict.json").exists());
    let explore = ["explore", "--nemesis", "none", "--seeds", "1", "--save", runs.path().to_str().unwrap()];
    for format in ["text", "json"] {
        to(full(), &[&explore[..], &["--format", format]].concat()).exits(3).says(&["standard output"]);
        // The results are written all the same.
        fs::remove_file(runs.path().join("explore.json")).unwrap();
    }
    let expected = ran(&run).code;
    for (args, code) in [(&["list"][..], Some(0)), (&["--help"][..], Some(0)), (&run[..], expected)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = to(writer, args);
        assert!(ran.code == code && !ran.stderr.contains("panicked"), "{args:?}: {:?} {}", ran.code, ran.stderr);
    }
}

#[test]
fn a_full_output_takes_no_results_of_a_suite_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let [runs, junit] = ["runs", "junit.xml"].map(|name| dir.path().join(name));
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let suite = ["suite", "suites/kleppmann.toml", "--cluster", "sim", "--only", "K1", "--runs"];
    let suite = [&suite[..], &[runs.to_str().unwrap()]].concat();
    for format in ["text", "json"] {
        let flags = ["--format", format, "--junit", junit.to_str().unwrap()];
        to(full(), &[&suite[..], &flags].concat()).exits(3).says(&["standard output"]);
        let record = fs::read_to_string(runs.join("suite-kleppmann-sim.jsonl")).unwrap();
        assert_eq!(record.lines().count(), 2, "the rows, and the run: {record}");
        assert!(fs::read_to_string(&junit).unwrap().contains("<testcase"), "{format}");
    }
}

#[test]
fn a_full_output_keeps_no_plot_from_being_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("plot.svg");
    for format in ["text", "json"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let dose = ["dose", "pause", "--ratios", "1", "--seeds", "1", "--format", format, "--svg"];
        to(full, &[&dose[..], &[plot.to_str().unwrap()]].concat()).exits(3).says(&["standard output"]);
        assert!(fs::read_to_string(&plot).unwrap().contains("<svg"), "{format}");
        fs::remove_file(&plot).unwrap();
    }
}

#[test]
fn a_run_whose_history_cannot_be_written_fails_without_a_verdict() {
    let runs = tempfile::tempdir().unwrap();
    // No file can have more than 32 KiB, as if the disk were almost full. The history needs more.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", limited, "sh"]).arg(harness().get_program());
    let run = ["run", "--cluster", "sim", "--backend", "redis", "--nemesis", "none", "--time", "20s", "--seed", "7"];
    let output = command.args(run).arg("--runs").arg(runs.path()).output().unwrap();
    crate::support::Ran::from(output).exits(3).says(&["history.jsonl", "appending to the history"]);
    assert!(runs.path().join("latest/history.jsonl").exists() && !runs.path().join("latest/verdict.json").exists());
}

#[test]
fn a_violated_run_decides_the_exit_code_of_all_runs() {
    let dir = tempfile::tempdir().unwrap();
    let [upheld, plan, runs] = ["upheld.toml", "plan.toml", "runs"].map(|name| dir.path().join(name));
    let run = ["run", "--cluster", "sim", "--backend", "redis", "--nemesis", "none", "--time", "20s", "--seed", "7"];
    let output = harness().args(run).arg("--runs").arg(&runs).output().unwrap();
    crate::support::Ran::from(output).exits(0);
    fs::copy(runs.join("latest/plan.toml"), &upheld).unwrap();
    fs::copy("suites/kleppmann/k1.toml", &plan).unwrap();
    let mut command = harness();
    command.arg("run").arg(&plan).args(["--cluster", "sim", "--repeat", "5", "--runs"]).arg(&runs);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("violated"));
    // Each run reads the plan again, so the last one is upheld.
    fs::rename(&upheld, &plan).unwrap();
    let all: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{all:?}");
}

#[test]
fn a_broken_compose_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.yaml");
    fs::write(&file, "services:\n  redis-1:\n    image: redis\n    privileged: true\n").unwrap();
    ran(&["run", "--cluster", "docker", "--compose", file.to_str().unwrap()])
        .exits(64)
        .says(&["mine.yaml:4:5", "privileged"]);
    ran(&["run", "--cluster", "docker", "--compose", "no-such.yaml"]).exits(64).says(&["no-such.yaml"]);
}

#[test]
fn without_an_engine_the_run_fails_and_says_where_it_looked() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["run", "--cluster", "docker", "--runs", dir.path().to_str().unwrap()][..], &["clean"][..]] {
        let output = harness().args(args).env("DOCKER_HOST", "unix:///nowhere/docker.sock").output().unwrap();
        crate::support::Ran::from(output).exits(3).says(&[
            "no Docker engine answers",
            "/nowhere/docker.sock",
            "DOCKER_HOST",
            "--cluster sim",
        ]);
    }
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "a run that never began leaves no directory");
}

/// The binary as a user without privileges. Root may use every socket.
fn unprivileged(dir: &tempfile::TempDir) -> std::process::Command {
    if !nix::unistd::geteuid().is_root() {
        return harness();
    }
    let binary = dir.path().join("harness");
    // A copy by this process would be open for writing in the children of other tests for a moment, and then not run.
    let copied = std::process::Command::new("cp").arg(harness().get_program()).arg(&binary).status().unwrap();
    assert!(copied.success(), "{copied}");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let mut command = std::process::Command::new("setpriv");
    command.args(nobody).arg(binary).stdin(std::process::Stdio::null());
    command
}

#[test]
fn an_engine_that_the_user_may_not_use_is_no_missing_engine() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("docker.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    // `auto` must not simulate either.
    for args in [&["run", "--cluster", "auto"][..], &["run", "--cluster", "docker"], &["clean"]] {
        let mut command = unprivileged(&dir);
        command.args(args).current_dir("/").env("DOCKER_HOST", format!("unix://{}", path.display()));
        let ran = crate::support::Ran::from(command.output().unwrap()).exits(3);
        let ran = ran.says(&[
            "you may not use the Docker engine at unix://",
            "usermod -aG docker",
            "run the harness as root",
        ]);
        assert!(!ran.stderr.contains("no Docker engine answers"), "{}", ran.stderr);
    }
}

/// The address of an engine that answers each request, by its path, with a status and a body.
fn engine(answer: fn(&str) -> (&'static str, &'static str)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("tcp://{}", listener.local_addr().unwrap());
    let one = move |mut stream: TcpStream| {
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap_or_default();
        let request = String::from_utf8_lossy(&request[..length]);
        let (status, body) = answer(request.split(' ').nth(1).unwrap_or_default());
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all((head + body).as_bytes());
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || one(stream));
        }
    });
    host
}

#[test]
fn an_engine_that_answers_with_an_error_is_no_missing_engine() {
    let host = engine(|_| ("500 Broken", r#"{"message":"broken"}"#));
    let dir = tempfile::tempdir().unwrap();
    for args in [&["clean"][..], &["run", "--runs", dir.path().to_str().unwrap()][..]] {
        let ran = crate::support::Ran::from(harness().args(args).env("DOCKER_HOST", &host).output().unwrap());
        let ran = ran.exits(3).says(&["engine says", "broken"]);
        assert!(!ran.stderr.contains("no Docker engine answers"), "{}", ran.stderr);
    }
}

#[test]
fn the_rest_of_an_image_build_that_cannot_be_removed_is_told_when_all_else_is_removed() {
    let host = engine(|path| {
        let body = match path {
            path if path.ends_with("/version") => r#"{"ApiVersion":"1.41"}"#,
            path if path.ends_with("/info") => r#"{"SystemTime":"2026-11-28T12:00:00Z"}"#,
            path if path.contains("/volumes") => "{}",
            _ => "[]",
        };
        ("200 OK", body)
    });
    let temporary = tempfile::tempdir().unwrap();
    let clean = || {
        let mut command = harness();
        command.arg("clean").env("DOCKER_HOST", &host).env("TMPDIR", temporary.path());
        crate::support::Ran::from(command.output().unwrap())
    };
    let dead = temporary.path().join("harness-build-1-0");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.with_extension("lock"), "").unwrap();
    let stdout = clean().exits(0).stdout;
    assert!(stdout.contains("removed interrupted image builds: ") && !dead.exists(), "{stdout}");
    // A directory cannot be opened as the lock of a build.
    fs::create_dir(dead.with_extension("lock")).unwrap();
    let ran = clean().exits(3).says(&["cannot remove what an interrupted image build has left"]);
    assert!(ran.stdout.contains("removed 0 containers, 0 networks, 0 volumes"), "{}", ran.stdout);
}

/// A recorded run of the checker's corpus, as a run directory.
fn recorded(history: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("history.jsonl"), history).unwrap();
    dir
}

/// A paused holder that acts when another has taken over, judged by hand.
fn kleppmann() -> Vec<u8> {
    fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl")).unwrap()
}

#[test]
fn a_recorded_run_is_judged_again_and_its_exit_code_says_how() {
    let dir = recorded(&kleppmann());
    let path = dir.path().to_str().unwrap();
    let said = ran(&["check", path]).exits(1).stdout;
    assert!(said.contains("lock            violated") && said.contains("took over"), "{said}");
    let json = ran(&["check", path, "--format", "json"]).exits(1).stdout;
    let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(verdict["properties"]["lock"]["verdict"], "violated");
    assert_eq!(verdict["as_expected"], serde_json::Value::Null);
    let written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("verdict.json")).unwrap()).unwrap();
    assert_eq!(written, verdict);
    ran(&["check", path, "--expect", "lock=violated,lock.unexplained=0,lock.windows>=1"]).exits(0);
    ran(&["check", path, "--expect", "lock=upheld"]).exits(1);
    let said = ran(&["check", path, "--expect", "lock=violated,lock.windows>=9"]).exits(1).stdout;
    assert!(said.contains("expected lock.windows>=9, found 1"), "{said}");
    ran(&["check", path, "--expect", "lock=violated,lokc.windows>=9"])
        .exits(64)
        .says(&["no figure `lokc.windows`", "lock.windows"]);
}

#[test]
fn a_truncated_history_is_judged_as_far_as_it_goes_and_never_upheld() {
    let whole = kleppmann();
    // Cut in the middle of a line, long before the anomaly.
    let dir = recorded(&whole[..whole.len() / 4]);
    let ran_ = ran(&["check", dir.path().to_str().unwrap()]).exits(2);
    assert!(ran_.stdout.contains("not judged to the end"), "{}", ran_.stdout);
    // Without its end, but with the anomaly in it: a violation is never withdrawn.
    let end = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    let dir = recorded(&whole[..end]);
    ran(&["check", dir.path().to_str().unwrap()]).exits(1);
    let dir = recorded(b"");
    ran(&["check", dir.path().to_str().unwrap()]).exits(64).says(&["the first event is not the plan"]);
}

#[test]
fn a_file_that_is_no_history_is_refused_with_its_line() {
    let dir = recorded(b"{\"seq\":0,\"process\":\"controller\",\"n\":0,\"at\":0,\"event\":\"breakfast\"}\n");
    ran(&["check", dir.path().to_str().unwrap()]).exits(64).says(&["history.jsonl", "line 1", "breakfast"]);
    let empty = tempfile::tempdir().unwrap();
    ran(&["check", empty.path().to_str().unwrap()]).exits(64).says(&["no history.jsonl"]);
}

#[test]
fn etcds_own_lock_service_has_a_leader_that_a_fault_can_hit() {
    let runs = tempfile::tempdir().unwrap();
    let backend = ["run", "--cluster", "sim", "--backend", "etcd-server-lock", "--time", "4s", "--seed", "1"];
    let nemesis = ["--nemesis", "pause:leader@1s+1s", "--runs", runs.path().to_str().unwrap()];
    let run = ran(&[&backend[..], &nemesis[..]].concat());
    assert!(run.code.is_some_and(|code| code <= 2), "{:?}: {}", run.code, run.stderr);
    // A run whose fault finds no leader is inconclusive too.
    let history = fs::read_to_string(runs.path().join("latest/history.jsonl")).unwrap();
    let words = [r#""event":"fault""#, r#""node":"etcd-"#, r#""phase":"proved""#];
    assert_eq!(history.lines().filter(|line| words.iter().all(|word| line.contains(word))).count(), 1, "{history}");
}

#[test]
fn a_restart_without_data_of_an_etcd_member_is_refused_on_both_clusters() {
    for cluster in ["docker", "sim"] {
        for backend in ["etcd", "etcd-server-lock"] {
            ran(&["run", "--cluster", cluster, "--backend", backend, "--nemesis", "amnesia:etcd-1@1s+1s"])
                .exits(64)
                .says(&["no longer a member of its store", backend]);
        }
    }
}

#[test]
fn the_simulation_has_no_images_and_a_directory_is_no_plan() {
    ran(&["run", "--images-only", "--cluster", "sim"]).exits(64).says(&["--images-only", "only Docker has this flag"]);
    ran(&["run", "--images-only", "--keep"]).exits(64).says(&["--keep"]);
    ran(&["run", "suites"]).exits(64).says(&["plan suites: expected a file, and this is a directory"]);
}

#[test]
fn servers_without_a_model_are_refused_in_the_simulation() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.toml");
    let written = fs::read_to_string("suites/kleppmann/k1.toml").unwrap();
    let servers = "\n[plan.servers]\ntopology = \"one-store\"\npromise = \"session\"\nlease_clock = \"monotonic\"\n\
        amnesia = \"loses-membership\"\nkill_forgets = false\nshows_waiting = true\n\
        tokens = [\"two-phase\"]\nport = 1\n";
    fs::write(&file, written + servers).unwrap();
    ran(&["run", file.to_str().unwrap(), "--cluster", "sim"])
        .exits(64)
        .says(&["no model of the servers of `redlock`", "--cluster docker"]);
}

#[cfg(not(feature = "dynamodb"))]
#[test]
fn a_backend_that_this_build_leaves_out_is_refused_with_the_way_to_build_it() {
    let run = ["run", "--cluster", "docker", "--backend", "dynamodb", "--nemesis", "none"];
    ran(&run).exits(64).says(&["--backend", "not in this build", "cargo build --features dynamodb", "--client"]);
    ran(&["suite", "suites/backends.toml", "--only", "pause/dynamodb"]).exits(64).says(&["--features dynamodb"]);
    let listed = ran(&["list"]).exits(0).stdout;
    let line = listed.lines().find(|line| line.starts_with("  dynamodb ")).unwrap();
    assert!(line.contains("not in this build: needs `cargo build --features dynamodb`"), "{line}");
}

#[test]
fn every_client_has_a_built_in_compose_file_and_the_reverse() {
    let clients: Vec<_> = locks::CLIENTS.iter().map(|client| client.name).collect();
    let files: Vec<_> = compose::BUILTIN.iter().map(|(name, _)| *name).collect();
    assert_eq!(clients, files);
}
