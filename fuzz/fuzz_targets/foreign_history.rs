//! A history of another program: it is refused with a line, or judged within bounded memory. Judging twice gives the
//! same verdict.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linearizability::{Asked, Format, Verdict, check, read};

fuzz_target!(|bytes: &[u8]| {
    for format in [Format::JepsenEdn, Format::PorcupineLog] {
        let Ok((history, mut options)) = read(format, bytes, Asked::default()) else { continue };
        (options.memory, options.steps) = (16 << 20, 10_000_000);
        let verdict = check(&history, &options);
        assert_eq!(verdict, check(&history, &options));
        if let Verdict::NotLinearizable(conflict) = verdict {
            assert!(!conflict.words(&history).is_empty());
        }
    }
});
