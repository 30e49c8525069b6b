//! Assembles whole lines from chunks that are cut anywhere.

use bytes::{Buf, Bytes, BytesMut};

/// Longest line in bytes. A longer line is handed on in pieces, because an endless line must not fill the memory.
const LINE_LIMIT: usize = 4 << 20;

/// Assembles lines. A line inside one chunk is not copied.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    partial: BytesMut,
    chunk: Bytes,
}

impl Lines {
    /// Takes the next chunk. The caller has emptied the previous chunks with [`Lines::next`].
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "lines of the previous chunk are lost");
        self.chunk = chunk;
    }

    /// Returns the next whole line without its end, or nothing until another chunk comes.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let end = self.chunk.iter().position(|byte| *byte == b'\n');
        let piece = self.chunk.split_to(end.unwrap_or(self.chunk.len()));
        if end.is_some() {
            self.chunk.advance(1);
            if self.partial.is_empty() {
                return Some(piece);
            }
        }
        self.partial.extend_from_slice(&piece);
        (end.is_some() || self.partial.len() >= LINE_LIMIT).then(|| self.partial.split().freeze())
    }

    /// Returns the rest after the last end of line.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        (!self.partial.is_empty()).then(|| self.partial.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(lines: &mut Lines, chunk: &[u8]) -> Vec<Bytes> {
        lines.push(Bytes::copy_from_slice(chunk));
        std::iter::from_fn(|| lines.next()).collect()
    }

    #[test]
    fn lines_are_whole_wherever_the_chunks_are_cut() {
        let text = b"first\n\nthird is longer\n{\"a\":1}\nlast";
        for one in 0..=text.len() {
            for two in one..=text.len() {
                let mut lines = Lines::default();
                let mut got = feed(&mut lines, &text[..one]);
                got.extend(feed(&mut lines, &text[one..two]));
                got.extend(feed(&mut lines, &text[two..]));
                assert_eq!(got, ["first", "", "third is longer", "{\"a\":1}"], "cut at {one} and {two}");
                assert_eq!(lines.rest().as_deref(), Some(&b"last"[..]));
                assert_eq!(lines.rest(), None);
            }
        }
    }

    #[test]
    fn a_line_without_end_is_handed_on_in_pieces() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1 << 20];
        let got: Vec<_> = (0..9).flat_map(|_| feed(&mut lines, &chunk)).collect();
        assert_eq!(got.iter().map(Bytes::len).collect::<Vec<_>>(), [LINE_LIMIT, LINE_LIMIT]);
        assert_eq!(feed(&mut lines, b"\nnext\n")[1], "next");
    }
}
