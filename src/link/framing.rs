//! Where the body of an answer ends, and what of the bytes of a connection is data (RFC 9112, 6 and 7).

use bytes::Bytes;

use super::Fault;

/// Bytes of one body that are neither data nor sizes, in extensions of chunks and in trailers, at most.
const ASIDE_MAX: usize = 16 * 1024;

/// What is still to come of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes; none at the end of every body.
    Length(u64),
    /// Chunks.
    Chunked { next: Next, aside: usize },
    /// Whatever comes until the connection closes.
    UntilClose,
}

/// What the next byte of a body in chunks belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The size of a chunk, of which these digits have come.
    Size { so_far: Option<u64> },
    /// What may stand behind the size: nothing that anybody here would understand.
    Extension { size: u64 },
    /// The end of a size's line.
    SizeEnd { size: u64 },
    /// Data.
    Data { left: u64 },
    /// The end of a chunk's line.
    ChunkEnd { has_cr: bool },
    /// A line of trailers, which stay behind: they are no data, and nobody has asked for them.
    Trailer { is_empty: bool },
    /// The end of such a line. Behind an empty one there is no more.
    TrailerEnd { is_empty: bool },
}

impl Framing {
    pub(super) const ENDED: Self = Self::Length(0);
    pub(super) const CHUNKED: Self = Self::Chunked { next: Next::Size { so_far: None }, aside: 0 };

    pub(super) fn of_length(length: u64) -> Self {
        Self::Length(length)
    }

    pub(super) fn has_ended(self) -> bool {
        self == Self::ENDED
    }

    /// The data in `said`, which comes next, and how many of its bytes belong to the body. Less data than bytes is copied, and
    /// once. O(bytes).
    pub(super) fn take(&mut self, said: &[u8]) -> Result<(Bytes, usize), Fault> {
        match self {
            Self::Length(left) => {
                let taken = take_of(left, said.len());
                Ok((Bytes::copy_from_slice(&said[..taken]), taken))
            }
            Self::UntilClose => Ok((Bytes::copy_from_slice(said), said.len())),
            Self::Chunked { .. } => self.take_chunks(said),
        }
    }

    fn take_chunks(&mut self, said: &[u8]) -> Result<(Bytes, usize), Fault> {
        let mut data = Vec::new();
        let mut at = 0;
        while let Self::Chunked { next, aside } = self
            && at < said.len()
        {
            if let Next::Data { left } = next {
                let taken = take_of(left, said.len() - at);
                // Mostly there is just one piece, which needs no more room than it has.
                data.reserve_exact(if data.is_empty() { taken } else { 0 });
                data.extend_from_slice(&said[at..at + taken]);
                at += taken;
                if *left == 0 {
                    *next = Next::ChunkEnd { has_cr: false };
                }
                continue;
            }
            if matches!(next, Next::Extension { .. } | Next::Trailer { .. }) {
                *aside += 1;
                if *aside > ASIDE_MAX {
                    return Err(Fault::TooLarge);
                }
            }
            match next.after(said[at])? {
                Some(after) => *next = after,
                None => *self = Self::ENDED,
            }
            at += 1;
        }
        Ok((data.into(), at))
    }
}

/// Takes of what is left as much as there is of so many bytes.
fn take_of(left: &mut u64, len: usize) -> usize {
    let taken = usize::try_from(*left).map_or(len, |left| left.min(len));
    *left -= u64::try_from(taken).unwrap_or(*left);
    taken
}

