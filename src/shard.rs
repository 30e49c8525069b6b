//! Shards: parts of a suite or of a search that different machines run. Each machine computes the same partition from
//! the rows, or from the seeds, alone.

use std::{collections::BTreeMap, fmt, path::Path, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::exit::Unusable;

/// The most missing shards that a message names; of more, the number is told.
const NAMED: usize = 5;

/// One part of a suite or of a search: `2/8` is the second of eight parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The number of the part, from 1.
    pub number: u32,
    /// The number of parts.
    pub of: u32,
}

impl Shard {
    /// The only part of a whole that is not divided.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };

    /// Returns whether there is such a part. A shard from a file may have any numbers.
    pub fn exists(self) -> bool {
        (1..=self.of).contains(&self.number)
    }

    /// Parses a shard that is counted from 0: `0/8` is the first of eight parts.
    pub fn from_zero(text: &str) -> Result<Shard, String> {
        let expected = "expected INDEX/COUNT, such as `0/8` for the first of eight shards";
        let (index, of) = text.split_once('/').ok_or(expected)?;
        let (Ok(index), Ok(of)) = (index.parse::<u32>(), of.parse()) else { return Err(expected.into()) };
        match (index, of) {
            (_, 0) => Err(format!("there are no shards to choose from; {expected}")),
            _ if index >= of => Err(format!("the last index of {of} shards is {}; {expected}", of - 1)),
            _ => Ok(Shard { number: index + 1, of }),
        }
    }

    /// Returns the first one and the number of the shard's seeds. The shards of a range are consecutive ranges, whose
    /// sizes differ by at most one.
    pub fn seeds(self, first: u64, count: u64) -> (u64, u64) {
        // The quotient is at most `count`.
        let before = |shards: u32| (u128::from(count) * u128::from(shards) / u128::from(self.of)) as u64;
        let (from, to) = (before(self.number - 1), before(self.number));
        (first + from, to - from)
    }
}

