//! The fenced resource: the state that a distributed lock protects. Only the resource itself can refuse a stale write.
//!
//! The resource keeps one value for each key and for each [`history::Arm`], which is one policy of admitting writes.
//! One request reads or writes all arms, and one [`Admission`] records the decision of each arm. So a single run shows
//! the effect of each policy.
//!
//! * [`State::decide`] is the rule: pure, without I/O, and the same on a real cluster and in a simulation.
//! * [`Resource`] serves the rule over HTTP. An answer leaves only after everything that it shows is on disk.
//! * [`Resource::over_postgres`] lets a Postgres server decide by conditional updates, and keeps the admission log.
//! * [`Resource::over_etcd`] does the same with the cluster that keeps the lock.
//! * [`Resource::over_s3`] keeps the state in one object of an object store, which a conditional put replaces.
//! * [`Client`] sends requests. It never retries, and says of each failure whether the request may have been applied.
//!
//! # The HTTP interface
//!
//! | request | meaning |
//! | --- | --- |
//! | `GET /r/{key}` | returns value, version and highest token; the arm `reads` registers an `X-Fence-Token` |
//! | `PUT /r/{key}` | writes, with `X-Fence-Token`; 200: applied, 409: refused |
//! | `GET /metrics` | Prometheus text |
//! | `GET /healthz` | 200 when the store is open |
//!
//! A write on the arm `deadline` has an `X-Deadline`, in microseconds since 1970.
//! `X-Hold` is the number of the hold. `X-Op` is the number of the operation, unique in its hold: the resource applies
//! an operation once and repeats its former answer. Each answer to a decided request has its admission number in
//! `X-Admission`, and `X-Repeat: true` if the former answer was repeated. With one arm the body of a PUT is the value,
//! and `X-Base` the version from which the value was computed. With several arms the body is `{"arms": {"off": {"base":
//! 0, "value": "1"}, …}}`.

mod admission;
mod answer;
mod asked;
mod buggy;
mod client;
mod decide;
mod etcd;
mod http;
mod key_state;
mod limits;
mod metrics;
mod moment;
mod policy;
mod postgres;
mod request;
mod s3;
mod server;
mod service;
mod store;
mod timeouts;

pub use admission::{Admission, ArmOutcome};
pub use buggy::{PlantedBug, UnknownBug};
pub use client::{Client, ClientError, PreparedWrite, ReadAnswer, ReadArm, WriteAnswer, WriteArm};
pub use decide::{DecidedOperation, Refusal, State};
pub use etcd::LockKeys;
pub use key_state::{ArmState, HighestToken, KeyState};
pub use limits::Limits;
pub use moment::{Moment, Observer, WallClock};
pub use policy::{Policy, PolicyError};
pub use request::{Action, KEY_BYTES_MAX, KeyError, Proposal, Request, parse_key};
pub use server::{Config, Resource, ServeError};
pub use store::StoreError;
