//! Shards: parts of a suite that different machines run. Each machine computes the same partition from the rows alone.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// One part of a suite: `2/8` is the second of eight parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The number of the part, from 1.
    pub number: u32,
    /// The number of parts.
    pub of: u32,
}

impl Shard {
    /// The only part of a suite that is not divided.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };
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
    fn shards_take_about_the_same_time() {
        let times: Vec<Duration> = (0..30).map(|n| Duration::from_secs(6 + n * 7 % 11)).collect();
        let of = 4;
        let shards = partition(&times, of);
        let load = |shard| times.iter().zip(&shards).filter(|(_, of)| **of == shard).map(|(t, _)| *t).sum::<Duration>();
        let loads: Vec<Duration> = (1..=of).map(load).collect();
        let longest = times.iter().max().unwrap();
        assert_eq!(loads.iter().sum::<Duration>(), times.iter().sum());
        assert!(*loads.iter().max().unwrap() - *loads.iter().min().unwrap() <= *longest, "{loads:?}");
        assert_eq!(partition(&times[..3], u32::MAX), [3, 1, 2], "the longest row is in the first shard");
        assert!(partition(&[], 3).is_empty());
    }
}
