//! The lock clients against nodes in memory, under virtual time, and against real servers where there are any.

mod attempt;
mod cluster;
mod planted;
mod real;
mod renewal;
mod store;
mod tokens;
mod watches;
