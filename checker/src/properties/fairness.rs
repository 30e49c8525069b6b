//! Property 7, the part about fairness: how holds and waiting are shared between the clients, and whether a queue was
//! kept in order.
//!
//! A lock with a queue promises an order. The checker judges the order by the record alone. An attempt was in the queue
//! from its event `behind` on. It was in the queue without a gap if its key still existed at the end: the service has
//! confirmed its place at the grant, or an undo has removed its key. Of several undos, the first one may have removed
//! the key. A hold **overtook** this attempt if it was granted before that proof, conflicts with the attempt, and came
//! later: it was sent after the attempt's `behind`, or it has a larger place and was acquired after the attempt was
//! sent. (A reader may pass a reader: neither waits for the other.) Locks without a queue promise no order, so their
//! figures are only measured.

use history::{Arm, ClientId, Event, HoldId, Key, Mode, NodeAnswer, Plan, ProcessName, Stamp};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    entry::Entry,
    facts::Facts,
    holds::Attempt,
    judge::{Ending, Judge},
    report::{Report, Violation, counted, instant, plural, seconds},
    rules,
    run::{Run, millis},
    verdict::Verdict,
};

/// The attempts and holds of one client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientShare {
    /// The client.
    pub client: ClientId,
    /// The first process that the client ran in.
    pub worker: ProcessName,
    /// The client's attempts.
    pub attempts: u64,
    /// The client's holds.
    pub holds: u64,
    /// The longest wait for a critical section, from the client's first attempt for it to its hold, or to the end of
    /// the client's process or of the record, in milliseconds.
    pub longest_wait_ms: f64,
}

/// An attempt that lost its turn in the queue to others that came later.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overtaken {
    /// The key.
    pub key: Key,
    /// The attempt that waited.
    pub attempt: HoldId,
    /// The client that waited.
    pub client: ClientId,
    /// Since when the attempt was in the queue, in milliseconds since the run's start.
    pub since_ms: f64,
    /// Until when the attempt was surely still in the queue, in milliseconds since the run's start.
    pub until_ms: f64,
    /// The holds that were granted between, although they came later.
    pub by: Vec<HoldId>,
}

/// Property 7, fairness.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FairnessVerdict {
    /// Judged if an attempt waited in a queue; otherwise `measured`.
    pub verdict: Verdict,
    /// Attempts that waited in a queue.
    pub waited: u64,
    /// Attempts that others overtook.
    pub overtaken: Vec<Overtaken>,
    /// Jain's index of the clients' holds, (Σx)² / (n · Σx²): 1 if all clients have as many holds, 1/n if one client
    /// has them all. Null without a hold.
    pub jain: Option<f64>,
    /// The longest wait of any client, in milliseconds.
    pub longest_wait_ms: f64,
    /// Each client, in the order of their numbers.
    pub clients: Vec<ClientShare>,
}

/// A client so far.
struct Share {
    worker: ProcessName,
    /// The process of its last attempt.
    process: usize,
    attempts: u64,
    holds: u64,
    longest: std::time::Duration,
    /// The critical section that the client waits for: the instant at which it was due, and its first attempt.
    waits: Option<(Stamp, Stamp)>,
}

impl Share {
    /// The wait has lasted until `at`.
    fn waited(&mut self, at: Stamp) {
        if let Some((_, since)) = self.waits {
            self.longest = self.longest.max(at.since(since));
        }
    }

    /// The client's process has ended, at `at` if that is known. Its client waits no longer.
    fn ended(&mut self, at: Option<Stamp>) {
        at.into_iter().for_each(|at| self.waited(at));
        self.waits = None;
    }
}

/// A hold that may have overtaken an attempt which is still open.
struct Granted {
    hold: HoldId,
    sent: Stamp,
    ok: Stamp,
    mode: Mode,
    place: Option<u64>,
}

/// The number of holds of a key that are kept without a check that they are still needed.
const KEPT_MIN: usize = 16;

/// The holds of one key, as long as an attempt is open that was sent before their grant.
#[derive(Default)]
struct Grants {
    holds: Vec<Granted>,
    /// At this number of holds, unneeded holds are dropped.
    max: usize,
}

/// Measures fairness, and judges the order of queues.
#[derive(Default)]
pub(crate) struct Fairness {
    clients: FxHashMap<ClientId, Share>,
    waited: u64,
    /// By key.
    grants: FxHashMap<usize, Grants>,
    /// Undo requests of attempts that waited: when the first one of each attempt was sent.
    undoing: FxHashMap<HoldId, Stamp>,
    overtaken: Vec<Overtaken>,
}

