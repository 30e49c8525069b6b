//! Faults: drawing schedules from a seed; inject, prove, heal.
//!
//! [`draw`](draw()) makes the schedule of a plan, purely. [`Nemesis`] carries it out over three ports: what it may do to the
//! [`Cluster`], what it may ask of the run's own processes ([`Control`]), and what it sees of the run ([`Scene`]).
//! Every fault is one file with the same four parts: inject, prove through the target itself, heal, prove healed.
//!
//! | fault | file | injected by | proved by |
//! | --- | --- | --- | --- |
//! | `pause` | `pause.rs` | the container freezer | a gap between the target's own ticks of ≥ 90 % of what was asked |
//! | `stop` | `stop.rs` | SIGSTOP to the target's first process | the same |
//! | `slow` | `slow.rs` | a quota of processor time | late ticks; a healthcheck that takes much longer |
//! | `kill`, `amnesia`, `powerloss` | `restart.rs` | SIGKILL, a new start after a delay, with all, none or the synced data | the end of one process and the first event of the next; a server that does not answer, and answers again |
//! | `clock` | `clock.rs` | an offset or another rate of a clock of the target's processes | what the target itself reads, and tells when it is asked for the time |
//! | `partition`, `delay`, `loss`, `reorder` | `links.rs` | packets that are dropped, all or some, or late, all alike or each by a draw | probes |

mod clock;
mod cluster;
mod control;
mod draw;
mod group;
mod links;
mod pause;
mod restart;
mod run;
mod scene;
mod slow;
mod stop;
mod turns;
mod waits;
mod wish;

pub use cluster::{Cluster, ClusterError, Data, Doing};
pub use control::Control;
pub use draw::{Draw, draw};
pub use run::{Nemesis, NemesisError};
pub use scene::{Holder, Scene, View};
pub use wish::{Wish, WishError, parse};
