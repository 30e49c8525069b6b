use super::*;

/// Facts about one Redis server. They follow the services, so that the lines of these are easy to count.
const FACTS: &str = "x-harness: {about: a, topology: independent, promise: lease, lease_clock: wall, \
    amnesia: forgets-locks, kill_forgets: true, shows_waiting: true, tokens: [counter, none], port: 6379}\n";

/// A file with one service; `extra` is put into it, indented by four.
fn with(extra: &str) -> String {
    format!(
        "services:\n  one:\n    image: redis:7\n    healthcheck: {{test: [CMD, redis-cli, ping]}}\n    \
         x-harness: {{role: redis}}\n{extra}{FACTS}"
    )
}

fn refusal(text: &str) -> String {
    ComposeFile::parse(text, "f.yaml").expect_err("must be refused").to_string()
}

#[test]
fn every_builtin_file_is_inside_the_subset_and_its_servers_can_be_built_without_a_registry() {
    for (name, _) in BUILTIN {
        let file = ComposeFile::builtin(name).unwrap_or_else(|e| panic!("{e}"));
        let is_built = |service: &Service| !service.packages.is_empty() || service.harness_binary;
        assert!(file.services.iter().all(is_built), "{name}");
        assert!(file.services.iter().all(|service| service.image.contains(':')), "{name}: pinned");
    }
    let names = |backend| {
        let file = ComposeFile::builtin(backend).unwrap();
        file.services.iter().map(|service| service.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("redis"), ["redis-1"]);
    assert_eq!(names("redlock"), ["redis-1", "redis-2", "redis-3", "redis-4", "redis-5"]);
    assert_eq!(
        ComposeFile::builtin("redis").unwrap().services[0].command,
        ["redis-server", "--save", "", "--appendonly", "no", "--bind", "0.0.0.0", "--protected-mode", "no"]
    );
}

#[test]
fn python_packages_have_a_version_and_no_option_of_pip() {
    let service = |python: &str| {
        let text = with("").replace("role: redis}", &format!("role: redis, python: [{python}]}}"));
        ComposeFile::parse(&text, "f.yaml").map(|mut file| file.services.remove(0).python)
    };
    assert_eq!(
        service("\"moto[dynamodb]==5.2.5\", flask-cors==6.0.5").unwrap(),
        ["moto[dynamodb]==5.2.5", "flask-cors==6.0.5"]
    );
    for wrong in
        ["flask", "\"--index-url==1\"", "\"flask==3; touch x\"", "\"flask[a b]==3\"", "\"flask[a==3\"", "flask=="]
    {
        let error = service(wrong).unwrap_err().to_string();
        assert!(error.contains("expected a Python package with its version"), "{wrong}: {error}");
    }
}

#[test]
fn a_name_that_is_not_built_in_is_refused_with_those_that_are() {
    let message = ComposeFile::builtin("etcd9").unwrap_err().to_string();
    assert_eq!(
        message,
        "there is no built-in Compose file for `etcd9`; there are: redis, redis-replicated, redis-replicated-wait, \
         redlock, etcd, etcd-server-lock, zookeeper, zookeeper-herd, postgres, postgres-advisory, postgres-row, \
         dynamodb, memory, lock-manager"
    );
}

#[test]
fn values_of_the_environment_stay_as_they_are_written() {
    let file = ComposeFile::parse(
        &with(
            "    environment:\n      A: 1.50\n      B: yes\n      C: 010\n      D: \"no\"\n      E: 1e3\n\
             \x20     F: 0x10\n",
        ),
        "f",
    )
    .unwrap();
    let values: Vec<_> = file.services[0].environment.values().map(String::as_str).collect();
    assert_eq!(values, ["1.50", "yes", "010", "no", "1e3", "0x10"]);
}

#[test]
fn services_keep_the_order_of_the_file() {
    let health = "healthcheck: {test: [CMD, a]}, x-harness: {role: r}";
    let text = format!(
        "services:\n  n-10: {{image: a, {health}}}\n  n-2: {{image: a, {health}}}\n  a: {{image: a, {health}}}\n{FACTS}"
    );
    let file = ComposeFile::parse(&text, "f").unwrap();
    assert_eq!(file.services.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["n-10", "n-2", "a"]);
}

#[test]
fn a_key_outside_the_subset_is_refused_at_its_place_with_the_keys_that_are_allowed() {
    assert_eq!(
        refusal(&with("    ports: [\"6379:6379\"]\n    networks: {}\n")),
        "f.yaml:6:5: `ports` is not supported here; supported are: image, entrypoint, command, environment, \
         healthcheck, x-harness"
    );
    assert_eq!(
        refusal("services: {}\nnetworks: {}\n"),
        "f.yaml:2:1: `networks` is not supported here; supported are: services, version, x-harness"
    );
    assert_eq!(
        refusal(
            "services:\n  one:\n    image: a\n    healthcheck:\n      test: [CMD, a]\n      start_period: 1s\n    \
             x-harness: {role: r}\n"
        ),
        "f.yaml:6:7: `start_period` is not supported here; supported are: test, interval, timeout, retries"
    );
    assert_eq!(
        refusal("services:\n  one: {image: a, healthcheck: {test: [CMD, a]}, x-harness: {rôle: r}}\n"),
        "f.yaml:2:62: `rôle` is not supported here; supported are: role, packages, python, data, \
         harness_binary"
    );
}

#[test]
fn a_data_directory_is_an_absolute_path() {
    let file = |data: &str| {
        format!(
            "services:\n  one: {{image: a, healthcheck: {{test: [CMD, a]}}, x-harness: {{role: r, data: {data}}}}}\n"
        )
    };
    for data in ["data", "/", "//", "/.", "/data/..", "''"] {
        let message = refusal(&file(data));
        assert!(
            message.starts_with("f.yaml:2:") && message.contains("expected a directory such as /data"),
            "{message}"
        );
    }
    assert!(refusal(&file("/data")).contains("no x-harness beside the services"));
}

#[test]
fn a_duplicate_key_is_refused_at_the_second_one() {
    let message = refusal(&with("    image: valkey/valkey:8\n"));
    assert!(message.starts_with("f.yaml:6:5: ") && message.contains("duplicate"), "{message}");
    let message = refusal(&with("    environment:\n      A: 1\n      A: 2\n"));
    assert!(message.starts_with("f.yaml:8:7: ") && message.contains("duplicate"), "{message}");
}

#[test]
fn a_command_that_would_have_to_be_split_is_refused() {
    let message = refusal(&with("    command: redis-server --save 60 1\n"));
    assert!(message.starts_with("f.yaml:6:14: ") && message.contains("a list of strings"), "{message}");
}

#[test]
fn what_compose_would_substitute_is_refused_wherever_it_stands() {
    for extra in [
        "    command: [redis-server, \"${PORT:-6379}\"]\n",
        "    command: [redis-server, \"$$HOME\"]\n",
        "    environment:\n      A: $HOME\n",
    ] {
        let message = refusal(&with(extra));
        assert!(message.contains("replaces variables at `$`"), "{message}");
    }
    let message = refusal(&with("    command: [redis-server, \"${PORT}\"]\n"));
    assert!(message.starts_with("f.yaml:6:29: "), "{message}");
}

#[test]
fn an_environment_without_a_value_or_as_a_list_is_refused() {
    let message = refusal(&with("    environment:\n      A:\n"));
    assert!(message.starts_with("f.yaml:7:"), "{message}");
    let message = refusal(&with("    environment: [\"A=b\"]\n"));
    assert!(message.starts_with("f.yaml:6:18: "), "{message}");
}

#[test]
fn a_service_without_healthcheck_or_role_is_refused() {
    let message = refusal("services:\n  one: {image: a, x-harness: {role: r}}\n");
    assert!(message.starts_with("f.yaml:2:") && message.contains("no healthcheck"), "{message}");
    let message = refusal("services:\n  one: {image: a, healthcheck: {test: [CMD, a]}}\n");
    assert!(message.contains("no x-harness"), "{message}");
    let message = refusal("services: {}\n");
    assert!(message.contains("no service"), "{message}");
}

#[test]
fn names_of_our_own_nodes_and_names_that_dns_would_not_take_are_refused() {
    for name in ["agent", "resource", "worker-1", "Redis", "a_b", "1a", "\"\""] {
        let text =
            format!("services:\n  {name}: {{image: a, healthcheck: {{test: [CMD, a]}}, x-harness: {{role: r}}}}\n");
        let message = refusal(&text);
        assert!(message.starts_with("f.yaml:2:") && message.contains("service name"), "{message}");
    }
}

#[test]
fn our_own_roles_and_roles_that_name_no_image_are_refused() {
    let of_role = |role: &str| refusal(&with("").replace("role: redis}", &format!("role: {role}}}")));
    for own in ["agent", "resource", "worker", "own", "resource-store"] {
        let message = of_role(own);
        assert!(message.starts_with(&format!("f.yaml:5:23: role `{own}` is one of the harness's own")), "{message}");
    }
    for wrong in ["\"\"", "Redis", "a b", "a/b", "1a"] {
        let message = of_role(wrong);
        assert!(message.starts_with("f.yaml:5:23: role `") && message.contains("expected a to z"), "{message}");
    }
    let message = refusal(&with("").replace("  one:", "  resource-store:"));
    assert!(message.contains("service name `resource-store` is one of the harness's own nodes"), "{message}");
}

#[test]
fn a_health_test_is_a_program_or_one_shell_line() {
    let parse = |test: &str| {
        let text = format!(
            "services:\n  one: {{image: a, healthcheck: {{test: {test}, timeout: 1m30s}}, \
             x-harness: {{role: r}}}}\n{FACTS}"
        );
        ComposeFile::parse(&text, "f.yaml")
    };
    let service = parse("[CMD, redis-cli, ping]").unwrap().services.remove(0);
    assert_eq!(service.health_test, ["redis-cli", "ping"]);
    assert_eq!(service.health_timeout, Duration::from_secs(90));
    let service = parse("[CMD-SHELL, redis-cli ping | grep PONG]").unwrap().services.remove(0);
    assert_eq!(service.health_test, ["/bin/sh", "-c", "redis-cli ping | grep PONG"]);
    for wrong in ["[]", "[NONE]", "[CMD]", "[CMD-SHELL, a, b]", "[redis-cli, ping]"] {
        assert!(parse(wrong).unwrap_err().to_string().contains("expected test: [\"CMD\""), "{wrong}");
    }
}

#[test]
fn durations_are_read_as_compose_writes_them() {
    let read = |text: &str| {
        duration(Spanned::new(text.to_owned(), Location::UNKNOWN, Location::UNKNOWN)).map(|d| d.as_millis())
    };
    assert_eq!(read("500ms").unwrap(), 500);
    assert_eq!(read("1m30s").unwrap(), 90_000);
    assert_eq!(read("2h").unwrap(), 7_200_000);
    for wrong in ["", "0s", "5", "1.5s", "s", "1x", "-1s", "99999999999999999999h", "9999999999999999h"] {
        assert!(read(wrong).unwrap_err().what.contains("expected a duration"), "{wrong}");
    }
}

#[test]
fn packages_cannot_smuggle_options_into_the_program_that_builds_images() {
    for wrong in ["--setup-hook=x", "a,b", "a b", "\"\""] {
        let text = format!(
            "services:\n  one: {{image: a, healthcheck: {{test: [CMD, a]}}, \
             x-harness: {{role: r, packages: ['{wrong}']}}}}\n"
        );
        assert!(refusal(&text).contains("not the name of a Debian package"), "{wrong}");
    }
}

#[test]
fn a_file_that_cannot_be_read_says_which() {
    let message = ComposeFile::read(Path::new("/nonexistent/c.yaml")).unwrap_err().to_string();
    assert!(message.starts_with("cannot read the Compose file /nonexistent/c.yaml: "), "{message}");
    let message = ComposeFile::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(message.starts_with("cannot read the Compose file /dev/zero: expected a regular file"), "{message}");
}

#[test]
fn a_wrong_or_missing_fact_is_refused_at_its_place_with_the_allowed_values() {
    let changed = |from: &str, to: &str| refusal(&with("").replace(from, to));
    assert_eq!(
        changed("about: a, topology", "about: a, shape: x, topology"),
        "f.yaml:6:23: `shape` is not supported here; supported are: about, topology, promise, lease_clock, \
         least_lease, lease_step, first_alarm, amnesia, kill_forgets, shows_waiting, many_processes, tokens, port, \
         leader, leader_status"
    );
    let message = changed("topology: independent", "topology: ring");
    assert!(message.starts_with("f.yaml:6:33: "), "{message}");
    assert!(message.contains("ring") && message.contains("independent") && message.contains("one-store"), "{message}");
    let message = changed("promise: lease, ", "");
    assert_eq!(message, "f.yaml:6:12: x-harness has no `promise`; expected lease or session");
    let message = changed("counter, none", "");
    assert!(message.contains("no `tokens`; expected the kinds of fencing tokens, the default first"), "{message}");
    let message = refusal(&with("").replace(FACTS, ""));
    assert!(message.contains("no x-harness beside the services: expected the facts"), "{message}");
}

#[test]
fn the_facts_that_tests_of_other_crates_use_are_those_of_the_built_in_files() {
    for (backend, text) in [
        ("redis", include_str!("../../../tests/shared/servers/redis.json")),
        ("redlock", include_str!("../../../tests/shared/servers/redlock.json")),
        ("redis-replicated", include_str!("../../../tests/shared/servers/redis-replicated.json")),
        ("redis-replicated-wait", include_str!("../../../tests/shared/servers/redis-replicated.json")),
        ("etcd", include_str!("../../../tests/shared/servers/etcd.json")),
        ("etcd-server-lock", include_str!("../../../tests/shared/servers/etcd-server-lock.json")),
    ] {
        let facts: ServerFacts = serde_json::from_str(text).unwrap();
        assert_eq!(ComposeFile::builtin(backend).unwrap().facts, facts, "{backend}");
    }
}

#[test]
fn every_member_of_etcd_starts_on_arm_too() {
    let members = BUILTIN.iter().flat_map(|(name, _)| ComposeFile::builtin(name).unwrap().services);
    let members: Vec<Service> = members.filter(|service| service.role == "etcd").collect();
    assert_eq!(members.len(), 6);
    for member in members {
        assert!(member.image.contains(":v3.4."), "from 3.5 on etcd supports ARM: {}", member.image);
        let named = member.environment.get("ETCD_UNSUPPORTED_ARCH").map(String::as_str);
        assert_eq!(named, Some("arm64"), "{}", member.name);
    }
}

#[test]
fn a_leader_is_found_by_one_command_and_not_by_two() {
    let led =
        |keys: &str| ComposeFile::parse(&with("").replace("port: 6379", &format!("port: 6379, {keys}")), "f.yaml");
    let file = led("leader: [is-leader]").unwrap();
    assert_eq!(file.services[0].leader, Some(LeaderTest::Succeeds(vec!["is-leader".into()])));
    assert!(file.facts.has_leader);
    let message = led("leader: [a], leader_status: [b]").unwrap_err().to_string();
    assert!(message.contains("expected either `leader` or `leader_status`"), "{message}");
}
