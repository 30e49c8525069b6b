//! Runs many seeds on all cores. The results do not depend on the number of cores.

use crate::explore::sweep::{caught, each};

/// Consecutive seeds, and the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// The first seed.
    pub first: u64,
    /// The number of seeds.
    pub count: u64,
    /// Threads.
    pub jobs: usize,
}

/// Runs each seed, and returns the results, errors and panics in the order of the seeds.
pub fn all<R: Send>(
    seeds: Seeds,
    run: &(dyn Fn(u64) -> Result<R, String> + Sync),
) -> impl Iterator<Item = (u64, Result<R, String>)> {
    let all: Vec<u64> = (seeds.first..).take_while(|seed| seed - seeds.first < seeds.count).collect();
    let results = each(seeds.jobs, &all, &|seed| caught(|| run(*seed)));
    all.into_iter().zip(results)
}

/// Runs each seed, and returns the results in the order of the seeds.
///
/// # Errors
/// The error or panic of the smallest seed that has one, with the seed.
pub fn across<R: Send>(seeds: Seeds, run: &(dyn Fn(u64) -> Result<R, String> + Sync)) -> Result<Vec<(u64, R)>, String> {
    let with_seed = |(seed, result): (u64, Result<R, String>)| match result {
        Ok(result) => Ok((seed, result)),
        Err(error) => Err(format!("seed {seed}: {error}")),
    };
    all(seeds, run).map(with_seed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_seeds_and_the_first_error_is_returned() {
        for jobs in [1, 2, 7] {
            let squares = across(Seeds { first: 0, count: 50, jobs }, &|seed| Ok(seed * seed)).unwrap();
            assert_eq!(squares, (0..50).map(|n| (n, n * n)).collect::<Vec<_>>());
            let later = across(Seeds { first: 7, count: 2, jobs }, &Ok).unwrap();
            assert_eq!(later, [(7, 7), (8, 8)]);
            let broken = |seed: u64| if seed % 10 == 7 { Err("odd".to_owned()) } else { Ok(()) };
            assert_eq!(across(Seeds { first: 0, count: 50, jobs }, &broken).unwrap_err(), "seed 7: odd");
        }
    }
}