impl Fairness {
    /// The attempt was surely in the queue until `until`: finds the holds that came later and were granted before.
    fn in_queue_until(&mut self, run: &Run, attempt: &Attempt, place: Option<u64>, until: Stamp) {
        let Some(grants) = self.grants.get(&attempt.key) else { return };
        let since = attempt.behind.map(|behind| behind.at);
        // A store that lost its state counts places from the start again. So a place says nothing about a hold that was
        // acquired before the attempt was sent.
        let is_ahead = |its: u64| place.is_some_and(|own| own < its);
        let is_behind = |other: &Granted| attempt.sent.at < other.ok && other.place.is_some_and(is_ahead);
        let came_later = |other: &Granted| since.is_some_and(|since| since < other.sent) || is_behind(other);
        let by: Vec<HoldId> = (grants.holds.iter().filter(|other| rules::conflict(other.mode, attempt.mode)))
            .filter(|other| other.ok < until && came_later(other))
            .map(|other| other.hold)
            .collect();
        if !by.is_empty() {
            self.overtaken.push(Overtaken {
                key: run.key(attempt.key).clone(),
                attempt: attempt.id,
                client: attempt.client,
                since_ms: run.ms(since.unwrap_or(attempt.sent.at)),
                until_ms: run.ms(until),
                by,
            });
        }
    }

    fn acquired(&mut self, run: &Run, hold: &Attempt) {
        let Some(grant) = &hold.grant else { return };
        if grant.place.is_some() {
            self.in_queue_until(run, hold, grant.place, grant.granted_after);
        }
        if self.waited == 0 && grant.place.is_none() {
            return;
        }
        let grants = self.grants.entry(hold.key).or_default();
        if grants.holds.len() >= grants.max.max(KEPT_MIN) {
            // A hold has left the queue, however long its last request is on its way. The answer to an undo may still
            // prove that the attempt was in the queue.
            let may_leave = |a: &Attempt| a.let_go.is_none() || a.undoing.is_some();
            let waits = |a: &&Attempt| a.grant.is_none() && may_leave(a) && !a.is_orphan;
            let open = run.attempts_of(hold.key).filter(waits);
            let oldest = open.map(|a| a.sent.at).min().unwrap_or(grant.ok.at);
            grants.holds.retain(|other| other.ok >= oldest);
            // So many further holds pay for the next visit to all of these.
            let kept = grants.holds.len();
            grants.max = kept + kept.max(run.attempts_of(hold.key).count());
        }
        let (hold, sent, ok) = (hold.id, hold.sent.at, grant.ok.at);
        grants.holds.push(Granted { hold, sent, ok, mode: grant.mode, place: grant.place });
    }
}

impl Judge for Fairness {
    const NAME: &str = "fairness";
    const ABOUT: &str =
        "No attempt in a queue is overtaken by a later one that conflicts with it; holds and waits of each client.";
    type Verdict = FairnessVerdict;

    fn new(_plan: &Plan) -> Fairness {
        Fairness::default()
    }

    fn on_event(&mut self, run: &Run, entry: &Entry) {
        match &entry.event {
            Event::Acquire { client, attempt, intended, .. } => {
                let Some(found) = run.attempt(*attempt) else { return };
                let share = self.clients.entry(*client).or_insert_with(|| Share {
                    worker: run.process(found.process).name.clone(),
                    process: found.process,
                    attempts: 0,
                    holds: 0,
                    longest: std::time::Duration::ZERO,
                    waits: None,
                });
                share.attempts += 1;
                if share.process != found.process {
                    share.ended(run.process(share.process).cut_at);
                    share.process = found.process;
                }
                let is_same = share.waits.is_some_and(|(due, _)| due == *intended);
                share.waits = if is_same { share.waits } else { Some((*intended, entry.at)) };
            }
            Event::Acquired { attempt, .. } => {
                let Some(hold) = run.attempt(*attempt) else { return };
                if let Some(share) = self.clients.get_mut(&hold.client) {
                    share.holds += 1;
                    share.waited(entry.at);
                    share.waits = None;
                }
                self.acquired(run, hold);
            }
            Event::AcquireFailed { attempt, .. } => {
                let client = run.attempt(*attempt).map(|attempt| attempt.client);
                if let Some(share) = client.and_then(|client| self.clients.get_mut(&client)) {
                    share.waited(entry.at);
                }
            }
            Event::Behind { attempt } => {
                let first = run.attempt(*attempt).and_then(|a| a.behind);
                self.waited += u64::from(first.is_some_and(|first| first.seq == entry.seq));
            }
            Event::Undo { attempt } => {
                // A client that breaks its undo off sends another one. The first one may have removed the key already.
                let waited = run.attempt(*attempt).filter(|a| a.behind.is_some());
                if let Some(first) = waited.and_then(|a| a.let_go) {
                    self.undoing.insert(*attempt, first);
                }
            }
            Event::Finished => {
                let of_process = self.clients.values_mut().filter(|share| share.process == entry.process);
                of_process.for_each(|share| share.ended(Some(entry.at)));
            }
            Event::Undone { attempt, answers } => {
                let Some(sent) = self.undoing.remove(attempt) else { return };
                // The key in the queue of a store was there until then. A session may have got its lock only now.
                let is_done = answers.iter().any(|(_, answer)| *answer == NodeAnswer::Done);
                let is_removed = is_done && run.plan.has_one_store();
                if let Some(attempt) = run.attempt(*attempt).filter(|a| is_removed && a.grant.is_none()) {
                    self.in_queue_until(run, attempt, None, sent);
                }
            }
            _ => {}
        }
    }

