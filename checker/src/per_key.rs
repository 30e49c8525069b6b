//! A value for each key of a run, in pages: a run with many keys neither copies what it has nor doubles its memory when
//! one more key comes.

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

    /// The values of all keys, and default values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter())
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flat_map(|page| page.iter_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        values.iter_mut().for_each(|value| *value *= 2);
        assert_eq!(values.iter().sum::<u64>(), 2 * (6 + PAGE as u64 + PAGE as u64 + 1 + 1_001));
    }
}
