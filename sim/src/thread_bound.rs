//! Values that one thread owns.

use std::cell::{RefCell, RefMut};

use fragile::Fragile;

/// A value that only the thread that made it may use; any other thread panics.
///
/// The ports require `Send` and `Sync`, though a simulation never leaves its thread. A message passes a dozen such
/// values: a mutex costs two atomic operations at each of them, and this type costs one comparison.
pub(crate) struct ThreadBound<T>(Fragile<RefCell<T>>);

impl<T> ThreadBound<T> {
    pub fn new(value: T) -> ThreadBound<T> {
        ThreadBound(Fragile::new(RefCell::new(value)))
    }
}

impl<T: Default> Default for ThreadBound<T> {
    fn default() -> ThreadBound<T> {
        ThreadBound::new(T::default())
    }
}

/// Borrows the value mutably.
pub(crate) fn lock<T>(local: &ThreadBound<T>) -> RefMut<'_, T> {
    local.0.get().borrow_mut()
}
