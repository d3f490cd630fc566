//! Where a request's head ends, and how its lines do.

/// Lines up to an empty one, as they come. `httparse` takes lines that end in LF alone (RFC 9112, 2.2, allows it); a server
/// before the router may not, and read one head where the router reads two.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Bytes of the line that has not ended.
    len: usize,
    /// The last byte.
    last: u8,
    /// Bytes of the first line that has some.
    first: Option<usize>,
    /// Whether the empty line that ends it has come.
    is_whole: bool,
    /// Whether a line ended in LF alone.
    is_bare: bool,
}

impl Section {
    /// Takes further bytes up to the empty line, and returns how many these are. O(bytes).
    pub(super) fn read(&mut self, bytes: &[u8]) -> usize {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            let before = end.checked_sub(1).map_or(self.last, |before| bytes[before]);
            let len = self.len + (end - begin) - usize::from(before == b'\r');
            self.is_bare |= before != b'\r';
            (self.len, self.last, begin) = (0, b'\n', end + 1);
            if len > 0 {
                self.first.get_or_insert(len);
            } else if self.first.is_some() {
                self.is_whole = true;
                return begin;
            }
        }
        self.len = self.len.saturating_add(bytes.len() - begin);
        self.last = bytes.last().copied().unwrap_or(self.last);
        bytes.len()
    }

    /// Whether the empty line that ends it has come.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether a line ended in LF alone.
    pub(super) fn is_bare(&self) -> bool {
        self.is_bare
    }

    /// How long the first line is, as far as it has come.
    pub(super) fn first_line(&self) -> usize {
        self.first.unwrap_or(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &str) -> (usize, bool, bool) {
        read_before("", bytes)
    }

    /// First line, whether it is whole, whether a line ended in LF alone; however it is cut in two. `behind` is no part of it.
    fn read_before(behind: &str, bytes: &str) -> (usize, bool, bool) {
        let mut seen = Vec::new();
        for cut in 0..=bytes.len() {
            let mut head = Section::default();
            let mut end = head.read(&bytes.as_bytes()[..cut]);
            if !head.is_whole {
                end += head.read(&bytes.as_bytes()[cut..]);
            }
            assert_eq!(&bytes[end..], behind, "{bytes:?} in two at {cut}");
            seen.push((head.first_line(), head.is_whole, head.is_bare));
        }
        seen.dedup();
        assert_eq!(seen.len(), 1, "{bytes:?}: {seen:?}");
        seen[0]
    }

    #[test]
    fn lines_that_end_in_lf_alone_are_seen_up_to_the_end_of_the_head() {
        assert_eq!(read("GET / HTTP/1.1\r\nHost: r\r\n\r\n"), (14, true, false));
        assert_eq!(read("\r\nGET / HTTP/1.1\r\nHost: r\r\n\r\n"), (14, true, false));
        let body = "{\"a\":\n1}\n\n";
        let with_body = format!("GET / HTTP/1.1\r\n\r\n{body}");
        assert_eq!(read_before(body, &with_body), (14, true, false), "a body may have them");
        assert_eq!(read("GET / HTTP/1.1\nHost: r\r\n\r\n"), (14, true, true));
        assert_eq!(read("GET / HTTP/1.1\r\nA: 1\nHost: r\r\n"), (14, false, true));
        assert_eq!(read("GET / HTTP/1.1\r\nHost: r\r\n\n"), (14, true, true));
        assert_eq!(read("GET /a"), (6, false, false));
    }
}
