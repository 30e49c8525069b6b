//! What a user asks of `--nemesis`, one word each: `KIND[:TARGET][:LINKS…][@WHEN][+DURATION]`.

use std::{str::FromStr, time::Duration};

use history::{FaultKind, NodeName, Point};

use crate::group::Group;

/// Whom a wish means to hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    /// Whoever holds the key.
    Holder,
    /// A worker that is drawn from the seed.
    AnyWorker,
    /// A lock node that is drawn from the seed.
    AnyLockNode,
    /// Whoever leads the lock nodes.
    Leader,
    /// Several lock nodes at once, or all of them one after the other.
    Group(Group),
    /// A node by name.
    Node(NodeName),
}

/// Which way a fault of links is asked for, as its target sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneWay {
    /// What is sent to the target.
    In,
    /// What the target sends.
    Out,
    /// One of the two, drawn from the seed.
    Either,
}

/// Nodes at the other end of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// All lock nodes.
    LockNodes,
    /// All workers.
    Workers,
    /// The resource.
    Resource,
}

/// What a wish says about the links of its target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Which way; both, if absent.
    pub way: Option<OneWay>,
    /// With whom; everybody, if empty.
    pub with: Vec<Peers>,
    /// Whether the sender of a packet that is cut is told.
    pub is_reject: bool,
}

impl Asked {
    const WORDS: [&'static str; 7] = ["in", "out", "one-way", "reject", "lock-nodes", "workers", "resource"];

    /// Takes one more word; false, if it is none of [`Asked::WORDS`].
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

/// When a wish is to come true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Again and again, at random from the seed.
    Random,
    /// Once, so long after the start.
    At(Duration),
    /// Once, at a protocol point.
    Point(Point),
}

/// One word of `--nemesis`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which fault.
    pub kind: FaultKind,
    /// Whom it hits.
    pub whom: Whom,
    /// Of a fault of links: which of them.
    pub links: Asked,
    /// When.
    pub moment: Moment,
    /// How long it lasts; drawn, if absent.
    pub lasting: Option<Duration>,
}

/// A word of `--nemesis` that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--nemesis: `{word}` in `{wish}`: {problem}")]
pub struct WishError {
    /// The whole wish.
    pub wish: String,
    /// The offending part.
    pub word: String,
    /// What was expected.
    pub problem: String,
}

/// Reads a comma-separated list of wishes; `none` is the empty list.
pub fn parse(text: &str) -> Result<Vec<Wish>, WishError> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|word| word.trim().parse()).collect()
}

impl Wish {
    /// Whether it stands at a protocol point: it shows that something is possible, not how probable it is.
    pub fn is_placed(&self) -> bool {
        matches!(self.moment, Moment::Point(_))
    }
}

/// What may be a target.
const TARGETS: &str = "holder, any-worker, any-lock-node, leader, majority, minority, halves, ring, bridge, isolate, rolling, worker-1, \
    redis-3, resource, …";

impl From<&str> for Whom {
    fn from(word: &str) -> Whom {
        match word {
            "holder" => Whom::Holder,
            "any-worker" => Whom::AnyWorker,
            "any-lock-node" => Whom::AnyLockNode,
            "leader" => Whom::Leader,
            _ => Group::ALL.into_iter().find(|g| g.name() == word).map_or_else(|| Whom::Node(word.into()), Whom::Group),
        }
    }
}

impl FromStr for Wish {
    type Err = WishError;

