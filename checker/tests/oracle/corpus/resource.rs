//! Histories of a resource that misbehaves, and of records that contradict its log.

use history::{Arm, ArmDecision, Event, HoldId, Outcome, RequestKind, Token};

use super::{A, B, Tale, calm, pause};

impl Tale {
    /// Changes each event.
    fn alter(mut self, mut alter: impl FnMut(&mut u64, &mut Event)) -> Tale {
        for (ms, _, event) in &mut self.told {
            alter(ms, event);
        }
        self
    }
}

fn is_of(h: super::Holder, hold: HoldId) -> bool {
    hold.0 == h.id
}

/// The arms of B's write in the log.
fn written_by_b(event: &mut Event) -> Option<&mut Vec<ArmDecision>> {
    match event {
        Event::Admission { hold: Some(hold), kind: RequestKind::Write, arms, .. } if is_of(B, *hold) => Some(arms),
        _ => None,
    }
}

/// A history from before answers were recorded.
pub fn answers_unrecorded() -> Tale {
    calm().alter(|_, event| match event {
        Event::ReadOk { arms, .. } => *arms = None,
        Event::WriteOk { arms, .. } => *arms = None,
        _ => {}
    })
}

/// B's write is applied, and B is told that `writes` refused it.
pub fn answers_refused() -> Tale {
    calm().alter(|_, event| {
        if let Event::WriteOk { hold, arms: Some(arms), .. } = event
            && is_of(B, *hold)
        {
            arms[1].admitted = false;
        }
    })
}

/// Kleppmann's pause, and A is told that its stale write was applied.
pub fn answers_applied() -> Tale {
    pause().alter(|_, event| {
        if let Event::WriteOk { hold, arms: Some(arms), .. } = event
            && is_of(A, *hold)
        {
            arms[1].admitted = true;
        }
    })
}

/// B's write is stamped 1.6 s after it was decided: B's key had run out by then.
pub fn before_invocation() -> Tale {
    calm().alter(|ms, event| match event {
        Event::Write { hold, .. } | Event::WriteOk { hold, .. } if is_of(B, *hold) => *ms = 2_006,
        Event::Release { hold } | Event::Released { hold, .. } if is_of(B, *hold) => *ms = 2_007,
        _ => {}
    })
}

/// Kleppmann's pause, but A's client knew that its stale write certainly did not happen before the log has it.
pub fn after_failed() -> Tale {
    pause().alter(|ms, event| {
        if let Event::WriteOk { hold, op, .. } = event
            && is_of(A, *hold)
        {
            let detail = "connection refused".into();
            *ms = 7_101;
            *event = Event::AccessFailed { hold: *hold, op: *op, outcome: Outcome::Failed, detail };
        }
    })
}

/// Kleppmann's pause, but the log has the stale write under the token of the other hold.
pub fn foreign_token() -> Tale {
    pause().alter(|_, event| match event {
        Event::Admission { hold: Some(hold), kind: RequestKind::Write, token, .. } if is_of(A, *hold) => {
            *token = Some(Token(B.token));
        }
        _ => {}
    })
}

/// The log has B's write on one arm only.
pub fn arm_missing() -> Tale {
    calm().alter(|_, event| {
        if let Some(arms) = written_by_b(event) {
            arms.truncate(1);
        }
    })
}

/// The log has B's write twice on one arm.
pub fn arm_twice() -> Tale {
    calm().alter(|_, event| {
        if let Some(arms) = written_by_b(event) {
            arms.push(arms[1].clone());
        }
    })
}

/// `off` refuses B's write, and says so.
pub fn off_refuses() -> Tale {
    calm().alter(|_, event| match event {
        Event::WriteOk { hold, arms: Some(arms), .. } if is_of(B, *hold) => arms[0].admitted = false,
        event => {
            if let Some(arms) = written_by_b(event) {
                (arms[0].admitted, arms[0].version, arms[0].value) = (false, 2, 1);
            }
        }
    })
}

/// `writes` shows a token that no request has brought.
pub fn token_of_nobody() -> Tale {
    calm().alter(|_, event| match event {
        Event::WriteOk { hold, arms: Some(arms), .. } if is_of(B, *hold) => arms[1].seen = Some(Token(42)),
        event => {
            let fenced = |arms: &&mut Vec<ArmDecision>| arms[1].arm == Arm::Writes;
            if let Some(arms) = written_by_b(event).filter(fenced) {
                arms[1].seen = Some(Token(42));
            }
        }
    })
}
