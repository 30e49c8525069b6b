//! Text that should be a plan. A short plan that the simulation takes is run there, and its history is judged.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| harness::fuzzing::plan(text));
