//! What a user asks of `--nemesis`, one word each: `KIND[:TARGET][@WHEN][+DURATION]`.

use std::{str::FromStr, time::Duration};

use history::{FaultKind, NodeName, Point};

/// Whom a wish means to hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    /// Whoever holds the key.
    Holder,
    /// A worker that is drawn from the seed.
    AnyWorker,
    /// A lock node that is drawn from the seed.
    AnyLockNode,
    /// A node by name.
    Node(NodeName),
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
        let (word, whom) = match rest.split_once(':') {
            None => (rest, None),
            Some((kind, "holder")) => (kind, Some(Whom::Holder)),
            Some((kind, "any-worker")) => (kind, Some(Whom::AnyWorker)),
            Some((kind, "any-lock-node")) => (kind, Some(Whom::AnyLockNode)),
            Some((_, "")) => {
                let expected = "expected a target after it: holder, any-worker, any-lock-node, worker-1, redis-3, …";
                return Err(error(":", expected.into()));
            }
            Some((kind, node)) => (kind, Some(Whom::Node(node.into()))),
        };
        let kind = FaultKind::ALL.into_iter().find(|k| k.name() == word).ok_or_else(|| {
            let kinds: Vec<_> = FaultKind::ALL.iter().map(|k| k.name()).collect();
            let problem = format!("unknown fault; there are: {}; `none` stands alone", kinds.join(", "));
            error(word, problem)
        })?;
        let usual = if kind.holds_up() || kind == FaultKind::Kill { Whom::Holder } else { Whom::AnyLockNode };
        Ok(Wish { kind, whom: whom.unwrap_or(usual), moment, lasting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_part_by_part() {
        let wish = |text: &str| text.parse::<Wish>().unwrap();
        let plain = wish("pause");
        assert_eq!(plain, Wish { kind: FaultKind::Pause, whom: Whom::Holder, moment: Moment::Random, lasting: None });
        let placed = wish("pause@before-write+5s");
        assert_eq!(placed.moment, Moment::Point(Point::BeforeWrite));
        assert_eq!(placed.lasting, Some(Duration::from_secs(5)));
        let aimed = wish("kill:worker-2@3s");
        assert_eq!((aimed.whom, aimed.moment), (Whom::Node("worker-2".into()), Moment::At(Duration::from_secs(3))));
        assert_eq!(wish("kill:any-worker").whom, Whom::AnyWorker);
        let (loss, reorder) = (wish("loss"), wish("reorder:worker-1"));
        assert_eq!((loss.kind, loss.whom), (FaultKind::Loss, Whom::AnyLockNode));
        assert_eq!((reorder.kind, reorder.whom), (FaultKind::Reorder, Whom::Node("worker-1".into())));
        assert_eq!((wish("stop").whom, wish("slow").whom), (Whom::Holder, Whom::Holder));
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
        ] {
            assert_eq!(parse(text).unwrap_err().word, word, "{text}");
        }
    }
}
