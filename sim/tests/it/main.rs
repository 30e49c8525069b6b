//! Simulations as whole runs.

mod determinism;
mod plans;
mod redis_conformance;
mod redis_server;
