//! The beginning of a line of a stream whose end has not come.

use bytes::Bytes;

use super::sse::LINE_MAX;

/// Keeps half a line back until the rest of it is there: nobody can read it before, and whoever is told that a stream broke
/// would fail on it first, with another error than the one that is told. Copies only what a frame cuts in two. Of a line
/// that is longer than is read, the beginning passes as it is.
#[derive(Debug, Default)]
pub(super) struct Tail {
    held: Vec<u8>,
}

impl Tail {
    /// What may pass of what was held and of `data`, after whose first `whole` bytes a line is under way. May be nothing.
    pub(super) fn pass(&mut self, mut data: Bytes, whole: usize) -> Bytes {
        if self.held.is_empty() && whole == data.len() {
            return data;
        }
        let begun = data.split_off(whole);
        let passed =
            if self.held.is_empty() || data.is_empty() { data } else { [&self.take(), &data[..]].concat().into() };
        self.held.extend_from_slice(&begun);
        if self.held.len() <= LINE_MAX {
            return passed;
        }
        if passed.is_empty() { self.take() } else { [&passed[..], &self.take()].concat().into() }
    }

    /// All that is held: the stream ends there, as it should.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_pass_untouched_and_halves_wait_for_their_ends() {
        let mut tail = Tail::default();
        let whole = Bytes::from_static(b"data: 1\n\n");
        assert_eq!(tail.pass(whole.clone(), 9).as_ptr(), whole.as_ptr(), "nothing is copied");
        assert_eq!(tail.pass(Bytes::from_static(b"data: 2\n\nda"), 9), "data: 2\n\n");
        assert_eq!(tail.pass(Bytes::from_static(b"ta: 3"), 0), "");
        assert_eq!(tail.pass(Bytes::from_static(b"\n\ndata"), 2), "data: 3\n\n");
        assert!(!tail.is_empty());
        assert_eq!((tail.take(), tail.is_empty()), (Bytes::from_static(b"data"), true));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut tail = Tail::default();
        assert_eq!(tail.pass(vec![b'x'; LINE_MAX].into(), 0), "");
        assert_eq!(tail.pass(Bytes::from_static(b"y"), 0).len(), LINE_MAX + 1);
        assert_eq!(tail.pass(Bytes::from_static(b"\n\n"), 2), "\n\n");
        assert_eq!(tail.pass([vec![b'e'; 9], vec![b'x'; LINE_MAX + 1]].concat().into(), 9).len(), LINE_MAX + 10);
    }
}
