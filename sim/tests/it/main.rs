//! Simulations as whole runs.

mod determinism;
mod faults;
mod plans;
#[path = "../../../tests/shared/redis_binary.rs"]
mod redis_binary;
mod redis_conformance;
mod redis_server;
mod redraw;
