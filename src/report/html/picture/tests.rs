use std::{path::PathBuf, time::Duration};

use super::*;
use crate::{judge::judge, timeline::read};

fn timeline(name: &str) -> Timeline {
    let corpus = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus"));
    let path = corpus.join(format!("{name}.jsonl"));
    read(&path, &judge(&path).unwrap().verdicts).unwrap()
}

#[test]
fn the_picture_of_a_pause_names_both_holders_and_the_refused_write() {
    let timeline = timeline("kleppmann-pause");
    let svg = picture(&timeline, &timeline.windows[0]).unwrap();
    for part in ["worker-1", "worker-2", "has the lock, token 41", "frozen 5.00 s", "stale write with token 41"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert!(svg.contains("fence: refused · without fence: admitted"), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark") && !svg.contains("http://www.w3.org/1999"));
}

#[test]
fn a_write_after_the_own_release_is_no_write_after_the_lease() {
    let timeline = timeline("used-after-release");
    let svg = picture(&timeline, &timeline.windows[0]).unwrap();
    for part in [">it has released the lock<", "worker-1 has released the lock and still acts: 99 ms"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert!(!svg.contains("its lease has ended") && !svg.contains("does not know it"), "{svg}");
}

#[test]
fn a_write_inside_the_own_promise_is_not_called_stale() {
    let mut timeline = timeline("kleppmann-pause");
    let hold = &mut timeline.holds[0];
    // The lock service gave the key away inside the promise, and the holder wrote before the promise ended.
    hold.promise_end = history::Stamp(16_000_000_000);
    let stale = hold.acts.iter().find(|act| act.kind == RequestKind::Write).unwrap();
    let mut early = Act { at: history::Stamp(15_000_000_000), ..stale.clone() };
    early.decisions.iter_mut().for_each(|decision| decision.admitted = true);
    hold.acts.insert(1, early);
    let svg = picture(&timeline, &timeline.windows[0]).unwrap();
    assert!(svg.contains("fence: refused · without fence: admitted"), "{svg}");
    assert_eq!(svg.matches("class=\"sent late\"").count(), 1, "{svg}");
}

/// An instant inside the lease of a hold.
fn soon(hold: &Hold) -> Option<history::Stamp> {
    Some(hold.acquired.plus(Duration::from_millis(100)))
}

#[test]
fn a_write_after_a_kill_or_a_noticed_loss_is_no_write_after_the_lease() {
    let of = |end: fn(&mut Hold)| {
        let mut timeline = timeline("kleppmann-pause");
        let first = timeline.windows[0].holds[0];
        end(timeline.holds.iter_mut().find(|hold| hold.id == first).unwrap());
        picture(&timeline, &timeline.windows[0]).unwrap()
    };
    // The client releases the hold after its stale write.
    let of_lease = of(|_| ());
    assert!(of_lease.contains(">its lease has ended<") && of_lease.contains("does not know it: "), "{of_lease}");
    let killed = of(|hold| hold.killed = soon(hold));
    let lost = of(|hold| hold.lost = soon(hold));
    for (svg, end, told) in [
        (killed, ">it was killed<", "worker-1 was killed, and its request still arrives: "),
        (lost, ">it has noticed the loss<", "worker-1 has noticed its loss and still acts: "),
    ] {
        assert!(svg.contains(end) && svg.contains(told), "{end}: {svg}");
        assert!(!svg.contains("its lease has ended") && !svg.contains("does not know it"), "{svg}");
    }
}

#[test]
fn a_fault_that_was_not_proved_is_not_called_a_freeze() {
    let mut timeline = timeline("kleppmann-pause");
    let why = Some("expected a running process; there was none".to_owned());
    (timeline.faults[0].proved, timeline.faults[0].unproved) = (None, why);
    let drawn = |timeline: &Timeline| picture(timeline, &timeline.windows[0]).unwrap();
    let svg = drawn(&timeline);
    assert!(svg.contains(">pause, not proved<") && !svg.contains(">frozen "), "{svg}");
    let fault = &mut timeline.faults[0];
    (fault.injected, fault.heal_requested, fault.healed) = (None, None, None);
    let svg = drawn(&timeline);
    assert!(!svg.contains("class=\"frozen\"") && !svg.contains("not proved"), "it was never on: {svg}");
}

#[test]
fn a_fault_that_missed_its_own_hold_is_drawn() {
    let mut timeline = timeline("kleppmann-pause");
    timeline.faults[0].is_missed = true;
    let svg = picture(&timeline, &timeline.windows[0]).unwrap();
    assert!(svg.contains("frozen 5.00 s"), "{svg}");
}

#[test]
fn a_fault_of_another_worker_is_no_fault_of_the_servers() {
    for (node, is_drawn) in [("redis-1", true), ("resource", true), ("worker-3", false)] {
        let mut timeline = timeline("kleppmann-pause");
        let other = FaultSpan { node: node.into(), ..timeline.faults[0].clone() };
        timeline.faults.push(other);
        let svg = picture(&timeline, &timeline.windows[0]).unwrap();
        assert_eq!(svg.contains(&format!(">pause on {node}<")), is_drawn, "{node}: {svg}");
    }
}

#[test]
fn a_hold_of_another_key_is_no_later_hold() {
    for (key, is_told) in [("k0", true), ("k1", false)] {
        let mut timeline = timeline("kleppmann-pause");
        let second = timeline.hold(timeline.windows[0].holds[1]).unwrap();
        let later = Hold { id: history::HoldId(2_000_000_001), key: key.into(), ..second.clone() };
        timeline.holds.push(later);
        let svg = picture(&timeline, &timeline.windows[0]).unwrap();
        assert_eq!(svg.contains("1 later hold"), is_told, "{key}: {svg}");
    }
}

#[test]
fn text_of_a_run_is_no_markup_in_a_picture() {
    let mut timeline = timeline("kleppmann-pause");
    timeline.lanes[0].name = "<b>\"&'\u{1b}".to_owned();
    timeline.windows[0].headline = "</title><script>".to_owned();
    let svg = picture(&timeline, &timeline.windows[0]).unwrap();
    assert!(svg.contains("&lt;b&gt;&quot;&amp;&#39; "), "{svg}");
    assert!(!svg.contains("<script") && !svg.contains("<b>"), "{svg}");
}

#[test]
fn a_client_with_a_long_name_has_a_picture() {
    for length in [60, 120, 1_000] {
        let mut timeline = timeline("kleppmann-pause");
        timeline.lanes.iter_mut().for_each(|lane| lane.name = "n".repeat(length));
        assert!(picture(&timeline, &timeline.windows[0]).unwrap().ends_with("</svg>\n"));
    }
}

#[test]
fn every_window_of_the_corpus_has_a_picture_or_lacks_a_hold() {
    let mut seen = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus")).unwrap() {
        let path = entry.unwrap().path();
        let Some(judged) = judge(&path).ok().filter(|_| path.extension().is_some_and(|e| e == "jsonl")) else {
            continue;
        };
        let timeline = read(&path, &judged.verdicts).unwrap();
        for window in &timeline.windows {
            let has_both = window.holds.iter().all(|id| timeline.hold(*id).is_some());
            let svg = picture(&timeline, window);
            assert_eq!(svg.is_some(), has_both, "{}", path.display());
            assert!(svg.is_none_or(|svg| !svg.contains("NaN")), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}
