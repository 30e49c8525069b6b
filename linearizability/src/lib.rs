//! Decides whether a recorded history is linearizable: of a register, a register with compare-and-set, a lock, a lock
//! with fencing tokens, or a key-value store.
//!
//! Each object is judged alone. A register with unique values is judged by its zones, and a lock whose clients acquire
//! and release in turn by its holds, both in the time of one sort; everything else by a search whose memory and steps
//! are bounded (`search.rs`). A verdict is exact, or [`Verdict::Inconclusive`].
//!
//! ```
//! use linearizability::{Asked, Format, Verdict, check, read};
//!
//! let record = "{:process 0, :type :invoke, :f :write, :value 1}
//!               {:process 1, :type :invoke, :f :read, :value nil}
//!               {:process 0, :type :ok, :f :write, :value 1}
//!               {:process 1, :type :ok, :f :read, :value 2}";
//! let (history, options) = read(Format::JepsenEdn, record.as_bytes(), Asked::default())?;
//! let Verdict::NotLinearizable(conflict) = check(&history, &options) else { panic!("nobody wrote 2") };
//! let read = "`read 2` of process 1 (lines 2 and 4)";
//! assert_eq!(conflict.words(&history), format!("nobody can have written the value of {read} before its answer"));
//! # Ok::<(), linearizability::FormatError>(())
//! ```

mod check;
mod formats;
mod holds;
mod model;
mod nowhere;
mod operation;
mod reason;
mod search;
#[cfg(test)]
mod tests;
mod text;
mod zones;

pub use check::{Conflict, Options, Verdict, check};
pub use formats::{Asked, Format, FormatError, read};
pub use model::ModelKind;
pub use operation::{Action, Client, History, Operation, Value, Values};
pub use reason::Reason;
