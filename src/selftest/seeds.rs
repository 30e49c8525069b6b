//! The same with many seeds, on all cores. What comes of it does not depend on how many there are.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// Seeds from 0 on, and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// How many.
    pub count: u64,
    /// Threads.
    pub jobs: usize,
}

/// What comes of each seed, in their order.
///
/// # Errors
/// That of the smallest seed that has one. A panic is one, too: its seed is what somebody needs to find it.
pub fn across<R: Send>(seeds: Seeds, run: &(dyn Fn(u64) -> Result<R, String> + Sync)) -> Result<Vec<(u64, R)>, String> {
    let (next, all) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..seeds.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.count {
                        break;
                    }
                    let done = catch_unwind(AssertUnwindSafe(|| run(seed)))
                        .unwrap_or_else(|_| Err("the simulation panicked, which is a bug of its own".into()));
                    all.lock().unwrap_or_else(PoisonError::into_inner).push((seed, done));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(seed, done)| done.map(|r| (seed, r)).map_err(|e| format!("seed {seed}: {e}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_seeds_is_in_their_order_and_the_first_error_is_told() {
        for jobs in [1, 2, 7] {
            let squares = across(Seeds { count: 50, jobs }, &|seed| Ok(seed * seed)).unwrap();
            assert_eq!(squares, (0..50).map(|n| (n, n * n)).collect::<Vec<_>>());
            let broken = |seed: u64| if seed % 10 == 7 { Err("odd".to_owned()) } else { Ok(()) };
            assert_eq!(across(Seeds { count: 50, jobs }, &broken).unwrap_err(), "seed 7: odd");
        }
    }
}