    fn on_attempt_closed(&mut self, _run: &Run, attempt: &Attempt) {
        self.undoing.remove(&attempt.id);
    }

    fn on_key_quiet(&mut self, _run: &Run, key: usize) {
        self.grants.remove(&key);
    }

    fn finish(mut self, run: &Run, ending: &Ending, _facts: &mut Facts) -> Vec<(Option<Arm>, Self::Verdict)> {
        for share in self.clients.values_mut() {
            share.waited(run.process(share.process).cut_at.unwrap_or(run.now));
        }
        let mut clients: Vec<ClientShare> = (self.clients.into_iter())
            .map(|(client, share)| ClientShare {
                client,
                worker: share.worker,
                attempts: share.attempts,
                holds: share.holds,
                longest_wait_ms: millis(share.longest),
            })
            .collect();
        clients.sort_unstable_by_key(|share| share.client);
        let fairness = FairnessVerdict {
            verdict: match self.waited {
                0 => Verdict::Measured,
                _ => Verdict::judged(!self.overtaken.is_empty(), !ending.is_whole),
            },
            waited: self.waited,
            overtaken: self.overtaken,
            jain: jain(&clients),
            longest_wait_ms: clients.iter().map(|share| share.longest_wait_ms).fold(0.0, f64::max),
            clients,
        };
        vec![(None, fairness)]
    }
}

impl FairnessVerdict {
    /// The name of a client in the summary: its worker, and its own number where the worker has several clients.
    fn who(&self, share: &ClientShare) -> String {
        let ClientShare { client, worker, .. } = share;
        let node = worker.node();
        let is_alone = self.clients.iter().filter(|other| other.worker.node() == node).count() == 1;
        if is_alone { worker.to_string() } else { format!("{worker}/c{client}") }
    }
}

impl Overtaken {
    fn line(&self) -> String {
        let by: Vec<String> = self.by.iter().map(HoldId::to_string).collect();
        let (since, until) = (instant(self.since_ms), instant(self.until_ms));
        let attempts = if by.len() == 1 { "a later attempt" } else { "later attempts" };
        let (key, attempt, by) = (&self.key, self.attempt, by.join(", "));
        format!("{key}: attempt {attempt} was in the queue from {since} to {until}; {attempts} got the key first: {by}")
    }
}

/// The number of overtaken attempts that the summary tells.
const SHOWN_MAX: usize = 3;

/// Jain's index of the clients' holds.
fn jain(clients: &[ClientShare]) -> Option<f64> {
    let holds = || clients.iter().map(|share| share.holds as f64);
    let squares: f64 = holds().map(|x| x * x).sum();
    let sum: f64 = holds().sum();
    (squares > 0.0).then(|| sum * sum / (clients.len() as f64 * squares))
}

/// A client that has fewer holds than the busiest one by this factor is named in the summary.
const FAR_FEWER: u64 = 10;

impl Report for FairnessVerdict {
    fn verdict(&self) -> Verdict {
        self.verdict
    }

    fn figures(&self) -> String {
        let holds = |share: &&ClientShare| share.holds;
        let (Some(least), Some(most)) = (self.clients.iter().min_by_key(holds), self.clients.iter().max_by_key(holds))
        else {
            return "no client asked for the lock".into();
        };
        let mut text = String::new();
        if !self.overtaken.is_empty() {
            let attempts = plural(self.overtaken.len() as u64, "attempt", "attempts");
            text = format!("{attempts} of {} in the queue overtaken; ", self.waited);
        }
        let clients = plural(self.clients.len() as u64, "client", "clients");
        let range = match (least.holds, most.holds) {
            (least, most) if least == most => plural(most, "hold", "holds"),
            (least, most) => format!("{least} to {most} holds"),
        };
        let jain = self.jain.map(|jain| format!(", Jain's index {jain:.2}")).unwrap_or_default();
        text += &format!("{clients} with {range}{jain}, longest wait {}", seconds(self.longest_wait_ms));
        if least.holds * FAR_FEWER < most.holds {
            let attempts = plural(least.attempts, "attempt", "attempts");
            let holds = plural(least.holds, "hold", "holds");
            text += &format!("; {} got only {holds} in {attempts}", self.who(least));
        }
        text
    }

    fn violations(&self) -> Vec<Violation> {
        counted(&[(self.overtaken.len() as u64, "overtaken")])
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.overtaken.iter().take(SHOWN_MAX).map(Overtaken::line).collect();
        let more = self.overtaken.len() - notes.len();
        if more > 0 {
            notes.push(format!("and {more} more; verdict.json has them"));
        }
        notes
    }

    fn evidence(&self) -> Vec<String> {
        self.overtaken.iter().map(Overtaken::line).collect()
    }
}

#[cfg(test)]
mod tests;
