//! What a process may do that lacks a capability, as an agent in a container that was not given it.

#![allow(unsafe_code, reason = "capabilities of a thread are set by system calls")]

use std::thread;

/// Version 3 of the kernel's interface: two words a set.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Set {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Runs `work` in a thread of its own that has lost `capability` for good, and so have all threads and programs that it
/// starts. None if this process does not have it, or may not give it up. Numbers of capabilities: capabilities(7); one
/// below 32.
pub fn without<T: Send>(capability: u32, work: impl FnOnce() -> T + Send) -> Option<T> {
    let lose_it_and_work = || {
        let header = Header { version: VERSION, pid: 0 };
        let mut sets = [Set::default(); 2];
        // SAFETY: the kernel writes two sets, reads a number and the sets again; it is a thread of its own that has
        // other bounds then.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()), 0);
            let has = sets[0].effective & (1_u32 << capability) != 0;
            if !has || libc::prctl(libc::PR_CAPBSET_DROP, capability) != 0 {
                return None;
            }
            let kept = !(1_u32 << capability);
            sets[0].effective &= kept;
            sets[0].permitted &= kept;
            sets[0].inheritable &= kept;
            assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()), 0);
        }
        Some(work())
    };
    thread::scope(|scope| scope.spawn(lose_it_and_work).join().expect("no panic"))
}
