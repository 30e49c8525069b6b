//! `harness explore`, and its plans run again.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{harness, ran, signalled};

fn explored(args: &[&str], code: i32) -> Value {
    let said = ran(&[&["explore", "--format", "json"], args].concat()).exits(code).stdout;
    serde_json::from_str(&said).unwrap()
}

/// Removes the figures that depend on the machine.
fn strip(mut found: Value) -> Value {
    for figure in ["took_s", "schedules_per_s", "messages_per_s", "virtual_s_per_s"] {
        found.as_object_mut().unwrap().remove(figure);
    }
    found
}

#[test]
fn a_signal_ends_a_search_with_the_code_of_an_interruption() {
    let mut command = harness();
    command.args(["explore", "--nemesis", "none", "--seeds", "1000000000", "--jobs", "1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stderr, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("of 1000000000 schedules"), "{line}");
    assert_eq!(signalled(&mut child, Signal::SIGTERM), Some(130));
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_before_the_search() {
    for args in [&["explore", "--seeds", "100000"][..], &["selftest"][..]] {
        let refused =
            ran(&[args, &["--save", "/dev/null/plans"]].concat()).exits(3).says(&["--save", "/dev/null/plans"]);
        assert!(
            !refused.stderr.contains("schedules") && !refused.stderr.contains("planted bugs"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn a_plan_that_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    // A directory has the name of the plan.
    fs::create_dir(dir.path().join("failed-0.toml")).unwrap();
    let save = dir.path().to_str().unwrap();
    let flags = ["--backend", "buggy:stamps-late", "--nemesis", "none", "--seeds", "1", "--save", save];
    ran(&[&["explore"], &flags[..]].concat()).exits(3).says(&["writing ", "failed-0.toml"]);
    assert!(dir.path().join("explore.json").is_file(), "the other results are there");
}

/// Two steps that waited for the slot of the leader once handed it to each other for ever.
#[test]
fn runs_with_several_faults_of_the_leader_end() {
    let nemesis = ["clock:leader@3s+2s"; 3].join(",");
    let flags = ["--backend", "etcd", "--nemesis", &nemesis, "--lease", "2s", "--seeds", "3", "--limit", "0"];
    assert_eq!(explored(&flags, 0)["schedules"], 3);
}

#[test]
fn without_faults_nothing_is_found() {
    let found = explored(&["--nemesis", "none", "--seeds", "50"], 0);
    assert_eq!((&found["findings"], &found["inconclusive"]), (&0.into(), &0.into()));
}

#[test]
fn schedules_that_say_nothing_are_inconclusive() {
    let found = explored(&["--nemesis", "none", "--seeds", "8", "--rate", "0.1", "--time", "1s"], 2);
    assert_eq!(found["inconclusive"], 8);
    assert_eq!(found["is_measure"], false);
}

#[test]
fn wrong_flags_are_usage_errors_and_name_what_is_wrong() {
    let table: &[(&[&str], &[&str])] = &[
        (&["explore", "--backend", "redlok"], &["--backend", "`redlok` is no backend"]),
        (&["explore", "--nemesis", "puase"], &["--nemesis", "`puase`"]),
        (&["explore", "--nemesis", "pause:worker-9"], &["`worker-9`"]),
        (&["explore", "--nemesis", "amnesia:worker-1"], &["amnesia"]),
        (&["explore", "--swarm", "--keys", "2"], &["--swarm", "--keys"]),
        (&["explore", "--seeds", "0"], &["--seeds", "at least one"]),
        (&["explore", "--seed", "9007199254740992", "--seeds", "2"], &["seed", "2^53"]),
        (&["explore", "--arms", "reads", "--fence", "strict"], &["--fence"]),
        (&["explore", "--tokens", "counter"], &["--tokens", "two-phase"]),
        (&["run", "plan.toml", "--repeat", "0"], &["--repeat"]),
    ];
    for (args, words) in table {
        ran(args).exits(64).says(words);
    }
}

#[test]
fn a_scenario_without_a_plan_can_be_repeated() {
    let runs = tempfile::tempdir().unwrap();
    let said = ran(&["run", "--cluster", "sim", "--repeat", "2", "--runs", runs.path().to_str().unwrap()]).exits(0);
    assert!(said.stdout.ends_with("0 of 2 runs were violated\n"), "{}", said.stdout);
}

/// The lines that have counts of schedules, without rates. A search prints each finding when it has it, in any order.
fn counts(text: &str) -> BTreeSet<String> {
    let is_count = |line: &&str| line.contains(" schedules, ");
    text.lines().filter(is_count).map(|line| line.split(" · ").next().unwrap().to_owned()).collect()
}

/// The lines without rates, and with the name of the directory of saved plans in place of its path.
fn lines(text: &str, dir: &Path) -> BTreeSet<String> {
    let dirs = [dir.display().to_string(), dir.canonicalize().unwrap().display().to_string()];
    let text = dirs.iter().fold(text.to_owned(), |text, dir| text.replace(dir, "DIR"));
    let without_rates = |line: &str| match line.split_once(" schedules/s ") {
        Some((before, _)) => before.rsplit_once(" · ").unwrap().0.to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(without_rates).collect()
}

/// Tests that take so long that `cargo test` leaves them to `make test`.
mod searches {
    use super::*;

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn a_pause_gives_a_stale_holder_that_is_reduced_and_offered() {
        let found = explored(&["--backend", "redlock", "--nemesis", "pause", "--seeds", "200"], 1);
        assert_eq!(found["schedules"], 200);
        assert_eq!(found["is_measure"], true, "means: {}", found["means"]);
        let class = &found["classes"][0];
        assert_eq!((&class["property"], &class["kind"]), (&"lock".into(), &"stale-holder".into()));
        assert_eq!(class["causes"], serde_json::json!(["pause"]));
        let reduced = &class["reduced"];
        assert_eq!(reduced["is_offered"], true, "{} of 100", reduced["held"]);
        assert!(reduced["faults"].as_u64().unwrap() <= 2, "{reduced}");
        assert!(reduced["held"].as_u64().unwrap() >= 95);
        let inevitable = &class["inevitable"];
        let instants = inevitable["instants"].as_array().unwrap();
        assert_eq!((instants.len(), &inevitable["redraws"]), (24, &24.into()));
        assert!(instants[0]["violating"].as_u64().unwrap() < 24, "{inevitable}");
        assert_eq!(instants[23]["violating"], 24);
        let flags = ["--backend", "redlock", "--nemesis", "pause", "--seeds", "8", "--limit", "1", "--redraws", "0"];
        assert_eq!(explored(&flags, 1)["classes"][0]["inevitable"], Value::Null);
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn a_saved_plan_violates_each_time_it_is_run() {
        let dir = tempfile::tempdir().unwrap();
        let (plans, runs) = (dir.path().join("plans"), dir.path().join("runs"));
        let said = ran(&["explore", "--nemesis", "pause", "--seeds", "20", "--save", plans.to_str().unwrap()]).exits(1);
        assert!(said.stdout.contains("acted") && said.stdout.contains("took over"), "{}", said.stdout);
        assert!(said.stdout.contains("schedules/s"), "{}", said.stdout);
        let mut saved: Vec<_> = fs::read_dir(&plans).unwrap().map(|entry| entry.unwrap().path()).collect();
        saved.sort();
        let [results, exact, chart, plan] = saved.as_slice() else { panic!("{saved:?}") };
        assert_eq!(results.file_name().unwrap(), "explore.json");
        let chart = fs::read_to_string(chart).unwrap();
        assert!(chart.contains("inevitable from ") && said.stdout.contains(&chart), "{chart}");
        ran(&["run", exact.to_str().unwrap(), "--cluster", "sim", "--runs", runs.to_str().unwrap()]).exits(1);
        fs::remove_dir_all(&runs).unwrap();
        assert!(said.stdout.contains(plan.to_str().unwrap()), "{}", said.stdout);
        let run =
            ["run", plan.to_str().unwrap(), "--cluster", "sim", "--runs", runs.to_str().unwrap(), "--repeat", "3"];
        let said = ran(&run).exits(1).stdout;
        assert!(said.ends_with("3 of 3 runs were violated\n"), "{said}");
        // `latest` beside them.
        assert_eq!(fs::read_dir(&runs).unwrap().count(), 3 + 1);
        ran(&[&run[..], &["--expect", "lock=violated"]].concat()).exits(0);
        let said = ran(&[&run[..], &["--expect", "lock=upheld"]].concat()).exits(1).stdout;
        assert!(said.ends_with("0 of 3 runs came out as expected\n") && said.contains("NOT as expected"), "{said}");
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn the_same_seeds_give_the_same_findings_on_any_number_of_threads() {
        let flags = "--nemesis pause,clock --seeds 40 --seed 40 --limit 1 --redraws 4";
        let flags: Vec<&str> = flags.split(' ').collect();
        let one = strip(explored(&[&flags[..], &["--jobs", "1"]].concat(), 1));
        assert_eq!(strip(explored(&[&flags[..], &["--jobs", "3"]].concat(), 1)), one);
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn a_swarm_finds_a_bug_without_any_flag_and_the_same_on_any_number_of_threads() {
        let flags = ["--swarm", "--backend", "buggy:release-unchecked@redis", "--seeds", "200", "--limit", "0"];
        let one = strip(explored(&[&flags[..], &["--jobs", "1"]].concat(), 1));
        assert!(one["classes"].as_array().unwrap().iter().any(|class| class["property"] == "release"), "{one}");
        assert_eq!(strip(explored(&[&flags[..], &["--jobs", "3"]].concat(), 1)), one);
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn clients_and_models_are_as_the_flags_say() {
        let flags = "--nemesis pause --seeds 4 --limit 1 --redraws 0 --renew 400ms --renew-for 900ms --writes 2 \
            --resend 700ms --persistence always";
        let found = explored(&flags.split_whitespace().collect::<Vec<_>>(), 1);
        let plan = found["classes"][0]["reduced"]["plan"].as_str().unwrap();
        for word in ["renew = ", "renew_for = ", "writes = 2", "resend = ", "persistence = \"always\""] {
            assert!(plan.contains(word), "{word} in {plan}");
        }
    }

    #[test]
    #[ignore = "takes long; make test runs it"]
    fn shards_joined_find_what_one_search_finds() {
        let dir = tempfile::tempdir().unwrap();
        // A reduction tries at most --limit seeds of its class in each shard, so the first one must be enough.
        let flags =
            ["explore", "--nemesis", "pause,clock", "--seeds", "121", "--limit", "1", "--redraws", "4", "--save"];
        let save = |name: &str| dir.path().join(name).display().to_string();
        let whole = save("whole");
        let one = ran(&[&flags[..], &[whole.as_str()]].concat()).exits(1).stdout;
        // Each kind of fault alone gives a class, and both classes are in several shards.
        assert!(one.contains("lock stale-holder pause: in") && one.contains("of 121 schedules"), "{one}");
        let dirs: Vec<String> = (1..=3).map(|n| save(&n.to_string())).collect();
        for (n, part) in (0..).zip(&dirs) {
            let shard = format!("{n}/3");
            ran(&[&flags[..], &[part.as_str(), "--shard-index", &shard]].concat()).exits(1);
        }
        let reversed: Vec<&str> = dirs.iter().rev().map(String::as_str).collect();
        let merged = ran(&[&["merge"], &reversed[..]].concat()).exits(1).stdout;
        assert_eq!(counts(&merged), counts(&one), "{merged}");
        assert!(counts(&one).len() > 2, "{one}");
        let alone = ran(&["merge", &whole]).exits(1).stdout;
        assert_eq!(lines(&alone, dir.path()), lines(&one, dir.path()));
        // The plan that is named is there.
        let plan = merged.lines().find_map(|line| line.trim().strip_prefix("run this plan: harness run ")).unwrap();
        assert!(Path::new(plan).is_file(), "{plan}");
        let json: Value =
            serde_json::from_str(&ran(&[&["merge", "--format", "json"], &reversed[..]].concat()).stdout).unwrap();
        assert_eq!((&json["schedules"], &json["head"]["shard"]["of"]), (&121.into(), &1.into()));

        // Without the plans beside the results, the plan itself is printed.
        let only = dir.path().join("only");
        fs::create_dir(&only).unwrap();
        fs::copy(Path::new(&whole).join("explore.json"), only.join("explore.json")).unwrap();
        let said = ran(&["merge", only.to_str().unwrap()]).exits(1).stdout;
        assert!(said.contains("plan.toml (--save DIR writes it)") && !said.contains("run this plan"), "{said}");

        ran(&["merge", &dirs[0], &dirs[2]]).exits(64).says(&["no results of shard 2/3", "explore-1of3.json"]);
        ran(&["merge", &dirs[0], &dirs[1], &dirs[2], "--junit", "x.xml"])
            .exits(64)
            .says(&["--junit", "no expectations"]);
        let other = save("other");
        ran(&["explore", "--seeds", "121", "--limit", "0", "--shard", "2/3", "--save", &other]);
        ran(&["merge", &dirs[0], &other, &dirs[2]]).exits(64).says(&["different flags", "explore-2of3.json"]);
        fs::write(dir.path().join("suite-x-sim.jsonl"), "").unwrap();
        let suite = dir.path().join("suite-x-sim.jsonl").display().to_string();
        ran(&["merge", &whole, &suite]).exits(64).says(&["explore.json", "suite-x-sim.jsonl", "two calls"]);
        ran(&["explore", "--seeds", "3", "--shard-index", "2/8"])
            .exits(64)
            .says(&["--shard-index", "8 shards, --seeds 3"]);
    }
}

/// Run by `make accept`: `make test` has no time for them.
mod long {
    use super::*;

    /// The fault must come at a certain time of a hold: the plan says it by a client that waits.
    #[test]
    #[ignore = "takes minutes"]
    fn lost_memory_and_wrong_clocks_of_lock_nodes_are_offered_as_plans_in_which_the_holder_waits() {
        for (nemesis, seeds) in [("clock", "60"), ("amnesia", "150")] {
            let found = explored(&["--nemesis", nemesis, "--seeds", seeds, "--limit", "1"], 1);
            let classes = found["classes"].as_array().unwrap();
            let is_overlap = |c: &&Value| c["kind"] == "lease-overlap" && c["causes"] == serde_json::json!([nemesis]);
            let reduced = &classes.iter().find(is_overlap).unwrap()["reduced"];
            assert_eq!(reduced["is_offered"], true, "{nemesis}: {} of 100", reduced["held"]);
            assert!(reduced["plan"].as_str().unwrap().contains("while-waits = 1"), "{nemesis}: {}", reduced["plan"]);
        }
    }
}
