//! What only one thread ever touches.

use std::cell::{RefCell, RefMut};

use fragile::Fragile;

/// A value of the thread that made it; a panic for any other. The ports ask for `Send` and `Sync`, though nothing of a simulation ever leaves its
/// thread; a mutex that nobody waits for costs two atomic operations, at each of the dozen places that a message passes, and this costs a
/// comparison.
pub(crate) struct Local<T>(Fragile<RefCell<T>>);

impl<T> Local<T> {
    pub fn new(value: T) -> Local<T> {
        Local(Fragile::new(RefCell::new(value)))
    }
}

impl<T: Default> Default for Local<T> {
    fn default() -> Local<T> {
        Local::new(T::default())
    }
}

/// The value, for the caller alone until it lets go.
pub(crate) fn lock<T>(local: &Local<T>) -> RefMut<'_, T> {
    local.0.get().borrow_mut()
}
