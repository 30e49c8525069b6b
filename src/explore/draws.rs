//! The random streams of a seed. The run itself has other ones, with small numbers.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The draws from a seed. Each kind has a stream of its own, so that no draw decides another one.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub enum Draws {
    /// The plan of a swarm, but for the capabilities.
    Plan = 1 << 60,
    /// The parts that a mutant has of its parent.
    Mutation,
    /// The capabilities that a plan of a swarm uses.
    Capabilities,
    /// The seeds of the redraws of a finding.
    Redraws,
    /// The parent of a mutant, or that the plan is no mutant.
    Parent,
}

impl Draws {
    /// Returns the random source of these draws.
    pub fn of(self, seed: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(self as u64);
        rng
    }
}
