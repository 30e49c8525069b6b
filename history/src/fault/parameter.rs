//! A walk over the durations and numbers of a fault.

use std::{ops::RangeInclusive, time::Duration};

use super::links::LinkDelay;
use crate::range::Range;

/// The meaning of a duration or a number of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// The planned time from injection to heal.
    Length,
    /// The time for which a killed node stays down.
    Downtime,
    /// The delay of packets.
    Delay,
    /// The jump of a clock in milliseconds, negative if backwards.
    JumpMs,
    /// The drift of a clock in parts per million, negative if slow.
    DriftPpm,
    /// The time between two jumps of a clock in milliseconds.
    PeriodMs,
    /// A share in percent.
    Percent,
}

/// Sees each duration and each number of a fault, and may change it.
pub trait ParameterVisitor {
    /// Takes a duration.
    fn duration(&mut self, of: Quantity, value: &mut Duration);

    /// Takes a number.
    fn number(&mut self, of: Quantity, value: &mut i64);

    /// Takes the two ends of a range. By default each end is a duration of its own.
    fn range(&mut self, of: Quantity, value: &mut Range) {
        self.duration(of, &mut value.from);
        self.duration(of, &mut value.to);
    }

    /// Takes a delay, which may be replaced by one of the other form. By default the delay is a duration or a range.
    fn delay(&mut self, value: &mut LinkDelay) {
        match value {
            LinkDelay::Fixed(by) => self.duration(Quantity::Delay, by),
            LinkDelay::Drawn(by) => self.range(Quantity::Delay, by),
        }
    }
}

/// Shows a number of any type to `visitor`, and keeps the result within `allowed`.
pub(super) fn visit_number<T: Copy + TryInto<i64> + TryFrom<i64>>(
    visitor: &mut dyn ParameterVisitor,
    of: Quantity,
    value: &mut T,
    allowed: RangeInclusive<i64>,
) {
    let Ok(mut number) = (*value).try_into() else { return };
    visitor.number(of, &mut number);
    if let Ok(number) = T::try_from(number.clamp(*allowed.start(), *allowed.end())) {
        *value = number;
    }
}
