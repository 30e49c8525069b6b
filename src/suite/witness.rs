//! Activation witnesses: what must be seen in a history for a run to say anything about a claim.
//!
//! A witness is a clause over the verdicts (`writes.fence.late>=1`, as behind `--expect`), or one of the words of [`Witness`].

use std::str::FromStr;

use history::{FaultKind, NodeName};

use crate::{exit::Unusable, expect::Expectation};

/// What must be seen.
#[derive(Debug, Clone, PartialEq)]
pub enum Witness {
    /// A clause over the verdicts.
    Figure(Expectation, String),
    /// `write-before-stale-arrival`: a write arrived under a hold, after a write under a hold that was acquired later.
    WriteBeforeStaleArrival,
    /// `stale-write-tried`: a write arrived under a hold after another client had acquired.
    StaleWriteTried,
    /// `granted-again:redis-3`: the node granted a second hold less than a lease after the attempt of the first one was sent, which had not been
    /// released by then; a fault of the node is proved between.
    GrantedAgain(NodeName),
    /// `granted-and-struck:redis-3`: the node granted a hold and was struck, proved, before another client's attempt came to an end there.
    Struck(NodeName),
    /// `tokens-behind`: a hold has a smaller token than one that was acquired before it: the counters that it was made from are behind.
    TokensBehind,
    /// `quorums:1,2,3/3,4,5`: holds were granted by exactly these lock nodes, by their place in the plan.
    Quorums(Vec<Vec<usize>>),
    /// `refused-by-validity:after-send`: a majority granted an attempt whose client was frozen at this point, and it was refused by validity.
    RefusedByValidity(history::Point),
    /// `frozen-in-queue`: a client stood in the queue and was frozen, from a lease (and a second, for servers look at leases twice a second) before
    /// the hold ahead of it was released until after that.
    FrozenInQueue,
    /// `flushed:redis-3`: the node was killed, each time after it had synced all that it had answered before it was asked, by its own word; and it
    /// had granted a hold by then.
    Flushed(NodeName),
    /// `restored:redis-3`: the node was killed, and granted a hold afterwards whose token no counter of that majority could have come to that had begun
    /// with nothing then.
    Restored(NodeName),
    /// `write-after-deadline`: a write arrived when the deadline of its client was over.
    WriteAfterDeadline,
    /// `write-after-restart`: after a restart of the resource a write arrived under a hold, whose token is smaller than one registered before.
    WriteAfterRestart,
    /// `renewal-failed`: a renewal was not done.
    RenewalFailed,
    /// `healed:clock`: every fault of that kind is proved healed, and there is one.
    Healed(FaultKind),
    /// `proved:clock`: every fault of that kind is proved, and there is one.
    Proved(FaultKind),
}

const WORDS: &str = "write-before-stale-arrival, stale-write-tried, granted-again:NODE, granted-and-struck:NODE, tokens-behind, \
    quorums:1,2,3/3,4,5, refused-by-validity:POINT, frozen-in-queue, flushed:NODE, restored:NODE, write-after-deadline, write-after-restart, renewal-failed, proved:KIND, healed:KIND, or a clause such as `lock.windows>=1`";

impl FromStr for Witness {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Witness, Unusable> {
        let wrong = || Unusable(format!("witness `{text}`: expected one of: {WORDS}"));
        if text.contains(['=', '<', '>']) {
            return Ok(Witness::Figure(text.parse()?, text.to_owned()));
        }
        let (word, of) = text.split_once(':').map_or((text, None), |(word, of)| (word, Some(of)));
        Ok(match (word, of) {
            ("write-before-stale-arrival", None) => Witness::WriteBeforeStaleArrival,
            ("stale-write-tried", None) => Witness::StaleWriteTried,
            ("granted-again", Some(node)) => Witness::GrantedAgain(node.into()),
            ("granted-and-struck", Some(node)) => Witness::Struck(node.into()),
            ("tokens-behind", None) => Witness::TokensBehind,
            ("quorums", Some(of)) => {
                let quorum = |text: &str| text.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>();
                Witness::Quorums(of.split('/').map(quorum).collect::<Result<_, _>>().map_err(|_| wrong())?)
            }
            ("refused-by-validity", Some(at)) => {
                let point = history::Point::ALL.into_iter().find(|p| p.name() == at).ok_or_else(wrong)?;
                Witness::RefusedByValidity(point)
            }
            ("frozen-in-queue", None) => Witness::FrozenInQueue,
            ("flushed", Some(node)) => Witness::Flushed(node.into()),
            ("restored", Some(node)) => Witness::Restored(node.into()),
            ("write-after-deadline", None) => Witness::WriteAfterDeadline,
            ("write-after-restart", None) => Witness::WriteAfterRestart,
            ("renewal-failed", None) => Witness::RenewalFailed,
            ("proved" | "healed", Some(kind)) => {
                let kind = FaultKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(wrong)?;
                if word == "proved" { Witness::Proved(kind) } else { Witness::Healed(kind) }
            }
            _ => return Err(wrong()),
        })
    }
}

impl std::fmt::Display for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Witness::Figure(_, text) => f.write_str(text),
            Witness::WriteBeforeStaleArrival => f.write_str("a later hold's write before the stale arrival"),
            Witness::StaleWriteTried => f.write_str("a stale write tried"),
            Witness::GrantedAgain(node) => write!(f, "{node} granted twice within a lease"),
            Witness::Struck(node) => write!(f, "{node} granted, was struck, was asked again"),
            Witness::TokensBehind => f.write_str("counters behind"),
            Witness::Quorums(all) => write!(f, "{} quorums", all.len()),
            Witness::RefusedByValidity(point) => write!(f, "granted, frozen {point}, refused by validity"),
            Witness::FrozenInQueue => f.write_str("frozen in the queue for a lease when its turn came"),
            Witness::Flushed(node) => write!(f, "{node} had synced all before it was killed"),
            Witness::Restored(node) => write!(f, "{node} came back with counters"),
            Witness::WriteAfterDeadline => f.write_str("a write after its client's deadline"),
            Witness::WriteAfterRestart => f.write_str("a stale write after the restart"),
            Witness::RenewalFailed => f.write_str("a renewal that failed"),
            Witness::Healed(kind) => write!(f, "every {kind} proved healed"),
            Witness::Proved(kind) => write!(f, "every {kind} proved"),
        }
    }
}
