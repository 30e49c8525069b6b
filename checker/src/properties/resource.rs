//! Property 5: the resource itself. Its log agrees with real time, with the clients' record and with its answers, keeps
//! every answered decision, and decides an operation once, on every arm.
//!
//! The resource answers when a decision, and so everything before it, is on disk. A kill undoes the decisions that the
//! resource had reported but not put on disk. The merge marks these admissions, and no other judge sees them. An answer
//! to such an admission is an answer that came before the disk. So no read can have shown a version that was not
//! durable either: a version is the number of an earlier write.
//!
//! `operations` compares each admission with its operation and each answer with its admission; this file counts.

mod verdict;

use history::{Arm, ArmDecision, Event, Plan, RequestKind, Token};

use crate::{
    entry::Entry,
    facts::Facts,
    judge::{Ending, Judge},
    operations::{Breach, Finding},
    order::{Arms, bit},
    per_key::CountsPerKey,
    report::plural,
    rules,
    run::Run,
    verdict::Verdict,
};

pub use verdict::ResourceVerdict;

/// The highest token of one key on one arm. Each is compared with the entry before it, so that one fault is counted
/// once.
#[derive(Debug, Clone, Copy, Default)]
struct HighestToken {
    /// The token that the arm has registered by its log.
    registered: Option<Token>,
    /// The same without the token of the last read: the arm has shown this one, or has admitted a write with it.
    shown: Option<Token>,
}

/// The highest tokens of each key on the arms that remember tokens. They are kept small: of each arm the registered and
/// the shown token, or zeros, and then a bit for each of these that is a token.
#[derive(Debug, Default)]
struct HighestTokens(CountsPerKey<COUNTS>);

const KNOWN: usize = 2 * FENCED.len();
const COUNTS: usize = KNOWN + 1;

/// The highest tokens of one key on the arms that remember tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OfArms([u64; COUNTS]);

impl OfArms {
    fn of(&self, arm: usize) -> HighestToken {
        let OfArms(counts) = self;
        let token = |place: usize| (counts[KNOWN] >> place & 1 == 1).then_some(Token(counts[place]));
        HighestToken { registered: token(2 * arm), shown: token(2 * arm + 1) }
    }

    fn set(&mut self, arm: usize, HighestToken { registered, shown }: HighestToken) {
        let OfArms(counts) = self;
        for (which, token) in [registered, shown].into_iter().enumerate() {
            let place = 2 * arm + which;
            let known = counts[KNOWN];
            counts[KNOWN] = if token.is_some() { known | 1 << place } else { known & !(1 << place) };
            counts[place] = token.map_or(0, |token| token.0);
        }
    }
}

impl HighestTokens {
    fn of(&self, key: usize) -> OfArms {
        OfArms(self.0.get(key))
    }

    fn set(&mut self, key: usize, tokens: OfArms) {
        self.0.set(key, tokens.0);
    }
}

/// Arms that remember tokens.
const FENCED: [Arm; 2] = [Arm::Writes, Arm::Reads];
/// Witnesses and reasons that are listed.
const LISTED: usize = 20;

/// Judges the resource.
pub(crate) struct Resource {
    /// The arms of the plan, as bits.
    arms: Arms,
    last: u64,
    keys: HighestTokens,
    found: ResourceVerdict,
}

impl Resource {
    /// Lists a violation, if it is one of the first.
    fn wrong(&mut self, seq: u64, why: impl FnOnce() -> String) {
        if self.found.witness.len() < LISTED {
            self.found.witness.push(seq);
            self.found.reasons.push(why());
        }
    }

    /// Counts the breaches that the last event showed.
    fn count(&mut self, findings: &[Finding]) {
        for Finding { breach, seq, why } in findings {
            let count = match breach {
                Breach::Contradiction => &mut self.found.contradictions,
                Breach::Misordered => &mut self.found.misordered,
                Breach::AcknowledgedLost => &mut self.found.acknowledged_lost,
                Breach::WrongAnswer => &mut self.found.wrong_answers,
                Breach::AppliedTwice => &mut self.found.applied_twice,
                Breach::WrongRepeat => &mut self.found.wrong_repeats,
            };
            *count += 1;
            self.wrong(*seq, || why.clone());
        }
    }

