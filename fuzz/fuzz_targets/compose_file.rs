//! A Compose file of the user's own.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| drop(compose::ComposeFile::parse(text, "fuzz")));
