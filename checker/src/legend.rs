//! The legend: every word of the reports, defined once.

use crate::properties::PROPERTIES;

/// One word of the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// The word, as reports write it.
    pub word: &'static str,
    /// The definition.
    pub text: &'static str,
}

/// All terms, except the properties: those are in [`PROPERTIES`].
pub const LEGEND: &[Term] = &[
    // ---- holds and clients
    term(
        "attempt",
        "One try at acquiring the lock. For a lock with a queue: one turn in the queue. Each attempt marks \
         its key with a random value of its own, the owner value.",
    ),
    term(
        "hold",
        "One successful acquisition of the lock, from the answer to the attempt until the client releases the \
         lock or loses it. A hold has an id, a lease and usually a fencing token.",
    ),
    term(
        "promise",
        "The time for which the lock service guarantees a hold: from the sending of the winning attempt (or \
         of the last renewal that succeeded) for one lease, less an allowance for clock drift. In a session it \
         may count from an earlier request of the client. The checker computes the promise from recorded times, \
         never from the client's clock.",
    ),
    term(
        "entitled",
        "A hold is entitled while the promise of the lock service covers it: from the successful answer until \
         the first of these: the client releases, notices the loss, is killed, or the promise ends. A client \
         that gives up without a release stays entitled: its last write may still arrive. An entitled holder may \
         rely on being alone.",
    ),
    term(
        "later",
        "Hold B is later than hold A of the same key if the lock service granted B after A. The checker \
         proves the order from recorded times, or from the service's own queue.",
    ),
    term(
        "undecided",
        "The recorded times do not show which of two holds was granted first, so the checker cannot say \
         whether an act was stale. Undecided acts alone make the verdict inconclusive.",
    ),
    term(
        "act",
        "A read or a write under a hold. An act happens when the resource decides the request, not when the \
         client sends it.",
    ),
    term(
        "nemesis",
        "The part of the harness that injects the faults of a plan, proves that they took effect, and heals them. \
         The name is Jepsen's.",
    ),
    term(
        "token",
        "Fencing token: a number that the lock service gives to each hold and that the holder sends with \
         every request. A resource that remembers the largest token can refuse a holder that was overtaken.",
    ),
    term("fencing token", "The full name of a token: a number that grows from holder to holder of a lock."),
    term(
        "critical section",
        "The work that a lock protects: a client acquires the lock, reads, works, writes, and releases the lock.",
    ),
    term("lock node", "One server of the lock service, such as redis-3."),
    term(
        "validity",
        "The time for which a client may trust an answer that grants the lock, by its own clock: the lease, less the \
         time since it sent the request, less an allowance for clock drift. A client refuses a grant whose validity \
         has ended.",
    ),
    term(
        "protocol point",
        "A place in the work of a client, such as before-write. A fault or a wait can be placed exactly there.",
    ),
    term(
        "Jain's index",
        "A measure of fairness over the holds of all clients: 1 means equal shares, 1/n that one of n clients got \
         all holds.",
    ),
    // ---- the resource and its arms
    term(
        "admitted",
        "A request that an arm of the resource has accepted. An admitted write replaces the arm's copy of the data.",
    ),
    term(
        "fenced resource",
        "The fenced store that the lock protects. The resource records every request in the order in which it \
         decides; this log is the ground truth of a run.",
    ),
    term(
        "arm",
        "One policy of the resource. Every request is decided by all arms in the same run, each with its own \
         copy of the data, so the arms differ in nothing but the policy: off, writes, reads, cas, claim, \
         deadline, guard.",
    ),
    term("off", "Arm without protection: the resource accepts every request."),
    term(
        "writes",
        "Arm with a fence on writes: the resource refuses a write whose token is smaller than the largest \
         token of an earlier write. A late write, one that arrives before the first write of the new holder, \
         passes.",
    ),
    term(
        "reads",
        "Arm with a fence on reads and writes: a read registers its token too, so the first read of the new \
         holder shuts out the old one. A late write, one before that first read, still passes, but no update \
         is lost by it.",
    ),
    term(
        "cas",
        "Arm with compare-and-set, without tokens: the resource refuses a write that is not based on the \
         current version.",
    ),
    term(
        "claim",
        "Arm with antirez's unique value, without tokens: a read puts the hold's mark on the key, and the \
         resource accepts a write only while the mark is still there.",
    ),
    term(
        "deadline",
        "Arm with deadlines, without tokens: a write carries the end of its hold by the wall clock of its client, and \
         the resource refuses the write once its own wall clock is past that end. A clock that is wrong on either \
         side admits stale writes or refuses good ones.",
    ),
    term(
        "guard",
        "Arm with a guard, for a resource in the store of the lock: the transaction of a write compares the revision \
         of the hold's own lock key, so the write is refused once that key is gone. No order of tokens is needed.",
    ),
    term(
        "stale",
        "A write of an old holder is stale if the arm has already registered a later hold when the write \
         arrives: on the arm writes by a write of the later hold, on the other arms by its first read or write. \
         A fence must refuse stale writes.",
    ),
    term(
        "late",
        "A write of an old holder is late if another client has acquired the lock when the write arrives, but \
         the arm has not registered the later hold yet. No rule about tokens can see a late write, because the \
         resource has not seen the newer token.",
    ),
    term(
        "lost update",
        "An admitted update that the final value does not contain. The final value is based on an earlier \
         version, that one on a still earlier one, and so on: lost updates = admitted updates minus the \
         length of this chain. Example: A and B both read version 3 and both write; one write is lost.",
    ),
    term(
        "overwrite",
        "An admitted write that is not based on the version that it replaces. An overwritten update is not \
         lost if a later write is based on it, so overwrites may outnumber lost updates.",
    ),
    // ---- windows
    term(
        "window",
        "One incident of broken mutual exclusion, with its two holds, its lengths, its causes and its \
         witness. Kinds: stale-holder, lease-overlap, cut-short.",
    ),
    term(
        "stale-holder",
        "Window: a client acted under a hold that had ended, after another client had acquired the lock. The \
         lock service kept its promise; the holder acted too late. This is Kleppmann's pause, and his delayed \
         packet.",
    ),
    term(
        "lease-overlap",
        "Window: two holds of one key were entitled at the same time. The lock service broke its promise. The overlap \
         is 0 if the second client was killed as it acquired.",
    ),
    term(
        "cut-short",
        "Window: the process of a hold was killed, and another client got the key before the promise to that hold \
         had ended. The lock service broke its promise, although nobody was left to act under the hold. Only \
         locks that promise a lease have such windows.",
    ),
    term(
        "dead-claim",
        "The answer to an attempt came after the promise had ended, and the client used the hold all the same. \
         Violates `lock`, unless a clock of the worker ran slow by a fault of the plan. Not a window.",
    ),
    term(
        "minority-claim",
        "A client took the lock although fewer than a majority of the nodes had granted it, by the answers that \
         the client itself recorded. Violates `lock`: another client may have the other nodes. Not a window.",
    ),
    term(
        "overclaim",
        "A client trusted its hold too long. When it acquired, its own deadline was later than the end of the \
         promise; or its check of the deadline, made after that end, still said that the hold was valid; or it \
         acquired its own hold again after that end. Violates `lock`, unless a clock of the worker ran slow by a \
         fault of the plan. Not a window. As a cause of a window: the client acted too late because of such a belief.",
    ),
    term(
        "overlap",
        "Length of a window. lease-overlap: how long both holds were entitled. stale-holder: how long later \
         holds were entitled between the end of the stale hold's entitlement and its last act; 0 if the act \
         met no entitled holder.",
    ),
    term("staleness", "Age of a stale act: from the acquisition by the first later holder to the last stale act."),
    term(
        "witness",
        "The few events, by sequence number in history.jsonl, that prove a violation. In a suite: the \
         evidence that a run must contain to say anything about its claim.",
    ),
    // ---- verdicts
    term("upheld", "Verdict: the property holds in everything that was recorded."),
    term("violated", "Verdict: the property does not hold; a witness proves the violation."),
    term("inconclusive", "Verdict: the record does not decide the property; the report gives the reason."),
    term(
        "measured",
        "Verdict: the figures are reported, and nothing requires them of this arm or lock. A measured \
         property never fails a run.",
    ),
    term("n/a", "Verdict: the property does not apply to this run."),
    // ---- causes
    term(
        "cause",
        "The fault or event that explains a window: alone, it is enough to bring the window about. If nothing \
         suffices alone, the smallest set that does is listed. Causes separated by commas each suffice alone; \
         causes joined by `+` suffice only together.",
    ),
    term(
        "unexplained",
        "Cause: nothing in the record explains the window. The lock itself is at fault, or the record lacks \
         something. Unexplained windows are listed first.",
    ),
    term(
        "stall",
        "A process did not run for some time although no fault of the plan stopped it: the machine was busy.",
    ),
    term(
        "overrun",
        "Cause: the planned waits alone outlast the lease. The wait in the lock's queue counts too, and up to 30 ms of \
         every other step of the client. A longer step needs a cause of its own.",
    ),
    term("host-clock", "Cause: a clock of the kernel stepped, and no fault of the plan set it."),
    term("unsafe-release", "A release, a renewal or an undo took effect on a node that another attempt owned."),
    term("unplanned", "Not done by a fault of the plan."),
    // ---- several locks, and locks that several clients share
    term(
        "mode",
        "The way in which a hold shares its key with other holds. A writer excludes everybody, readers share the key, \
         and the modes of intention say what the holder of a parent key is about to do with its children.",
    ),
    term("writer", "A client that holds the key alone, or an attempt to hold it so."),
    term("reader", "A client that shares the key with other readers, and excludes writers."),
    term(
        "parent",
        "A key whose holder has access to the data of other keys, its children. The parent has a lock of its own.",
    ),
    term(
        "intention",
        "A hold of the parent by a client that works on a child. Two clients with an intention share the parent, \
         unless one of them also reads all of it; an intention excludes a client that holds the parent itself in a \
         mode that conflicts.",
    ),
    term(
        "session",
        "A lease of etcd, or a session of ZooKeeper or Postgres, that keeps the holds of a client. With --session all \
         holds of a client share one; otherwise each attempt has its own. When it ends, its holds end.",
    ),
    term(
        "re-entry",
        "A client acquires a key again that it holds. There is one hold, which keeps its token and its deadline, and \
         ends with the last release.",
    ),
    term(
        "deadlock",
        "Clients wait for each other in a cycle: each holds a key that the next one waits for. Its end is one of: \
         detected, timed-out, lease-ended, killed, unended, cut-off.",
    ),
    term("detected", "End of a deadlock: the lock service found the cycle, and ended an attempt in it."),
    term("timed-out", "End of a deadlock: a client lost its patience, gave up its wait, and released what it held."),
    term(
        "lease-ended",
        "End of a deadlock: a hold in the cycle was no longer promised, or its client noticed the loss.",
    ),
    term("killed", "End of a deadlock: the process of a hold in the cycle was killed."),
    term(
        "unended",
        "A deadlock that did not end, although it lasted longer than the leases and the patience of its clients. It \
         violates the property liveness.",
    ),
    term(
        "cut-off",
        "A deadlock at the end of a run or record that is too short, or not whole, to say whether it would have ended.",
    ),
    term(
        "patience",
        "The longest time for which a client waits for a further key while it holds one. After that it gives the \
         attempt up, and releases. Without --patience: no limit, but half a lease below a parent that nobody renews.",
    ),
    // ---- faults
    term(
        "fault phase",
        "The part of a run in which critical sections are offered and faults are injected. It begins when all \
         processes are ready. After it, all faults are healed and the workers finish.",
    ),
    term(
        "placed",
        "A fault whose exact moment the plan fixes: a time or a protocol point. A violation under a placed fault shows \
         that the violation is possible, not how probable it is.",
    ),
    term(
        "planted bug",
        "A deliberate mistake in a lock or in the resource, such as `buggy:forgets-nx`. The checker must find each of \
         them.",
    ),
    term(
        "twin",
        "In a suite: the plan of a row with one changed field, which shows the effect of the field. Of a planted bug: \
         the correct lock or resource.",
    ),
    term(
        "fault",
        "One injected failure. A fault is requested, then proved by its target (the target's own record shows \
         the effect), then healed.",
    ),
    term(
        "proved",
        "The target's own record shows that the fault took effect and was healed. A fault that is not proved \
         makes the run inconclusive.",
    ),
    term(
        "missed",
        "The fault was planned for the holder of a lock, and the hold had ended when the fault took effect.",
    ),
    term("pause", "Fault: the container is frozen, and continues later where it stopped."),
    term("stop", "Fault: the process gets SIGSTOP, and later SIGCONT."),
    term("slow", "Fault: the process gets only a small share of a processor."),
    term("kill", "Fault: the process gets SIGKILL and starts again with the data that the kernel had."),
    term("amnesia", "Fault: the server is killed and starts again without its data."),
    term("powerloss", "Fault: the server starts again with the data that had been synced to disk."),
    term("clock", "Fault: a clock of a process jumps, drifts, or jumps to and fro."),
    term("partition", "Fault: packets between some nodes are dropped."),
    term("delay", "Fault: packets between some nodes arrive late."),
    term("loss", "Fault: some packets between some nodes are dropped; TCP sends them again."),
    term("reorder", "Fault: packets of different connections overtake each other."),
    term("flap", "Fault: links of a node are cut and restored in turns."),
];

