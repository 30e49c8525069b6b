//! What clients do: generators, the client, the worker process around it.
//!
//! | to find | look in |
//! | --- | --- |
//! | which critical section begins when (pure) | [`generate`] |
//! | what a client does in one | [`client`] |
//! | its ports: journal, resource | [`ports`] |
//! | how the words of `locks` become events | [`attempt`] |
//! | how decisions of the resource become events | [`admission`] |
//! | waiting at protocol points, waiting for the end | [`points`], [`over`] |
//! | the locks by name | [`backend`] |
//! | the worker: commands in, events out | [`worker`], [`protocol`] |

pub mod admission;
pub mod attempt;
pub mod backend;
pub mod client;
pub mod generate;
pub mod over;
pub mod points;
pub mod ports;
pub mod protocol;
pub mod worker;
