//! Intervals for shares and for differences. All intervals are two-sided, at 95 %.

/// Half the width of the interval of a normal distribution, in standard deviations.
const Z: f64 = 1.959_964;

/// The probability outside of an interval, on one side.
const TAIL: f64 = 0.025;

/// The most pairs of values for which the distribution of the rank sum is counted, and not approximated.
const COUNTED: usize = 2_500;

/// A value with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The value.
    pub value: f64,
    /// The lower end.
    pub from: f64,
    /// The upper end.
    pub to: f64,
}

/// Returns the share of `k` of `n`, and the ends of its interval.
///
/// Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
pub fn wilson(k: u64, n: u64) -> (f64, f64, f64) {
    if n == 0 {
        return (f64::NAN, 0.0, 1.0);
    }
    let (p, n) = (k as f64 / n as f64, n as f64);
    let (z2, scale) = (Z * Z, 1.0 + Z * Z / n);
    let middle = (p + z2 / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (p, (middle - half).max(0.0), (middle + half).min(1.0))
}

/// Returns the quantile for `share`; none without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * (sorted.len().checked_sub(1)? as f64)).round() as usize;
    sorted.get(at).copied()
}

/// Returns the difference of two shares, the second less the first. None if one has no runs.
///
/// Newcombe, "Interval estimation for the difference between independent proportions", 1998, method 10.
pub fn difference_of_shares((k1, n1): (u64, u64), (k2, n2): (u64, u64)) -> Option<Interval> {
    if n1 == 0 || n2 == 0 {
        return None;
    }
    let ((p1, low1, high1), (p2, low2, high2)) = (wilson(k1, n1), wilson(k2, n2));
    let value = p2 - p1;
    let (below, above) = ((p2 - low2).hypot(high1 - p1), (high2 - p2).hypot(p1 - low1));
    Some(Interval { value, from: value - below, to: value + above })
}

/// Returns the shift from the values of `a` to those of `b`: the median of all differences. None if there are too few
/// values for an interval.
///
/// Hodges and Lehmann, "Estimates of location based on rank tests", 1963; the interval is that of Mann and Whitney.
pub fn shift(a: &[f64], b: &[f64]) -> Option<Interval> {
    let mut differences: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
    differences.sort_by(f64::total_cmp);
    let outside = outside(a.len(), b.len())?;
    let (pairs, middle) = (differences.len(), differences.len() / 2);
    let value =
        if pairs % 2 == 1 { differences[middle] } else { (differences[middle - 1] + differences[middle]) / 2.0 };
    Some(Interval { value, from: differences[outside], to: differences[pairs - 1 - outside] })
}

/// Returns how many of the sorted differences lie outside of the interval at each end. None if even the whole range is
/// too narrow.
fn outside(n: usize, m: usize) -> Option<usize> {
    if n == 0 || m == 0 {
        return None;
    }
    if n * m > COUNTED {
        let (n, m) = (n as f64, m as f64);
        return Some((n * m / 2.0 - Z * (n * m * (n + m + 1.0) / 12.0).sqrt()).floor() as usize);
    }
    let orders = orders(n, m);
    let all: f64 = orders.iter().sum();
    let mut below = 0.0;
    let fits = orders.iter().take_while(|orders| {
        below += **orders / all;
        below <= TAIL
    });
    // The last of the rank sums that together are rare enough. As many differences lie outside at each end.
    fits.count().checked_sub(1)
}

/// Counts the orders of `n` and `m` values by their rank sum U, from 0.
fn orders(n: usize, m: usize) -> Vec<f64> {
    // by[j][u]: orders of the values taken so far and `j` of the others.
    let mut by = vec![vec![1.0]; m + 1];
    for _ in 0..n {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=m {
            // The largest value is one of the others, or one of ours, above all `j` others.
            let mut counts = next[j - 1].clone();
            let with = &by[j];
            counts.resize(counts.len().max(with.len() + j), 0.0);
            with.iter().enumerate().for_each(|(u, count)| counts[u + j] += count);
            next.push(counts);
        }
        by = next;
    }
    by.swap_remove(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-4
    }

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        // Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I: 81 of 263, 15 of 148,
        // 0 of 20, 1 of 29.
        for (k, n, from, to) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
        {
            let (_, low, high) = wilson(k, n);
            assert!(near(low, from) && near(high, to), "{k} of {n}: {low} {high}");
        }
        assert_eq!((wilson(0, 0).1, wilson(0, 0).2), (0.0, 1.0));
    }

    #[test]
    fn the_interval_of_a_difference_is_newcombes() {
        // Newcombe, "Interval estimation for the difference between independent proportions", 1998, table II.
        for ((k1, n1), (k2, n2), from, to) in
            [((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090), ((0, 20), (10, 10), 0.6791, 1.0)]
        {
            let found = difference_of_shares((k1, n1), (k2, n2)).unwrap();
            assert!(near(found.from, from) && near(found.to, to), "{k2}/{n2} − {k1}/{n1}: {found:?}");
        }
        assert_eq!(difference_of_shares((0, 0), (1, 1)), None);
    }

    #[test]
    fn the_distribution_of_ranks_is_that_of_the_tables() {
        assert_eq!(orders(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        // Two-sided critical values of U at 5 %.
        for (n, m, critical) in [(4, 4, 0), (5, 5, 2), (5, 8, 6), (10, 10, 23), (20, 20, 127)] {
            assert_eq!(outside(n, m), Some(critical), "{n} and {m}");
        }
        assert_eq!(outside(3, 3), None);
        assert_eq!(outside(1, 30), None);
    }

    #[test]
    fn the_counted_and_the_approximated_ends_agree() {
        let approximated = outside(51, 50).unwrap();
        let counted = outside(50, 50).unwrap();
        assert!(approximated.abs_diff(counted) < 40, "{approximated} {counted}");
    }

    #[test]
    fn a_shift_of_all_values_is_found() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = a.map(|value| value + 10.0);
        let found = shift(&a, &b).unwrap();
        assert_eq!(found.value, 10.0);
        assert!(found.from > 0.0 && found.from < 10.0 && found.to > 10.0, "{found:?}");
        let none = shift(&a, &a).unwrap();
        assert!(none.from < 0.0 && none.to > 0.0);
        assert_eq!(shift(&a[..3], &b[..3]), None);
        // Of 16 differences, 20 and 27 are in the middle.
        let even = shift(&[0.0, 1.0, 2.0, 3.0], &[10.0, 20.0, 30.0, 40.0]).unwrap();
        assert_eq!(even.value, 23.5);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.9), Some(3.0));
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 0.5), Some(3.0));
    }
}
