//! Figures of one key, apart for each mode of the holds that they come from. A hold is compared with the modes that
//! conflict with its own, of which there are at most five, so the number of holds does not matter.

use history::Mode;

use crate::rules;

/// One value for each mode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ByMode<T>([T; Mode::ALL.len()]);

impl<T> ByMode<T> {
    /// The value of holds in this mode.
    pub fn of(&mut self, mode: Mode) -> &mut T {
        &mut self.0[mode as usize]
    }

    /// The values of holds that conflict with a hold in this mode.
    pub fn against(&self, mode: Mode) -> impl Iterator<Item = &T> {
        Mode::ALL.into_iter().zip(&self.0).filter(move |(other, _)| rules::conflict(mode, *other)).map(|(_, one)| one)
    }
}
