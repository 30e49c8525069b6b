//! The binary as its users meet it: one test binary, so that everything is linked once.

mod arrows;
mod nemesis;
mod real;
mod simulated;
mod support;
mod usage;
