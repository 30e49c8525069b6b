//! Faults: draws schedules from a seed, and injects, proves and heals faults.
//!
//! [`draw`](draw()) makes the schedule of a plan from the words of `--nemesis` and the seed. [`Nemesis`] carries the
//! schedule out over three ports: [`Cluster`] injects and heals, [`Control`] commands the run's own processes, and
//! [`LiveView`] shows the state of the run. [`Controller`] takes a whole run through its phases; [`Recorder`] numbers
//! the run's events. Docker and the simulation implement the ports, and share all other code.
//!
//! Every kind of fault has one file here, behind the trait `Driver`, and one row in the list in `driver.rs`. The crate
//! `history` has the other half of the kind: its parameters.
//!
//! | fault | file | injected by | proved by |
//! | --- | --- | --- | --- |
//! | `pause` | `pause.rs` | the container freezer | a gap of ≥ 90 % of the length between the target's ticks |
//! | `stop` | `pause.rs` | SIGSTOP to the target's first process | as `pause` |
//! | `slow` | `slow.rs` | a quota of processor time | late ticks of a worker; a slow healthcheck of a server |
//! | `kill`, `amnesia`, `powerloss` | `kill.rs` | SIGKILL, and a later start | the process ends; a new one starts |
//! | `clock` | `clock.rs` | an offset or another rate of a clock | the time that the target reads and reports |
//! | `partition` | `partition.rs` | dropped or rejected packets | probes that do not get through |
//! | `delay`, `reorder` | `delay.rs` | late packets | probes that take as long as the delay |
//! | `loss` | `loss.rs` | packets dropped at random | probes that are lost or late |
//! | `flap` | `flap.rs` | packets dropped in every other turn | probes in a cut and between two cuts |

mod clock;
mod cluster;
mod control;
mod controller;
mod delay;
#[cfg(test)]
mod double;
mod draw;
mod drawing;
mod driver;
mod first_client;
mod flap;
mod group;
mod injection;
mod kill;
mod links;
mod live_view;
mod loss;
mod node_slots;
mod parse;
mod partition;
mod pause;
mod processes;
mod recorder;
mod run;
mod slow;
mod spec;
mod waits;

pub use cluster::{AnswerTime, Cluster, ClusterError, Doing};
pub use control::Control;
pub use controller::{Controller, ControllerError, Phase, final_reads_within};
pub use draw::draw;
pub use drawing::Draw;
pub use history::fault::Data;
pub use live_view::{Holder, LiveView, Progress, View};
pub use parse::parse;
pub use processes::Processes;
pub use recorder::Recorder;
pub use run::{Nemesis, NemesisError};
pub use spec::{FaultSpec, FaultSpecError, Group};
