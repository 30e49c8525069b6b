//! The loop that runs a world: it polls woken tasks, hands records over, and goes on to the next due event.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use history::Record;

use super::World;
use crate::{clock::START, executor::STEPS_MAX};

impl World {
    /// Runs the world until a task sets `is_over`, and gives the records to `see`, in batches and in order.
    ///
    /// # Errors
    /// Virtual time stands still, or no event is left before the run is over.
    pub fn run(self: &Arc<Self>, is_over: &AtomicBool, see: &mut dyn FnMut(Record)) -> Result<(), String> {
        loop {
            self.executor.settle(|| self.show());
            self.show();
            if self.is_batch_full() {
                self.hand_over(see);
            }
            if is_over.load(Relaxed) {
                return Ok(());
            }
            if self.executor.is_stuck() {
                let at = self.executor.now().since(START);
                return Err(format!(
                    "virtual time stands still at {at:?}: tasks have woken each other {STEPS_MAX} times. This is a \
                     fault of the simulation or of a client; the plan reproduces it"
                ));
            }
            if !self.executor.step(self) {
                return Err("no event is left to simulate, and the run is not over".to_owned());
            }
        }
    }
}
