//! Draws numbers whose order of magnitude is unknown.

use std::time::Duration;

use rand::Rng;

/// Draws a number so that each order of magnitude between the two is as probable as any other.
pub fn scale(rng: &mut impl Rng, from: f64, to: f64) -> f64 {
    let (from, to) = (from.max(f64::MIN_POSITIVE), to.max(from));
    rng.random_range(from.ln()..=to.ln()).exp().clamp(from, to)
}

/// Draws a whole number as [`scale`] does.
pub fn count(rng: &mut impl Rng, from: u32, to: u32) -> u32 {
    scale(rng, f64::from(from), f64::from(to) + 0.99) as u32
}

/// Draws a duration of whole milliseconds as [`scale`] does.
pub fn length(rng: &mut impl Rng, from: Duration, to: Duration) -> Duration {
    let ms = |length: Duration| length.as_secs_f64() * 1e3;
    Duration::from_millis(scale(rng, ms(from), ms(to)).round() as u64).clamp(from, to.max(from))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn each_order_of_magnitude_is_as_probable() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<f64> = (0..3_000).map(|_| scale(&mut rng, 1.0, 1_000.0)).collect();
        for (from, to) in [(1.0, 10.0), (10.0, 100.0), (100.0, 1_000.0)] {
            let within = drawn.iter().filter(|n| (from..=to).contains(*n)).count();
            assert!((900..1_100).contains(&within), "{within} of 3000 between {from} and {to}");
        }
    }

    #[test]
    fn the_ends_belong_to_the_range() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u32> = (0..300).map(|_| count(&mut rng, 1, 4)).collect();
        assert!((1..=4).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (1..=4).contains(n)));
        let ms = Duration::from_millis;
        assert!((0..300).all(|_| (ms(7)..=ms(9)).contains(&length(&mut rng, ms(7), ms(9)))));
        assert_eq!(length(&mut rng, ms(9), ms(7)), ms(9), "an empty range is its first end");
    }
}
