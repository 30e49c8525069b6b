use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::time::pause;

use super::*;

const NOW_S: i64 = 1_000_000;
/// Time that a removal takes.
const SLOW: Duration = Duration::from_millis(100);

fn thing(run: &str, id: &str, age_s: i64) -> Object {
    Object {
        kind: Kind::Container,
        id: id.to_owned(),
        run: run.to_owned(),
        kept: false,
        created_s: NOW_S - age_s,
        agent: Agent::No,
    }
}

fn ids(objects: &[Object], kept: bool) -> Vec<String> {
    dead(objects.to_vec(), NOW_S, kept).into_iter().map(|object| object.id).collect()
}

#[test]
fn a_run_whose_agent_runs_keeps_everything_however_old() {
    let agent = Object { agent: Agent::Runs, ..thing("a", "agent", 90_000) };
    assert!(ids(&[agent, thing("a", "server", 90_000)], false).is_empty());
}

#[test]
fn a_run_without_agent_is_dead_once_its_newest_object_is_ten_seconds_old() {
    let objects = |newest| [thing("a", "old", 500), Object { kind: Kind::Network, ..thing("a", "new", newest) }];
    assert!(ids(&objects(0), false).is_empty());
    assert!(ids(&objects(9), false).is_empty());
    assert_eq!(ids(&objects(10), false), ["old", "new"]);
    // An object of the future: the engine's clock was set back.
    assert!(ids(&objects(-50), false).is_empty());
}

#[test]
fn a_run_whose_agent_waits_for_its_binary_may_be_starting_for_longer() {
    let objects =
        |age_s| [thing("a", "network", age_s), Object { agent: Agent::IsCreated, ..thing("a", "agent", age_s) }];
    assert!(ids(&objects(11), false).is_empty());
    assert!(ids(&objects(STARTING_S - 1), false).is_empty());
    assert_eq!(ids(&objects(STARTING_S), false), ["network", "agent"]);
}

#[test]
fn a_run_without_a_container_may_be_starting_for_longer() {
    let objects = |age_s| {
        let made = |kind, id| Object { kind, ..thing("a", id, age_s) };
        [made(Kind::Network, "network"), made(Kind::Volume, "volume")]
    };
    assert!(ids(&objects(STARTING_S - 1), false).is_empty());
    assert_eq!(ids(&objects(STARTING_S), false), ["network", "volume"]);
}

#[test]
fn runs_do_not_keep_each_other_alive() {
    let agent = Object { agent: Agent::Runs, ..thing("a", "agent", 50) };
    assert_eq!(ids(&[agent, thing("b", "left", 50), thing("c", "young", 1)], false), ["left"]);
}

#[test]
fn runs_that_are_left_alone_are_named() {
    let agent = Object { agent: Agent::Runs, ..thing("a", "agent", 50) };
    let objects = [agent, thing("b", "left", 50), thing("c", "young", 1)];
    assert_eq!(alive(&objects, NOW_S), BTreeSet::from(["a".to_owned(), "c".to_owned()]));
}

#[test]
fn what_is_kept_is_removed_only_on_request_and_never_from_a_run_that_is_alive() {
    let kept = |run, id| Object { kept: true, ..thing(run, id, 50) };
    let agent = Object { agent: Agent::Runs, ..thing("b", "agent", 50) };
    let objects = [kept("a", "a-server"), thing("a", "a-worker", 50), kept("b", "b-server"), agent];
    assert_eq!(ids(&objects, false), ["a-worker"]);
    assert_eq!(ids(&objects, true), ["a-server"]);
}

#[tokio::test]
async fn containers_of_one_run_are_removed_one_after_the_other_and_runs_do_not_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let gone = crate::fake_engine::DONE;
    let at = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&at);
    let answer = move |request: &str| {
        let container = request.split(['/', '?']).nth(3).unwrap_or_default().to_owned();
        seen.lock().unwrap().push((container, Instant::now()));
        (SLOW, gone.to_owned())
    };
    let engine = crate::fake_engine::start(&dir, answer).await;
    let objects = ["a1", "a2", "a3", "b1"].map(|id| thing(&id[..1], id, 500)).to_vec();
    let swept = remove(&engine, objects).await.unwrap();
    assert_eq!((swept.containers, swept.runs.len()), (4, 2));
    let at: BTreeMap<_, _> = at.lock().unwrap().drain(..).collect();
    let between = |from: &str, to: &str| at[to].saturating_duration_since(at[from]);
    assert!(between("a1", "a2") >= SLOW && between("a2", "a3") >= SLOW, "{at:?}");
    assert!(at["b1"] < at["a2"], "{at:?}");
}

#[test]
fn the_agent_is_removed_after_all_other_containers_of_its_run() {
    let agent = |run| Object { agent: Agent::Runs, ..thing(run, "agent", 50) };
    let objects = vec![agent("a"), thing("a", "server", 50), agent("b"), thing("b", "worker", 50)];
    let ids = |objects: &Vec<Object>| objects.iter().map(|object| object.id.clone()).collect::<Vec<_>>();
    let in_turn = in_turn(Kind::Container, objects);
    assert_eq!(in_turn.iter().map(ids).collect::<Vec<_>>(), [["server", "agent"], ["worker", "agent"]]);
}

