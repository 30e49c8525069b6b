//! Suspects: the faults and stalls that may have made an act late.

use history::{FaultId, FaultKind};

use crate::{cause::Cause, holds::Span};

/// A fault or stall that may have made an act late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspect {
    Fault(FaultId, FaultKind),
    Stalls,
}

impl Suspect {
    pub fn cause(self) -> Cause {
        match self {
            Suspect::Fault(_, kind) => Cause::Fault(kind),
            Suspect::Stalls => Cause::Stall,
        }
    }
}

/// A set of suspects, as bits.
pub(super) type SuspectSet = u128;

/// The bit of a suspect, by its place. Suspects beyond the last bit share it: they are tried together.
pub(super) fn bit_of(place: usize) -> SuspectSet {
    1 << place.min(SuspectSet::BITS as usize - 1)
}

/// A span in which a process did not run, or packets did not arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrozenSpan {
    pub span: Span,
    pub suspect: SuspectSet,
}

/// Returns the part of a span that lies inside another span.
pub(super) fn clip(span: Span, to: Span) -> Option<Span> {
    let (from, to) = (span.0.max(to.0), span.1.min(to.1));
    (from < to).then_some((from, to))
}
