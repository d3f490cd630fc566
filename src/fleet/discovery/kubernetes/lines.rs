//! A watch's bytes as lines, each an event.

/// Cuts what comes in pieces of any size into lines.
pub(super) struct Lines {
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    line_max: usize,
}

/// A line is longer than it may be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {0} bytes")]
pub(super) struct TooLong(usize);

impl Lines {
    /// Of lines of at most `line_max` bytes.
    pub(super) fn new(line_max: usize) -> Self {
        Self { begun: Vec::new(), line_max }
    }

    /// Hands each line that ends in `data` to `take`, without its end. Empty ones are none.
    ///
    /// # Errors
    /// A line is too long; of it, and of what is behind it, nothing is kept.
    pub(super) fn feed(&mut self, data: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = data;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.begin(&rest[..end])?;
            if !self.begun.is_empty() {
                take(&self.begun);
            }
            self.begun.clear();
            rest = &rest[end + 1..];
        }
        self.begin(rest)
    }

    fn begin(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.begun.len() + part.len() > self.line_max {
            self.begun = Vec::new();
            return Err(TooLong(self.line_max));
        }
        self.begun.extend_from_slice(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&str], line_max: usize) -> (Vec<String>, Result<(), TooLong>) {
        let (mut lines, mut seen) = (Lines::new(line_max), Vec::new());
        let fed = pieces.iter().try_for_each(|piece| {
            lines.feed(piece.as_bytes(), |line| seen.push(String::from_utf8_lossy(line).into_owned()))
        });
        (seen, fed)
    }

    #[test]
    fn lines_are_the_same_wherever_the_pieces_end() {
        let text = "ab\n\nc\nde";
        let expected = (vec!["ab".to_owned(), "c".to_owned()], Ok(()));
        for at in 0..=text.len() {
            assert_eq!(cut(&[&text[..at], &text[at..]], 2), expected, "{at}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_given_up_at_its_bound() {
        assert_eq!(cut(&["a\nbcd", "e", "fgh\n"], 4), (vec!["a".to_owned()], Err(TooLong(4))));
    }
}
