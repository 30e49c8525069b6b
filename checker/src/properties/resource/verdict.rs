//! The verdict on the resource, and its report.

use serde::Serialize;

use crate::{
    report::{Report, Violation, counted, nonzero, plural},
    verdict::Verdict,
};

/// Property 5: the resource itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceVerdict {
    /// Violated by each of the counts that follow the first four.
    pub verdict: Verdict,
    /// Entries of its log, repeats among them. Measured.
    pub admissions: u64,
    /// The number of restarts over the same store. Measured.
    pub restarts: u64,
    /// Admissions that had not reached the disk when the resource was killed. No other property judges them. Measured.
    pub undone: u64,
    /// Answers that the record has without the answer of each arm: such a record is inconclusive.
    pub unrecorded_answers: u64,
    /// Contradictions between the log and the record of the clients: an admission of an operation that no client had
    /// invoked by then, or that had failed; an answer that the log did not have by then; a request with another key,
    /// token or kind than the client sent.
    pub contradictions: u64,
    /// Numbers that went back, or that contradict real time: an operation that was answered before another was sent has
    /// the smaller one.
    pub misordered: u64,
    /// Answers to what was gone after a restart.
    pub acknowledged_lost: u64,
    /// Answers with another number, or with another decision, version or token of an arm, than the operation has in the
    /// log; failures of operations that the log has.
    pub wrong_answers: u64,
    /// Operations that were decided again, and not answered as before.
    pub applied_twice: u64,
    /// Repeats that differ from the first answer.
    pub wrong_repeats: u64,
    /// Admissions that do not decide each arm of the plan exactly once.
    pub wrong_arms: u64,
    /// Refusals by the arm `off`, and refused reads: neither ever refuses.
    pub wrong_refusals: u64,
    /// The number of times that the highest token of a key went back on an arm.
    pub tokens_forgotten: u64,
    /// The number of times that an arm showed another highest token than the one that it had registered, apart from
    /// those that went back.
    pub wrong_tokens: u64,
    /// Sequence numbers of the events that violate it, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub witness: Vec<u64>,
    /// The rule that each listed event violates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl Default for ResourceVerdict {
    fn default() -> Self {
        ResourceVerdict {
            verdict: Verdict::Upheld,
            admissions: 0,
            restarts: 0,
            undone: 0,
            unrecorded_answers: 0,
            contradictions: 0,
            misordered: 0,
            acknowledged_lost: 0,
            wrong_answers: 0,
            applied_twice: 0,
            wrong_repeats: 0,
            wrong_arms: 0,
            wrong_refusals: 0,
            tokens_forgotten: 0,
            wrong_tokens: 0,
            witness: Vec::new(),
            reasons: Vec::new(),
        }
    }
}

impl ResourceVerdict {
    /// The counts of which each one violates the property: its words in the summary, and its kind in `explore`.
    pub(super) fn wrong(&self) -> [(u64, &'static str, &'static str); 10] {
        [
            (self.contradictions, "contradictions of log and record", "log-contradicts-record"),
            (self.misordered, "out of order", "misordered"),
            (self.acknowledged_lost, "answered and lost", "acknowledged-lost"),
            (self.wrong_answers, "answered wrongly", "wrong-answer"),
            (self.applied_twice, "applied twice", "applied-twice"),
            (self.wrong_repeats, "repeated wrongly", "wrong-repeat"),
            (self.wrong_arms, "not decided once on each arm", "wrong-arms"),
            (self.wrong_refusals, "refused by what never refuses", "wrong-refusal"),
            (self.tokens_forgotten, "tokens forgotten", "token-forgotten"),
            (self.wrong_tokens, "tokens shown that were not registered", "wrong-token"),
        ]
    }
}

impl Report for ResourceVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn figures(&self) -> String {
        let mut parts = vec![plural(self.admissions, "request decided", "requests decided")];
        if self.restarts > 0 {
            parts.push(format!("{}, {} undone", plural(self.restarts, "restart", "restarts"), self.undone));
        }
        if self.unrecorded_answers > 0 {
            parts.push(plural(self.unrecorded_answers, "answer not recorded", "answers not recorded"));
        }
        parts.extend(nonzero(&self.wrong().map(|(n, words, _)| (n, words))));
        parts.join(", ")
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&self.wrong().map(|(n, _, kind)| (n, kind)))
    }
}