#[tokio::test]
async fn only_an_agent_that_has_not_ended_keeps_its_run_alive() {
    for (state, expected) in [
        ("running", Agent::Runs),
        ("paused", Agent::Runs),
        ("created", Agent::IsCreated),
        ("exited", Agent::No),
        ("dead", Agent::No),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // A server may have the role of the agent.
        let containers = format!("[{},{}]", container("redis-1", state), container("agent", state));
        let answer = move |request: &str| (Duration::ZERO, listed(request, &containers));
        let engine = crate::fake_engine::start(&dir, answer).await;
        let found = list(&engine, None).await.unwrap();
        let agents: Vec<_> = found.iter().map(|object| (object.id.as_str(), object.agent)).collect();
        assert_eq!(agents, [("redis-1", Agent::No), ("agent", expected)], "{state}");
    }
}

/// A container with the agent's role, as the engine lists it.
fn container(node: &str, state: &str) -> String {
    let labels = format!(r#"{{"harness.run":"a","harness.role":"agent","harness.node":"{node}"}}"#);
    format!(r#"{{"Id":"{node}","State":"{state}","Created":0,"Labels":{labels}}}"#)
}

/// The answer of an engine with these containers to a request for a list.
fn listed(request: &str, containers: &str) -> String {
    match request {
        r if r.starts_with("GET /v1.41/containers/json") => crate::fake_engine::json(containers),
        r if r.starts_with("GET /v1.41/networks") => crate::fake_engine::json("[]"),
        _ => crate::fake_engine::json(r#"{"Volumes":[],"Warnings":[]}"#),
    }
}

#[tokio::test]
async fn an_object_that_appears_late_is_taken_down_with_its_anonymous_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (looks, removals) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&removals);
    let answer = move |request: &str| {
        if request.starts_with("DELETE ") {
            seen.lock().unwrap().push(request.to_owned());
            return crate::fake_engine::DONE.to_owned();
        }
        let is_look = request.starts_with("GET /v1.41/containers/json");
        // The engine finishes two requests late: only the second and the fourth look find a container.
        let is_late = is_look && [1, 3].contains(&looks.fetch_add(1, Ordering::Relaxed));
        let containers = if is_late { format!("[{}]", container("redis-1", "created")) } else { "[]".to_owned() };
        listed(request, &containers)
    };
    let engine = crate::fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
    let swept = take_down_by_looks(&engine, "a", Duration::ZERO).await.unwrap();
    assert_eq!(swept.containers, 2);
    let removals = removals.lock().unwrap();
    assert_eq!(removals.len(), 2, "{removals:?}");
    for removal in removals.as_slice() {
        assert!(removal.starts_with("DELETE /v1.41/containers/redis-1?") && removal.contains("v=true"), "{removal}");
    }
}

#[tokio::test]
async fn a_volume_in_use_is_looked_for_until_the_late_container_is_removed() {
    const VOLUME: &str = r#"{"Volumes":[{"Name":"binary","Driver":"local","Mountpoint":"/v",
        "Labels":{"harness.run":"a"},"Options":{},"Scope":"local"}],"Warnings":[]}"#;
    let dir = tempfile::tempdir().unwrap();
    let looks = Arc::new(AtomicUsize::new(0));
    let (seen, is_used, is_there) = (Arc::clone(&looks), AtomicBool::new(true), AtomicBool::new(true));
    let answer = move |request: &str| {
        let is_of_volume = request.contains("/volumes");
        if request.starts_with("DELETE ") {
            if is_of_volume && is_used.load(Ordering::Relaxed) {
                return crate::fake_engine::REFUSED.to_owned();
            }
            let gone = if is_of_volume { &is_there } else { &is_used };
            gone.store(false, Ordering::Relaxed);
            return crate::fake_engine::DONE.to_owned();
        }
        if is_of_volume && is_there.load(Ordering::Relaxed) {
            return crate::fake_engine::json(VOLUME);
        }
        // The container, whose creation had begun, appears in the third look.
        let is_look = request.starts_with("GET /v1.41/containers/json");
        let is_late = is_look && seen.fetch_add(1, Ordering::Relaxed) < 2;
        let is_listed = !is_late && is_used.load(Ordering::Relaxed);
        listed(request, &if is_listed { format!("[{}]", container("redis-1", "created")) } else { "[]".to_owned() })
    };
    let engine = crate::fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
    pause();
    let swept = take_down_by_looks(&engine, "a", Duration::ZERO).await.unwrap();
    let expected = Swept { containers: 1, volumes: 1, runs: BTreeSet::from(["a".to_owned()]), ..Swept::default() };
    assert_eq!((swept, looks.load(Ordering::Relaxed)), (expected, 5), "two looks find nothing at the end");
}

#[tokio::test]
async fn a_network_that_the_engine_holds_fast_delays_no_later_run() {
    let dir = tempfile::tempdir().unwrap();
    let refused = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let answer = move |request: &str| match request.starts_with("DELETE /v1.41/networks/") {
        true => refused.to_owned(),
        false => crate::fake_engine::json(r#"{"Id":"left","Containers":{}}"#),
    };
    let engine = crate::fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
    let network = Object { kind: Kind::Network, ..thing("a", "left", 500) };
    let began = Instant::now();
    let swept = remove(&engine, vec![network]).await.unwrap();
    assert_eq!(swept.stuck, BTreeSet::from(["left".to_owned()]));
    assert!(swept.stuck_networks().unwrap().ends_with("until it restarts: left"));
    assert!(began.elapsed() < ENDPOINTS_GONE_WITHIN, "{:?}", began.elapsed());
}
