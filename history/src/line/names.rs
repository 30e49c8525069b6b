//! The memory of a reader: the names and the lists of answers that were read before.

use super::{known::Known, rest::Rest};
use crate::{Answers, Key, NodeName, ProcessName};

/// The most lists of answers that are kept, and the longest text of one.
const LISTS: usize = 4;
const LIST_BYTES: usize = 512;

/// Names and lists that were read before.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(super) processes: Known<ProcessName, 64>,
    pub(super) keys: Known<Key, 1024>,
    nodes: Known<NodeName, 64>,
    /// Lists of answers, with their text.
    answers: Vec<(Vec<u8>, Answers)>,
    /// The list that the next new one replaces.
    oldest: usize,
}

impl Names {
    /// The list of answers with which the bytes begin, and the bytes after it.
    #[inline]
    pub(super) fn answers<'a>(&mut self, bytes: &'a [u8]) -> Option<(Answers, &'a [u8])> {
        for (text, known) in &self.answers {
            if let Some(rest) = bytes.strip_prefix(&text[..]) {
                return Some((known.clone(), rest));
            }
        }
        self.new_answers(bytes)
    }

    #[inline(never)]
    fn new_answers<'a>(&mut self, bytes: &'a [u8]) -> Option<(Answers, &'a [u8])> {
        let (mut rest, mut answers) = (Rest(bytes), Vec::new());
        while rest.item(answers.is_empty())? {
            let node = rest.after(b"[\"")?.name(&mut self.nodes)?;
            let answer = rest.after(b",\"")?.node_answer()?;
            rest.after(b"]")?;
            answers.push((node, answer));
        }
        let text = &bytes[..bytes.len() - rest.0.len()];
        if text.len() <= LIST_BYTES {
            let new = (text.to_vec(), answers.clone());
            match self.answers.get_mut(self.oldest) {
                Some(old) => *old = new,
                None => self.answers.push(new),
            }
            self.oldest = (self.oldest + 1) % LISTS;
        }
        Some((answers, rest.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lists_of_answers_are_kept_and_no_others() {
        let (mut names, text) = (Names::default(), |n: usize| format!(r#"[["redis-{n}","granted"]]"#));
        for n in 0..5 * LISTS {
            let line = text(n) + "}";
            assert_eq!(names.answers(line.as_bytes()).unwrap().1, b"}");
        }
        let kept: Vec<_> = names.answers.iter().map(|(text, _)| String::from_utf8_lossy(text)).collect();
        assert_eq!(kept, (4 * LISTS..5 * LISTS).map(text).collect::<Vec<_>>());
    }
}
