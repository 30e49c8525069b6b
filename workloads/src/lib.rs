//! The clients of a run: generators, the client, and the worker process around the clients.
//!
//! | to find | look in |
//! | --- | --- |
//! | the times of critical sections (pure) | [`generate`] |
//! | the steps of a client in a critical section | [`client`] |
//! | the ports of a client: journal, resource | [`ports`] |
//! | events made from the callbacks of `locks` | [`attempt`] |
//! | events made from decisions of the resource | [`admission`] |
//! | waiting at protocol points, waiting for the end | [`points`], [`stop_signal`] |
//! | random numbers that are drawn anew from an instant on | [`stream`] |
//! | the table of backends | [`backend`] |
//! | the worker and its commands | [`worker`], [`protocol`] |

pub mod admission;
pub mod attempt;
pub mod backend;
mod belief;
pub mod client;
mod client_program;
pub mod generate;
pub mod points;
pub mod ports;
pub mod protocol;
pub mod stop_signal;
pub mod stream;
pub mod worker;
