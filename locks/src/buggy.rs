//! Locks that are wrong on purpose: a checker that does not catch each of them is worth nothing.
//!
//! Each is the correct client with one thing left out. They are reached by name only.

use std::sync::Arc;

use crate::{
    ports::{Clock, Lock, Node},
    redlock::{Redlock, Tokens},
};

/// The planted bugs: name, and what it does.
pub const BUGGY: &[(&str, &str)] = &[
    ("forgets-nx", "sets the key although somebody else holds it: SET without NX"),
    ("no-validity", "claims the hold however late the answer is read: no validity check"),
];

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The condition that the key is free.
    ForgetsNx,
    /// Every look at the clock before a hold or a renewal is claimed.
    NoValidity,
}

/// The lock with the bug of this name from [`BUGGY`]: `redis` on one node, `redlock` with two-phase tokens on several;
/// `None` if no bug has this name.
///
/// # Panics
/// If there are no nodes.
pub fn buggy(name: &str, nodes: Vec<Arc<dyn Node>>, clock: Arc<dyn Clock>) -> Option<Arc<dyn Lock>> {
    let flaw = match name {
        "forgets-nx" => Flaw::ForgetsNx,
        "no-validity" => Flaw::NoValidity,
        _ => return None,
    };
    let tokens = if nodes.len() == 1 { Tokens::MajorityMax } else { Tokens::TwoPhase };
    Some(Arc::new(Redlock::new(nodes, clock, tokens).with_flaw(flaw)))
}
