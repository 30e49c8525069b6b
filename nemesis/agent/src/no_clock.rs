//! Stands in for the module `clock` on machines whose vDSO the agent cannot rewrite.

use thiserror::Error;

use crate::protocol::{ClockAnswer, ClockRequest};

/// Every order is refused with this error.
#[derive(Debug, Error)]
#[error("clocks can be moved on x86-64 only, and this machine is {}", std::env::consts::ARCH)]
pub struct ClockError;

/// Refuses every order.
///
/// # Errors
///
/// Always: the code that replaces the functions of the vDSO is for x86-64.
pub fn obey(_request: ClockRequest) -> Result<ClockAnswer, ClockError> {
    Err(ClockError)
}
