//! The fenced resource: the thing that a distributed lock is supposed to protect, and the only place
//! where it can really be protected.
//!
//! It keeps one value a key, once for each [`Arm`]: one policy of admitting writes. All arms are read
//! in one request and written in one, and each request is decided on all of them in one
//! [`Admission`], so that a single run shows what each policy would have done.
//!
//! * [`State::decide`] is the rule: pure, without I/O, the same on a real cluster and in a simulation.
//! * [`Resource`] serves it over HTTP and answers nothing before all that the answer shows is on disk.
//! * [`Client`] talks to it, never retries by itself, and says of each failure whether the request may
//!   have been applied.
//!
//! # The HTTP interface
//!
//! | request | meaning |
//! | --- | --- |
//! | `GET /r/{key}` | value, version and highest token; with `X-Fence-Token` the arm `reads` registers the token |
//! | `PUT /r/{key}` | a write, with `X-Fence-Token`; 200 applied, 409 refused |
//! | `GET /metrics` | Prometheus text |
//! | `GET /healthz` | 200 when the store is open |
//!
//! `X-Hold` (a number) says which hold asks and `X-Op` (a number, unique in its hold) which of its
//! operations this is: the resource applies an operation once and repeats its former answer when it is
//! asked again. Every decided answer carries its place in the admission order in `X-Admission`, and
//! `X-Repeat: true` where it is a repeat. With one arm the body of a PUT is the value itself (and
//! `X-Base` the version that it was computed from); with several it is
//! `{"arms": {"off": {"base": 0, "value": "1"}, …}}`.

mod answer;
mod buggy;
mod client;
mod decide;
mod http;
mod metrics;
mod patience;
mod policy;
mod service;
mod store;
mod types;

pub use buggy::{Planted, UnknownBug};
pub use client::{Client, ClientError, PreparedWrite, ReadAnswer, ReadArm, WriteAnswer, WriteArm};
pub use decide::{ArmState, Former, KeyState, Refusal, Seen, State};
pub use policy::{Arm, Comparison, Policy, PolicyError, UnknownArm};
pub use service::{Config, Limits, Observer, Resource, ServeError};
pub use store::StoreError;
pub use types::{Action, Admission, ArmOutcome, HoldId, Key, KeyError, Kind, OpId, Proposal, Request, Token, Version};
