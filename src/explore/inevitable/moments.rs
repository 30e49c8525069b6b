//! Moments of a history in words: the events that a reader follows a run by.

use std::{collections::BTreeMap, time::Duration};

use history::{Event, FaultPhase, HoldId, Key, Record, RequestKind, Token};
use serde::Serialize;

/// One event in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Milliseconds since the run's start.
    pub at_ms: f64,
    /// The process.
    pub who: String,
    /// The event.
    pub what: String,
}

/// Gathers the moments of one run.
#[derive(Debug, Default)]
pub struct Moments {
    pub told: Vec<Moment>,
    /// The key and the token of each attempt and hold.
    known: BTreeMap<HoldId, (Key, Option<Token>)>,
}

impl Moments {
    /// Takes the next record, `at` after the start of the run.
    pub fn see(&mut self, record: &Record, at: Duration) {
        match &record.event {
            Event::Acquire { attempt, key, .. } => {
                self.known.insert(*attempt, (key.clone(), None));
            }
            Event::Acquired { attempt, token, .. } => {
                if let Some((_, known)) = self.known.get_mut(attempt) {
                    *known = *token;
                }
            }
            _ => {}
        }
        if let Some(what) = self.words(&record.event) {
            let who = match &record.event {
                Event::Fault { .. } | Event::PacketsDelayed { .. } => "nemesis".to_owned(),
                _ => record.process.to_string(),
            };
            self.told.push(Moment { at_ms: at.as_secs_f64() * 1e3, who, what });
        }
    }

    fn words(&self, event: &Event) -> Option<String> {
        Some(match event {
            Event::Acquire { attempt, .. } => format!("requested {}", self.of(*attempt)),
            Event::WriteBack { attempt } => format!("wrote back the token of {}", self.of(*attempt)),
            Event::Acquired { attempt, .. } => format!("acquired {}", self.of(*attempt)),
            Event::AcquireFailed { attempt, .. } => format!("did not acquire {}", self.of(*attempt)),
            Event::Undo { attempt } => format!("undid its request for {}", self.of(*attempt)),
            Event::Renew { hold } => format!("requested a renewal of {}", self.of(*hold)),
            Event::Renewed { hold, .. } => format!("renewed {}", self.of(*hold)),
            Event::RenewFailed { hold, .. } => format!("could not renew {}", self.of(*hold)),
            Event::LossNoticed { hold } => format!("noticed the loss of {}", self.of(*hold)),
            Event::Release { hold } => format!("requested the release of {}", self.of(*hold)),
            Event::Released { hold, .. } => format!("released {}", self.of(*hold)),
            Event::ReleaseFailed { hold, .. } => format!("could not release {}", self.of(*hold)),
            Event::GaveUp { hold } => format!("gave up {}", self.of(*hold)),
            Event::Read { hold, .. } => format!("sent a read under {}", self.of(*hold)),
            Event::Write { hold, .. } => format!("sent a write under {}", self.of(*hold)),
            Event::Resend { hold, .. } => format!("sent its write under {} again", self.of(*hold)),
            Event::Admission { kind, hold: Some(hold), number, .. } => {
                let kind = if *kind == RequestKind::Write { "write" } else { "read" };
                format!("decided #{number}, a {kind} under {}", self.of(*hold))
            }
            Event::Recovered { durable } => format!("restarted with #{durable} on its disk"),
            Event::Stall { from, to, .. } => format!("ran again after {:.3} s", to.since(*from).as_secs_f64()),
            Event::PacketsDelayed { from, to, since, until, .. } => {
                format!("delayed packets from {from} to {to} by {:.3} s", until.since(*since).as_secs_f64())
            }
            Event::Fault { kind, node, phase, .. } => match phase {
                FaultPhase::Injected => format!("{} {node}", kind.past_tense()),
                FaultPhase::Healed => format!("ended the {} of {node}", kind.name()),
                _ => return None,
            },
            _ => return None,
        })
    }

    fn of(&self, hold: HoldId) -> String {
        match self.known.get(&hold) {
            Some((key, Some(token))) => format!("{key}, token {token}"),
            Some((key, None)) => key.to_string(),
            None => format!("hold {hold}"),
        }
    }
}

/// Returns up to `before` moments before an instant, all at that instant, and up to `after` moments after it.
pub fn around(all: &[Moment], at: Duration, before: usize, after: usize) -> Vec<Moment> {
    let at_ms = at.as_secs_f64() * 1e3;
    let from = all.partition_point(|moment| moment.at_ms < at_ms);
    let until = all.partition_point(|moment| moment.at_ms <= at_ms);
    all[from.saturating_sub(before)..all.len().min(until + after)].to_vec()
}