    /// An admission that is no repeat.
    fn decided(&mut self, run: &Run, entry: &Entry) {
        let Event::Admission { number, key, kind, token, arms, .. } = &entry.event else { return };
        let (number, seq) = (*number, entry.seq);
        if number <= self.last {
            self.found.misordered += 1;
            let last = self.last;
            self.wrong(seq, || format!("#{number} was decided after #{last}"));
        }
        self.last = self.last.max(number);
        if arms.iter().map(|d| bit(d.arm)).fold(0, |all, one| all | one) != self.arms
            || arms.len() != self.arms.count_ones() as usize
        {
            self.found.wrong_arms += 1;
            self.wrong(seq, || format!("#{number} does not decide every arm of the plan exactly once"));
        }
        for d in arms.iter().filter(|d| !d.admitted && (*kind == RequestKind::Read || d.arm == Arm::Off)) {
            self.found.wrong_refusals += 1;
            self.wrong(seq, || format!("#{number} was refused by {}, which never refuses it", d.arm));
        }
        if let Some(key) = run.key_of(key).filter(|_| !run.is_log_broken) {
            self.tokens(seq, key, *kind, *token, arms);
        }
    }

    fn tokens(&mut self, seq: u64, key: usize, kind: RequestKind, token: Option<Token>, arms: &[ArmDecision]) {
        let former = self.keys.of(key);
        let mut tokens = former;
        for (i, arm) in FENCED.into_iter().enumerate() {
            let Some(decision) = arms.iter().find(|d| d.arm == arm) else { continue };
            let seen = decision.seen;
            let HighestToken { registered, shown } = former.of(i);
            let told = |token: Option<Token>| token.map_or_else(|| "none".into(), |token: Token| token.to_string());
            if shown.is_some_and(|shown| seen.is_none_or(|seen| rules::is_smaller(seen, shown))) {
                self.found.tokens_forgotten += 1;
                self.wrong(seq, || {
                    format!("the highest token of {arm} was {} and went back to {}", told(shown), told(seen))
                });
            } else if seen != registered {
                self.found.wrong_tokens += 1;
                self.wrong(seq, || {
                    format!("{arm} showed {} as its highest token and had registered {}", told(seen), told(registered))
                });
            }
            let written = token.filter(|_| kind == RequestKind::Write && decision.admitted);
            let read = token.filter(|_| kind == RequestKind::Read && arm == Arm::Reads);
            let highest = HighestToken { registered: seen.max(written).max(read), shown: seen.max(written) };
            tokens.set(i, highest);
        }
        if tokens != former {
            self.keys.set(key, tokens);
        }
    }
}

impl Judge for Resource {
    const NAME: &str = "resource";
    const ABOUT: &str = "The resource itself: its log agrees with its answers, with the clients' record and with real \
        time, and a restart forgets nothing that was answered.";
    type Verdict = ResourceVerdict;

    fn new(plan: &Plan) -> Resource {
        let arms = plan.arms.iter().fold(0, |all, arm| all | bit(*arm));
        Resource { arms, last: 0, keys: HighestTokens::default(), found: ResourceVerdict::default() }
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        self.count(run.operations.findings());
        match &entry.event {
            Event::Admission { repeat, .. } => {
                self.found.admissions += 1;
                if !repeat {
                    self.decided(run, entry);
                }
            }
            Event::Recovered { .. } => {
                // A new store is opened as well.
                self.found.restarts += u64::from(run.process(entry.process).name.as_str() != "resource");
                for key in run.keys() {
                    let former = self.keys.of(key);
                    let mut tokens = former;
                    for arm in 0..FENCED.len() {
                        let HighestToken { registered, .. } = former.of(arm);
                        tokens.set(arm, HighestToken { registered, shown: registered });
                    }
                    if tokens != former {
                        self.keys.set(key, tokens);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_use(&mut self, run: &Run, entry: &Entry) {
        self.count(run.operations.findings());
        if let Event::ReadOk { arms: None, .. } | Event::WriteOk { arms: None, .. } = &entry.event {
            self.found.unrecorded_answers += 1;
        }
    }

    fn on_undone(&mut self, _run: &Run, entry: &Entry) {
        let Event::Admission { number, repeat: false, .. } = &entry.event else { return };
        self.found.undone += 1;
        self.last = self.last.max(*number);
    }

    fn on_stamp_complete(&mut self, run: &Run) {
        self.count(run.operations.findings());
    }

    fn finish(self, _run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        let mut found = self.found;
        let is_violated = found.wrong().iter().any(|(n, ..)| *n > 0);
        let unrecorded = found.unrecorded_answers;
        if unrecorded > 0 {
            let answers = plural(unrecorded, "answer of the resource is", "answers of the resource are");
            found.reasons.push(format!("{answers} not recorded arm by arm: nothing compares them with the log"));
        }
        found.verdict = Verdict::judged(is_violated, !ending.is_whole || unrecorded > 0);
        vec![(None, found)]
    }
}

#[cfg(test)]
mod tests;