impl Next {
    /// What comes behind a byte that is no data; nothing behind the last.
    fn after(self, byte: u8) -> Result<Option<Self>, Fault> {
        let wrong = Err(Fault::NoHttp("a chunk"));
        Ok(Some(match (self, byte) {
            (Self::Size { so_far: Some(size) }, b'\r') => Self::SizeEnd { size },
            (Self::Size { so_far: Some(size) }, b';' | b' ' | b'\t') => Self::Extension { size },
            (Self::Size { so_far }, byte) => {
                let digit = char::from(byte).to_digit(16);
                let size = so_far.unwrap_or_default().checked_mul(16);
                let Some((size, digit)) = size.zip(digit) else { return wrong };
                Self::Size { so_far: Some(size + u64::from(digit)) }
            }
            (Self::Extension { size }, b'\r') => Self::SizeEnd { size },
            (Self::Extension { .. }, b'\n') => return wrong,
            (Self::Extension { size }, _) => Self::Extension { size },
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Trailer { is_empty: true },
            (Self::SizeEnd { size }, b'\n') => Self::Data { left: size },
            (Self::ChunkEnd { has_cr: false }, b'\r') => Self::ChunkEnd { has_cr: true },
            (Self::ChunkEnd { has_cr: true }, b'\n') => Self::Size { so_far: None },
            (Self::Trailer { is_empty }, b'\r') => Self::TrailerEnd { is_empty },
            (Self::Trailer { .. }, b'\n') => return wrong,
            (Self::Trailer { .. }, _) => Self::Trailer { is_empty: false },
            (Self::TrailerEnd { is_empty: true }, b'\n') => return Ok(None),
            (Self::TrailerEnd { is_empty: false }, b'\n') => Self::Trailer { is_empty: true },
            _ => return wrong,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of a body that comes in pieces of so many bytes, what is left of it, and how many bytes belonged to it.
    fn taken(mut framing: Framing, said: &[u8], piece: usize) -> Result<(Vec<u8>, Framing, usize), Fault> {
        let (mut data, mut consumed) = (Vec::new(), 0);
        for piece in said.chunks(piece) {
            let (some, len) = framing.take(piece)?;
            data.extend_from_slice(&some);
            consumed += len;
        }
        Ok((data, framing, consumed))
    }

    #[test]
    fn data_is_the_same_however_it_comes() {
        let chunks: &[u8] = b"5\r\nhello\r\n00001;name=\"v\" \r\n \r\n5 \r\nworld\r\n0\r\nx-trailer: 1\r\n\r\nmore";
        for piece in 1..=chunks.len() {
            let (data, framing, consumed) = taken(Framing::CHUNKED, chunks, piece).unwrap();
            assert_eq!((data.as_slice(), framing, consumed), (&b"hello world"[..], Framing::ENDED, chunks.len() - 4));
            let (data, framing, consumed) = taken(Framing::of_length(5), b"hello world", piece).unwrap();
            assert_eq!((data.as_slice(), framing, consumed), (&b"hello"[..], Framing::ENDED, 5));
            let (data, framing, consumed) = taken(Framing::UntilClose, b"hello world", piece).unwrap();
            assert_eq!((data.as_slice(), framing, consumed), (&b"hello world"[..], Framing::UntilClose, 11));
        }
    }

    #[test]
    fn a_body_that_lacks_its_end_has_not_ended() {
        for said in ["5\r\nhello\r\n0\r\n", "5\r\nhello\r\n0\r\n\r", "5\r\nhell", "5", "0\r\nx: 1\r\n"] {
            assert!(!taken(Framing::CHUNKED, said.as_bytes(), 3).unwrap().1.has_ended(), "{said:?}");
        }
    }

    #[test]
    fn chunks_that_could_be_read_in_two_ways_are_none() {
        for said in [
            "\r\nhello",
            "x\r\n",
            ";a\r\n",
            "-1\r\n",
            "0x5\r\nhello",
            "5\nhello\n",
            "5\r\nhello!\r\n",
            "5\r\nhello\n0\r\n",
            "5\rhello",
            "5;a\nhello",
            "0\r\n\n",
            "0\r\nx: 1\n\r\n",
            "10000000000000000\r\n",
        ] {
            assert!(matches!(taken(Framing::CHUNKED, said.as_bytes(), 99), Err(Fault::NoHttp(_))), "{said:?}");
        }
        let endless = format!("1;{}", "x".repeat(ASIDE_MAX + 1));
        assert!(matches!(taken(Framing::CHUNKED, endless.as_bytes(), 999), Err(Fault::TooLarge)));
        let endless = format!("0\r\n{}", "x: 1\r\n".repeat(ASIDE_MAX / 4));
        assert!(matches!(taken(Framing::CHUNKED, endless.as_bytes(), 999), Err(Fault::TooLarge)));
    }
}
