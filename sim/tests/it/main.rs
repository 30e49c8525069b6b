//! Simulations as whole runs, and the models against real servers.

mod conformance;
mod contenders;
mod determinism;
mod faults;
mod memory_conformance;
mod plans;
#[path = "../../../tests/shared/postgres_binary.rs"]
mod postgres_binary;
mod postgres_conformance;
#[path = "../../../tests/shared/postgres_server.rs"]
mod postgres_server;
mod postgres_sessions;
#[path = "../../../tests/shared/real.rs"]
mod real;
#[path = "../../../tests/shared/redis_binary.rs"]
mod redis_binary;
mod redis_conformance;
mod redis_server;
mod redraw;
#[path = "../../../tests/shared/say.rs"]
mod say;
mod traffic;
mod truth;
mod waits;