const fn term(word: &'static str, text: &'static str) -> Term {
    Term { word, text }
}

/// The definition of a word of the reports. Letter case does not matter, and a blank stands for a hyphen.
pub fn explain(word: &str) -> Option<&'static str> {
    let plain = |word: &str| word.trim().to_lowercase().replace([' ', '_'], "-");
    let word = plain(word);
    // A plural ends in "s", and so do some words.
    let is = |term: &&(&'static str, &'static str)| plain(term.0) == word || format!("{}s", plain(term.0)) == word;
    all().collect::<Vec<_>>().iter().find(is).map(|(_, text)| *text)
}

/// All words that [`explain`] defines.
pub fn words() -> impl Iterator<Item = &'static str> {
    all().map(|(word, _)| word)
}

/// Properties come first: `lock` and `tokens` are names of properties before they are words.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROPERTIES.iter().copied().chain(LEGEND.iter().map(|term| (term.word, term.text)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use history::{Arm, FaultKind};

    use super::*;
    use crate::{Verdict, WindowKind};

    #[test]
    fn every_arm_verdict_window_and_fault_is_defined() {
        let names = Arm::ALL.iter().map(|arm| arm.name()).chain(Verdict::ALL.map(Verdict::name));
        let kinds = [WindowKind::StaleHolder, WindowKind::LeaseOverlap].map(WindowKind::name);
        for word in names.chain(kinds).chain(FaultKind::ALL.map(FaultKind::name)) {
            assert!(explain(word).is_some(), "{word}");
        }
    }

    #[test]
    fn a_word_is_found_however_it_is_written() {
        assert_eq!(explain("Stale holder"), explain("stale-holder"));
        assert_eq!(explain("lost updates"), explain("lost update"));
        assert!(explain("stale holder").is_some() && explain("lost updates").is_some());
        assert_eq!(explain("frobnicate"), None);
    }

    #[test]
    fn no_word_of_the_legend_is_defined_twice() {
        let words: Vec<_> = LEGEND.iter().map(|term| term.word).collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
    }
}
