//! The words of `--nemesis`, one specification each: `KIND[:TARGET][:LINKS…][@WHEN][+DURATION]`.

use std::{str::FromStr, time::Duration};

use history::{FaultKind, Point, duration};

use crate::{
    driver,
    spec::{FaultSpec, FaultSpecError, Group, LinkSpec, OneWay, Peers, TargetSpec, Trigger},
};

/// Reads a comma-separated list of specifications; `none` is the empty list.
pub fn parse(text: &str) -> Result<Vec<FaultSpec>, FaultSpecError> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|word| word.trim().parse()).collect()
}

/// Targets, for error messages.
const TARGETS: &str = "holder, any-worker, any-lock-node, leader, majority, minority, halves, ring, bridge, isolate, \
    rolling, worker-1, redis-3, resource, …";

impl LinkSpec {
    const WORDS: [&'static str; 7] = ["in", "out", "one-way", "reject", "lock-nodes", "workers", "resource"];

    /// Reads one word; returns false for a word that is not in [`LinkSpec::WORDS`].
    fn take(&mut self, word: &str) -> bool {
        match word {
            "in" => self.way = Some(OneWay::In),
            "out" => self.way = Some(OneWay::Out),
            "one-way" => self.way = Some(OneWay::Either),
            "reject" => self.is_reject = true,
            "lock-nodes" => self.with.push(Peers::LockNodes),
            "workers" => self.with.push(Peers::Workers),
            "resource" => self.with.push(Peers::Resource),
            _ => return false,
        }
        true
    }
}

impl From<&str> for TargetSpec {
    fn from(word: &str) -> TargetSpec {
        match word {
            "holder" => TargetSpec::Holder,
            "any-worker" => TargetSpec::AnyWorker,
            "any-lock-node" => TargetSpec::AnyLockNode,
            "leader" => TargetSpec::Leader,
            _ => Group::ALL
                .into_iter()
                .find(|g| g.name() == word)
                .map_or_else(|| TargetSpec::Node(word.into()), TargetSpec::Group),
        }
    }
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(spec: &str) -> Result<FaultSpec, FaultSpecError> {
        let error = |word: &str, problem: String| FaultSpecError { spec: spec.into(), word: word.into(), problem };
        let duration = |word: &str| duration(word).map_err(|problem| error(word, problem));
        let (rest, lasting) = match spec.split_once('+') {
            Some((rest, word)) => (rest, Some(duration(word)?)),
            None => (spec, None),
        };
        if let Some(short) = lasting.filter(|d| *d < Duration::from_millis(50)) {
            return Err(error(
                &format!("{short:?}"),
                "too short: the engine needs 50ms between a fault and its heal".into(),
            ));
        }
        let (rest, trigger) = match rest.split_once('@') {
            None => (rest, Trigger::Random),
            Some((rest, word)) => match Point::ALL.iter().find(|p| p.name() == word) {
                Some(point) => (rest, Trigger::Point(*point)),
                None if word.starts_with(|c: char| c.is_ascii_digit()) => (rest, Trigger::At(duration(word)?)),
                None => {
                    let points: Vec<_> = Point::ALL.iter().map(|p| p.name()).collect();
                    return Err(error(
                        word,
                        format!("expected a time such as `5s`, or a point: {}", points.join(", ")),
                    ));
                }
            },
        };
        let mut words = rest.split(':');
        let word = words.next().unwrap_or_default();
        let kind = FaultKind::ALL.into_iter().find(|k| k.name() == word).ok_or_else(|| {
            if word == "none" {
                let problem = "cannot be combined with anything: write `none` alone, or leave it out";
                return error(word, problem.into());
            }
            let kinds: Vec<_> = FaultKind::ALL.iter().map(|k| k.name()).collect();
            error(word, format!("unknown fault; there are: {}", kinds.join(", ")))
        })?;
        let (mut target, mut links) = (None, LinkSpec::default());
        for (n, word) in words.enumerate() {
            // `resource` as the first word is the target.
            let has_way = links.way.is_some();
            let is_of_links = (n > 0 || word != "resource") && links.take(word);
            match word {
                "" => return Err(error(":", format!("expected a target after it: {TARGETS}"))),
                _ if is_of_links && !kind.is_of_links() => {
                    let problem = format!(
                        "a {kind} leaves links alone; only partition, flap, delay, loss and reorder accept this"
                    );
                    return Err(error(word, problem));
                }
                "reject" if kind != FaultKind::Partition => {
                    return Err(error(word, format!("a {kind} cuts nothing; only a partition rejects")));
                }
                "in" | "out" | "one-way" if has_way => {
                    return Err(error(word, "a second direction; expected one of: in, out, one-way".into()));
                }
                _ if is_of_links => {}
                _ if n == 0 => target = Some(TargetSpec::from(word)),
                _ => {
                    let problem =
                        format!("expected the target first, and then of links: {}", LinkSpec::WORDS.join(", "));
                    return Err(error(word, problem));
                }
            }
        }
        match &target {
            Some(TargetSpec::Group(group)) if group.is_of_links() && !kind.is_of_links() => {
                let problem = format!("only links can be cut like that; a {kind} hits: majority, minority, rolling");
                return Err(error(group.name(), problem));
            }
            Some(TargetSpec::Group(_) | TargetSpec::Leader) if matches!(trigger, Trigger::Point(_)) => {
                let (_, word) = spec.split_once('@').unwrap_or_default();
                let word = word.split('+').next().unwrap_or_default();
                return Err(error(word, "only workers come to points; expected a time such as `5s`".into()));
            }
            Some(TargetSpec::Holder) if matches!(trigger, Trigger::Point(_)) => {
                let problem = "a fault at a point hits a worker when its client comes there, whoever holds the lock; \
                    leave the target out (a worker is drawn), or name a worker: `worker-1`";
                return Err(error("holder", problem.into()));
            }
            // Without a target, this is the default of many kinds: a worker is drawn in its place.
            Some(TargetSpec::AnyLockNode) if matches!(trigger, Trigger::Point(_)) => {
                let problem = "only workers come to points; leave the target out (a worker is drawn), or name a \
                    worker: `worker-1`";
                return Err(error("any-lock-node", problem.into()));
            }
            _ => {}
        }
        let target = target.unwrap_or_else(|| driver::default_target(kind));
        Ok(FaultSpec { kind, target, links, trigger, lasting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_part_by_part() {
        let spec = |text: &str| text.parse::<FaultSpec>().unwrap();
        let plain = spec("pause");
        assert_eq!(plain, {
            let links = LinkSpec::default();
            FaultSpec {
                kind: FaultKind::Pause,
                target: TargetSpec::Holder,
                links,
                trigger: Trigger::Random,
                lasting: None,
            }
        });
        let placed = spec("pause@before-write+5s");
        assert_eq!(placed.trigger, Trigger::Point(Point::BeforeWrite));
        assert_eq!(placed.lasting, Some(Duration::from_secs(5)));
        let aimed = spec("kill:worker-2@3s");
        assert_eq!(
            (aimed.target, aimed.trigger),
            (TargetSpec::Node("worker-2".into()), Trigger::At(Duration::from_secs(3)))
        );
        assert_eq!(spec("kill:any-worker").target, TargetSpec::AnyWorker);
        let (loss, reorder) = (spec("loss"), spec("reorder:worker-1"));
        assert_eq!((loss.kind, loss.target), (FaultKind::Loss, TargetSpec::AnyLockNode));
        assert_eq!((reorder.kind, reorder.target), (FaultKind::Reorder, TargetSpec::Node("worker-1".into())));
        assert_eq!(spec("clock:leader").target, TargetSpec::Leader);
        assert_eq!(spec("kill:majority@5s").target, TargetSpec::Group(Group::Majority));
        assert_eq!(spec("delay:resource+800ms").target, TargetSpec::Node("resource".into()));
        let cut = spec("partition:worker-1:resource:out:reject@5s+3s");
        let links = LinkSpec { way: Some(OneWay::Out), with: vec![Peers::Resource], is_reject: true };
        assert_eq!((cut.target, cut.links), (TargetSpec::Node("worker-1".into()), links));
        let any = spec("partition:in");
        assert_eq!((any.target, any.links.way), (TargetSpec::AnyLockNode, Some(OneWay::In)));
        assert_eq!(parse("none").unwrap(), []);
        assert_eq!(parse("pause, kill").unwrap().len(), 2);
    }

    #[test]
    fn a_specification_is_written_as_it_was_read() {
        for word in [
            "pause:holder",
            "kill:majority@5s+1s",
            "delay:worker-1@before-write+300ms",
            "partition:worker-1:resource:out:reject@5s",
            "loss:any-lock-node:workers:lock-nodes:one-way",
        ] {
            assert_eq!(word.parse::<FaultSpec>().unwrap().written(), word);
        }
    }

    #[test]
    fn none_is_not_combined_with_other_faults() {
        for text in ["none,pause", "pause,none"] {
            let refused = parse(text).unwrap_err();
            assert!(refused.problem.contains("write `none` alone"), "{refused}");
        }
    }

    #[test]
    fn a_mistyped_point_is_answered_with_the_list_of_points() {
        let problem = parse("pause@before-wrte").unwrap_err().problem;
        assert!(problem.contains("or a point: ") && problem.contains("before-write"), "{problem}");
    }

    #[test]
    fn an_error_points_at_the_offending_word() {
        for (text, word) in [
            ("puase", "puase"),
            ("pause@before-wrte", "before-wrte"),
            ("pause+5", "5"),
            ("pause@5x", "5x"),
            ("pause:", ":"),
            ("pause,", ""),
            ("pause+1ms", "1ms"),
            ("pause+49ms", "49ms"),
            ("pause:worker-1:in", "in"),
            ("delay:redis-1:reject", "reject"),
            ("flap:redis-1:reject", "reject"),
            ("partition:redis-1:redis-2", "redis-2"),
            ("partition:redis-1::in", ":"),
            ("kill:ring", "ring"),
            ("pause:leader@before-write+5s", "before-write"),
            ("partition:halves@after-read", "after-read"),
            ("pause:holder@before-write", "holder"),
            ("pause:any-lock-node@before-write", "any-lock-node"),
            ("loss:any-lock-node@before-write+1s", "any-lock-node"),
            ("partition:redis-1:in:out", "out"),
            ("partition:redis-1:out:workers:out", "out"),
            ("partition:in:one-way", "one-way"),
            ("pause+18446744073709551615s", "18446744073709551615s"),
            ("pause@101years", "101years"),
        ] {
            assert_eq!(parse(text).unwrap_err().word, word, "{text}");
        }
    }
}