/// Checks that each shard of a whole, which is called `name`, is there exactly once. Each comes with its file. The time
/// depends on the number of files, not on the number of shards that a file claims.
pub fn complete(name: &str, parts: &[(Shard, &Path)]) -> Result<(), Unusable> {
    let refused = |problem: String| Err(Unusable(format!("{name}: {problem}")));
    let Some((Shard { of, .. }, first)) = parts.first() else { return refused("no results".to_owned()) };
    if let Some((shard, path)) = parts.iter().find(|(shard, _)| shard.of != *of) {
        let (one, other) = (first.display(), path.display());
        return refused(format!("{one} and {other} are shards of different partitions: {} and {shard}", parts[0].0));
    }
    let mut files = BTreeMap::new();
    for (shard, path) in parts {
        if let Some(one) = files.insert(shard.number, *path) {
            let (one, other) = (one.display(), path.display());
            return refused(format!("shard {shard} is given twice: {one} and {other}; name one of them"));
        }
    }
    let missing = (1..=*of).filter(|number| !files.contains_key(number)).take(NAMED);
    let missing: Vec<String> = missing.map(|number| Shard { number, of: *of }.to_string()).collect();
    if !missing.is_empty() {
        let others = (*of as usize).saturating_sub(files.len() + missing.len());
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        let there = parts.iter().map(|(_, path)| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let missing = missing.join(", ");
        return refused(format!("no results of shard {missing}{more}; there are only: {there}"));
    }
    Ok(())
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let expected = "expected NUMBER/COUNT, such as `2/8` for the second of eight shards";
        let (number, of) = text.split_once('/').ok_or(expected)?;
        let (Ok(number), Ok(of)) = (number.parse(), of.parse()) else { return Err(expected.into()) };
        match (number, of) {
            (_, 0) => Err(format!("there are no shards to choose from; {expected}")),
            (0, _) => Err(format!("shards count from 1; {expected}")),
            _ if number > of => Err(format!("there is no shard {number} of {of}; {expected}")),
            _ => Ok(Shard { number, of }),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// Returns for each row the number of its shard, from the times that the rows are planned to take. The longest row goes
/// first, each to the shard with the least time so far, so that all shards take about the same time.
pub fn partition(times: &[Duration], of: u32) -> Vec<u32> {
    let mut rows: Vec<usize> = (0..times.len()).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(times[*row]));
    // More shards than rows stay empty, whatever their number.
    let mut loads = vec![Duration::ZERO; times.len().min(of as usize)];
    let mut shards = vec![1; times.len()];
    for row in rows {
        let least = (0..loads.len()).min_by_key(|shard| loads[*shard]).unwrap_or_default();
        loads[least] += times[row];
        shards[row] = u32::try_from(least).unwrap_or_default() + 1;
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_cannot_be_is_refused() {
        for (text, words) in [
            ("0/8", "count from 1"),
            ("9/8", "no shard 9 of 8"),
            ("a/b", "expected NUMBER/COUNT"),
            ("2", "expected NUMBER/COUNT"),
            ("1/0", "no shards to choose from"),
            ("-1/8", "expected NUMBER/COUNT"),
            ("1/8/8", "expected NUMBER/COUNT"),
        ] {
            assert!(text.parse::<Shard>().unwrap_err().contains(words), "{text}");
        }
        assert_eq!("2/8".parse::<Shard>().unwrap().to_string(), "2/8");
    }

    #[test]
    fn an_index_counts_from_zero() {
        assert_eq!(Shard::from_zero("0/8").unwrap(), "1/8".parse().unwrap());
        assert_eq!(Shard::from_zero("7/8").unwrap(), "8/8".parse().unwrap());
        for (text, words) in [
            ("8/8", "the last index of 8 shards is 7"),
            ("0/0", "no shards to choose from"),
            ("-1/8", "expected INDEX/COUNT"),
            ("1", "expected INDEX/COUNT"),
            ("4294967295/8", "the last index"),
            ("$(JOB_COMPLETION_INDEX)/8", "expected INDEX/COUNT"),
        ] {
            assert!(Shard::from_zero(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn a_whole_has_each_shard_once() {
        let parts = |numbers: &[u32], of| -> Vec<(Shard, &Path)> {
            numbers.iter().map(|number| (Shard { number: *number, of }, Path::new("one.jsonl"))).collect()
        };
        assert!(complete("s", &parts(&[2, 1, 3], 3)).is_ok());
        for (numbers, of, words) in [
            (&[1, 2, 1][..], 2, "shard 1/2 is given twice"),
            (&[2][..], 4, "no results of shard 1/4, 3/4, 4/4; there are only"),
            (&[2][..], 7, "no results of shard 1/7, 3/7, 4/7, 5/7, 6/7 and 1 more; there are only"),
            (&[1][..], u32::MAX, "6/4294967295 and 4294967289 more; there are only"),
            (&[][..], 1, "no results"),
        ] {
            let refused = complete("s", &parts(numbers, of)).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn each_seed_is_in_one_shard() {
        for (count, of) in [(10, 3), (3, 8), (1_000, 7), (1, 1)] {
            let parts: Vec<_> = (1..=of).map(|number| Shard { number, of }.seeds(5, count)).collect();
            let mut next = 5;
            for (first, length) in &parts {
                assert_eq!(*first, next, "{count} seeds in {of} shards");
                assert!(length.abs_diff(count / u64::from(of)) <= 1, "{parts:?}");
                next += length;
            }
            assert_eq!(next, 5 + count);
        }
        let (first, length) = Shard { number: u32::MAX, of: u32::MAX }.seeds(0, u64::MAX);
        assert_eq!(first + length, u64::MAX);
    }

    #[test]
    fn shards_take_about_the_same_time() {
        let times: Vec<Duration> = (0..30).map(|n| Duration::from_secs(6 + n * 7 % 11)).collect();
        let of = 4;
        let shards = partition(&times, of);
        let load = |shard| times.iter().zip(&shards).filter(|(_, of)| **of == shard).map(|(t, _)| *t).sum::<Duration>();
        let loads: Vec<Duration> = (1..=of).map(load).collect();
        let longest = times.iter().max().unwrap();
        assert_eq!(loads.iter().sum::<Duration>(), times.iter().sum::<Duration>());
        assert!(*loads.iter().max().unwrap() - *loads.iter().min().unwrap() <= *longest, "{loads:?}");
        assert_eq!(partition(&times[..3], u32::MAX), [3, 1, 2], "the longest row is in the first shard");
        assert!(partition(&[], 3).is_empty());
    }
}