    fn from_str(wish: &str) -> Result<Wish, WishError> {
        let error = |word: &str, problem: String| WishError { wish: wish.into(), word: word.into(), problem };
        let duration = |word: &str| {
            humantime::parse_duration(word)
                .map_err(|e| error(word, format!("not a duration such as `5s` or `300ms`: {e}")))
        };
        let (rest, lasting) = match wish.split_once('+') {
            Some((rest, word)) => (rest, Some(duration(word)?)),
            None => (wish, None),
        };
        if let Some(short) = lasting.filter(|d| *d < Duration::from_millis(50)) {
            return Err(error(
                &format!("{short:?}"),
                "too short: the engine needs 50ms between a fault and its heal".into(),
            ));
        }
        let (rest, moment) = match rest.split_once('@') {
            None => (rest, Moment::Random),
            Some((rest, word)) => match Point::ALL.iter().find(|p| p.name() == word) {
                Some(point) => (rest, Moment::Point(*point)),
                None if word.starts_with(|c: char| c.is_ascii_digit()) => (rest, Moment::At(duration(word)?)),
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
            let kinds: Vec<_> = FaultKind::ALL.iter().map(|k| k.name()).collect();
            let problem = format!("unknown fault; there are: {}; `none` stands alone", kinds.join(", "));
            error(word, problem)
        })?;
        let (mut whom, mut links) = (None, Asked::default());
        for (n, word) in words.enumerate() {
            // As the first word `resource` is the target.
            let is_of_links = (n > 0 || word != "resource") && links.take(word);
            match word {
                "" => return Err(error(":", format!("expected a target after it: {TARGETS}"))),
                _ if is_of_links && !kind.is_of_links() => {
                    let problem = format!("a {kind} leaves links alone; partition, delay, loss and reorder have this");
                    return Err(error(word, problem));
                }
                "reject" if kind != FaultKind::Partition => {
                    return Err(error(word, format!("a {kind} cuts nothing; only a partition rejects")));
                }
                _ if is_of_links => {}
                _ if n == 0 => whom = Some(Whom::from(word)),
                _ => {
                    let problem = format!("expected the target first, and then of links: {}", Asked::WORDS.join(", "));
                    return Err(error(word, problem));
                }
            }
        }
        match &whom {
            Some(Whom::Group(group)) if group.is_of_links() && !kind.is_of_links() => {
                let problem = format!("only links can be cut like that; a {kind} hits: majority, minority, rolling");
                return Err(error(group.name(), problem));
            }
            Some(Whom::Group(_) | Whom::Leader) if matches!(moment, Moment::Point(_)) => {
                let (_, word) = wish.split_once('@').unwrap_or_default();
                let word = word.split('+').next().unwrap_or_default();
                return Err(error(word, "only workers come to points; expected a time such as `5s`".into()));
            }
            _ => {}
        }
        let usual = if kind.holds_up() || kind == FaultKind::Kill { Whom::Holder } else { Whom::AnyLockNode };
        Ok(Wish { kind, whom: whom.unwrap_or(usual), links, moment, lasting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_part_by_part() {
        let wish = |text: &str| text.parse::<Wish>().unwrap();
        let plain = wish("pause");
        assert_eq!(plain, {
            let links = Asked::default();
            Wish { kind: FaultKind::Pause, whom: Whom::Holder, links, moment: Moment::Random, lasting: None }
        });
        let placed = wish("pause@before-write+5s");
        assert_eq!(placed.moment, Moment::Point(Point::BeforeWrite));
        assert_eq!(placed.lasting, Some(Duration::from_secs(5)));
        let aimed = wish("kill:worker-2@3s");
        assert_eq!((aimed.whom, aimed.moment), (Whom::Node("worker-2".into()), Moment::At(Duration::from_secs(3))));
        assert_eq!(wish("kill:any-worker").whom, Whom::AnyWorker);
        let (loss, reorder) = (wish("loss"), wish("reorder:worker-1"));
        assert_eq!((loss.kind, loss.whom), (FaultKind::Loss, Whom::AnyLockNode));
        assert_eq!((reorder.kind, reorder.whom), (FaultKind::Reorder, Whom::Node("worker-1".into())));
        assert_eq!(wish("clock:leader").whom, Whom::Leader);
        assert_eq!(wish("kill:majority@5s").whom, Whom::Group(Group::Majority));
        assert_eq!(wish("delay:resource+800ms").whom, Whom::Node("resource".into()));
        let cut = wish("partition:worker-1:resource:out:reject@5s+3s");
        let links = Asked { way: Some(OneWay::Out), with: vec![Peers::Resource], is_reject: true };
        assert_eq!((cut.whom, cut.links), (Whom::Node("worker-1".into()), links));
        let any = wish("partition:in");
        assert_eq!((any.whom, any.links.way), (Whom::AnyLockNode, Some(OneWay::In)));
        assert_eq!(parse("none").unwrap(), []);
        assert_eq!(parse("pause, kill").unwrap().len(), 2);
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
            ("pause:worker-1:in", "in"),
            ("delay:redis-1:reject", "reject"),
            ("partition:redis-1:redis-2", "redis-2"),
            ("partition:redis-1::in", ":"),
            ("kill:ring", "ring"),
            ("pause:leader@before-write+5s", "before-write"),
            ("partition:halves@after-read", "after-read"),
        ] {
            assert_eq!(parse(text).unwrap_err().word, word, "{text}");
        }
    }
}
