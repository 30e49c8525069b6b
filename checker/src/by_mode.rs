//! Figures of one key, apart for each mode of the holds that they come from. A hold is compared with the modes that
//! conflict with its own, of which there are at most five, so the number of holds does not matter.

use history::Mode;

use crate::rules;

/// The modes that only some locks have: all but that of a writer.
const OTHERS: usize = Mode::ALL.len() - 1;

/// One value for each mode. Most keys have writers only, so the other values are made when a hold needs one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByMode<T> {
    write: T,
    /// In the order of [`Mode::ALL`], whose last mode is that of a writer.
    others: Option<Box<[T; OTHERS]>>,
}

impl<T: Default> ByMode<T> {
    /// The value of holds in this mode.
    pub fn of(&mut self, mode: Mode) -> &mut T {
        match mode {
            Mode::Write => &mut self.write,
            mode => &mut self.others.get_or_insert_default()[mode as usize],
        }
    }

    /// Returns whether a value was made for this mode.
    pub fn has(&self, mode: Mode) -> bool {
        mode == Mode::Write || self.others.is_some()
    }

    /// The values of holds that conflict with a hold in this mode.
    pub fn against(&self, mode: Mode) -> impl Iterator<Item = &T> {
        let others = self.others.as_deref().map_or(&[][..], |others| others);
        let others = others.iter().zip(&Mode::ALL).filter(move |(_, other)| rules::conflict(mode, **other));
        others.map(|(one, _)| one).chain(rules::conflict(mode, Mode::Write).then_some(&self.write))
    }
}
