//! Text that should be a suite, with the words of its expectations, causes and witnesses.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| harness::fuzzing::suite(text));
