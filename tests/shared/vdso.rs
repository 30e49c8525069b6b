//! The code by which a process reads clocks.

use std::{
    fs::{File, read_to_string},
    os::unix::fs::FileExt,
};

/// As it stands in the memory of `pid`.
pub fn vdso(pid: impl std::fmt::Display) -> Vec<u8> {
    let maps = read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
    let mut bytes = vec![0; (end - start) as usize];
    File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, start).unwrap();
    bytes
}
