//! A value for each key of a run, in pages: a run with many keys neither copies what it has nor doubles its memory when
//! one more key comes.

use rustc_hash::FxHashMap;

/// Values of a page. A run with one key should not pay for many.
const PAGE: usize = 64;

/// A value for each key; keys are numbered from 0 on, without gaps.
#[derive(Debug)]
pub(crate) struct PerKey<T> {
    pages: Vec<Box<[T; PAGE]>>,
}

impl<T> Default for PerKey<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T: Default> PerKey<T> {
    /// The value of a key. It is the default value before the first change.
    pub fn of(&mut self, key: usize) -> &mut T {
        while self.pages.len() <= key / PAGE {
            self.pages.push(Box::new(std::array::from_fn(|_| T::default())));
        }
        &mut self.pages[key / PAGE][key % PAGE]
    }
}

impl<T> PerKey<T> {
    /// The value of a key, if this key or a key of its page was asked for.
    pub fn get(&self, key: usize) -> Option<&T> {
        Some(&self.pages.get(key / PAGE)?[key % PAGE])
    }
}

/// The most that is kept in 32 bits; this number marks a key whose numbers are kept elsewhere.
const ELSEWHERE: u32 = u32::MAX;

/// `N` counts for each key. Counts are small, so they take 32 bits each, and the few keys with larger ones have a place
/// of their own.
#[derive(Debug)]
pub(crate) struct CountsPerKey<const N: usize> {
    small: PerKey<Small<N>>,
    large: FxHashMap<usize, [u64; N]>,
}

#[derive(Debug, Clone, Copy)]
struct Small<const N: usize>([u32; N]);

impl<const N: usize> Default for Small<N> {
    fn default() -> Self {
        Small([0; N])
    }
}

impl<const N: usize> Default for CountsPerKey<N> {
    fn default() -> Self {
        Self { small: PerKey::default(), large: FxHashMap::default() }
    }
}

impl<const N: usize> CountsPerKey<N> {
    /// The counts of a key: zeros before the first change.
    pub fn get(&self, key: usize) -> [u64; N] {
        match self.small.get(key) {
            None => [0; N],
            Some(Small(small)) if small.contains(&ELSEWHERE) => self.large.get(&key).copied().unwrap_or([0; N]),
            Some(Small(small)) => small.map(u64::from),
        }
    }

    pub fn set(&mut self, key: usize, counts: [u64; N]) {
        let small = counts.map(|count| u32::try_from(count).unwrap_or(ELSEWHERE));
        if small.contains(&ELSEWHERE) {
            self.large.insert(key, counts);
        }
        *self.small.of(key) = Small(small);
    }

    /// The counts of all keys, and zeros.
    pub fn iter(&self) -> impl Iterator<Item = [u64; N]> {
        (0..self.small.pages.len() * PAGE).map(|key| self.get(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_any_size_come_back() {
        let mut counts = CountsPerKey::<2>::default();
        assert_eq!(counts.get(3), [0, 0]);
        let max = u64::from(u32::MAX);
        for (key, of) in [(0, [1, 2]), (1, [max - 1, max]), (2, [u64::MAX, 0]), (PAGE, [7, max + 1])] {
            counts.set(key, of);
            assert_eq!(counts.get(key), of);
        }
        counts.set(2, [5, 6]);
        assert_eq!((counts.get(2), counts.get(3), counts.get(9 * PAGE)), ([5, 6], [0, 0], [0, 0]));
        assert_eq!(counts.iter().map(|[first, _]| first).sum::<u64>(), 1 + max - 1 + 5 + 7);
    }

    #[test]
    fn each_key_has_its_own_value_and_a_default_before_it() {
        let mut values = PerKey::<u64>::default();
        assert_eq!(values.get(0), None);
        for key in [5, PAGE - 1, PAGE, 1_000] {
            assert_eq!(*values.of(key), 0);
            *values.of(key) = key as u64 + 1;
        }
        for key in [5, PAGE - 1, PAGE, 1_000] {
            assert_eq!(values.get(key), Some(&(key as u64 + 1)));
        }
        assert_eq!((values.get(6), values.get(100 * PAGE)), (Some(&0), None));
        let all = (0..=1_000).filter_map(|key| values.get(key)).sum::<u64>();
        assert_eq!(all, 6 + PAGE as u64 + PAGE as u64 + 1 + 1_001);
    }
}
