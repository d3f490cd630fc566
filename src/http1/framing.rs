//! Where a body ends, and what of the bytes of a connection is data (RFC 9112, 6 and 7).

use bytes::Bytes;

/// Bytes of one body that are neither data nor sizes, in extensions of chunks and in trailers, at most.
const ASIDE_MAX: usize = 16 * 1024;

/// What nobody can read, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// What is still to come of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes; none at the end of every body.
    Length(u64),
    /// Chunks.
    Chunked { next: Next, aside: usize },
    /// Whatever comes until the connection closes.
    UntilClose,
}

/// What the next byte of a body in chunks belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The size of a chunk, of which so many digits have come.
    Size { size: u64, digits: u8 },
    /// Blanks behind the size, which some writers put.
    Blank { size: u64 },
    /// What may stand behind the size: nothing that anybody here would understand.
    Extension { size: u64 },
    /// The end of a size's line.
    SizeEnd { size: u64 },
    /// Data.
    Data { left: u64 },
    /// The end of a chunk's line.
    ChunkEnd { has_cr: bool },
    /// The name of a trailer, or the line without one that ends them. Trailers stay behind: they are no data, and nobody has
    /// asked for them.
    Trailer { is_empty: bool },
    /// Its value.
    TrailerValue,
    /// The end of such a line. Behind an empty one there is no more.
    TrailerEnd { is_empty: bool },
    /// What came before was wrong: nothing more can be read.
    Wrong { what: &'static str },
}

impl Framing {
    pub(crate) const ENDED: Self = Self::Length(0);
    pub(crate) const CHUNKED: Self = Self::Chunked { next: Next::FIRST, aside: 0 };

    pub(crate) fn has_ended(self) -> bool {
        self == Self::ENDED
    }

    /// A copy of the data in `said`, which comes next, and how many of its bytes belong to the body. O(bytes).
    ///
    /// # Errors
    /// Nothing in it can be read.
    pub(crate) fn take(&mut self, said: &[u8]) -> Result<(Bytes, usize), Malformed> {
        match self {
            Self::Length(left) => {
                let taken = take_of(left, said.len());
                Ok((Bytes::copy_from_slice(&said[..taken]), taken))
            }
            Self::UntilClose => Ok((Bytes::copy_from_slice(said), said.len())),
            Self::Chunked { .. } => self.take_chunks(said),
        }
    }

    /// What came before the end of all that can be read is data nevertheless.
    fn take_chunks(&mut self, said: &[u8]) -> Result<(Bytes, usize), Malformed> {
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
            *aside += usize::from(next.is_aside());
            *next = match next.after(said[at]) {
                Some(_) if *aside > ASIDE_MAX => Next::Wrong { what: "it has too much beside its data" },
                Some(after) => after,
                None => {
                    *self = Self::ENDED;
                    at += 1;
                    break;
                }
            };
            if let Next::Wrong { .. } = next {
                break;
            }
            at += 1;
        }
        if data.is_empty() {
            self.check()?;
        }
        Ok((data.into(), at))
    }

    /// Whether more can be read.
    pub(crate) fn check(self) -> Result<(), Malformed> {
        match self {
            Self::Chunked { next: Next::Wrong { what }, .. } => Err(Malformed(what)),
            _ => Ok(()),
        }
    }
}

/// Takes of what is left as much as there is of so many bytes.
fn take_of(left: &mut u64, len: usize) -> usize {
    let taken = usize::try_from(*left).map_or(len, |left| left.min(len));
    *left -= u64::try_from(taken).unwrap_or(*left);
    taken
}

impl Next {
    const FIRST: Self = Self::Size { size: 0, digits: 0 };

    /// Digits of a size at most: those of 64 bits.
    const DIGITS_MAX: u8 = 16;

    /// Whether it is bounded by nothing but [`ASIDE_MAX`].
    fn is_aside(&self) -> bool {
        matches!(self, Self::Blank { .. } | Self::Extension { .. } | Self::Trailer { .. } | Self::TrailerValue)
    }

    /// What comes behind a byte that is no data; nothing behind the last.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size { size, digits: 1.. }, b'\r') => Self::SizeEnd { size },
            (Self::Size { size, digits: 1.. } | Self::Blank { size }, b' ' | b'\t') => Self::Blank { size },
            (Self::Size { size, digits: 1.. } | Self::Blank { size }, b';') => Self::Extension { size },
            (Self::Blank { size }, b'\r') => Self::SizeEnd { size },
            (Self::Size { size, digits }, byte) if byte.is_ascii_hexdigit() && digits < Self::DIGITS_MAX => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                Self::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (Self::Extension { size }, b'\r') => Self::SizeEnd { size },
            (Self::Extension { size }, byte) if is_text(byte) => Self::Extension { size },
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Trailer { is_empty: true },
            (Self::SizeEnd { size }, b'\n') => Self::Data { left: size },
            (Self::ChunkEnd { has_cr: false }, b'\r') => Self::ChunkEnd { has_cr: true },
            (Self::ChunkEnd { has_cr: true }, b'\n') => Self::FIRST,
            (Self::Trailer { is_empty: true }, b'\r') => Self::TrailerEnd { is_empty: true },
            (Self::Trailer { .. }, byte) if is_of_name(byte) => Self::Trailer { is_empty: false },
            (Self::Trailer { is_empty: false }, b':') => Self::TrailerValue,
            (Self::TrailerValue, b'\r') => Self::TrailerEnd { is_empty: false },
            (Self::TrailerValue, byte) if is_text(byte) => Self::TrailerValue,
            (Self::TrailerEnd { is_empty: true }, b'\n') => return None,
            (Self::TrailerEnd { is_empty: false }, b'\n') => Self::Trailer { is_empty: true },
            _ => Self::Wrong { what: "its chunks" },
        })
    }
}

/// What stands in a line (RFC 9110, 5.5).
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

/// What stands in a field's name (RFC 9110, 5.6.2).
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of a body that comes in pieces of so many bytes, what is left of it, and how many bytes belonged to it.
    fn taken(mut framing: Framing, said: &[u8], piece: usize) -> Result<(Vec<u8>, Framing, usize), Malformed> {
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
            let (data, framing, consumed) = taken(Framing::Length(5), b"hello world", piece).unwrap();
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
    fn what_comes_before_a_fault_is_data() {
        for said in ["5\r\nhello!\r\n", "5\r\nhello\n0\r\n", "5\r\nhello\r\nx\r\n", "5\r\nhello\r\n0\r\n\n"] {
            let mut framing = Framing::CHUNKED;
            let (data, consumed) = framing.take(said.as_bytes()).unwrap();
            assert_eq!(
                (&data[..], consumed < said.len(), framing.has_ended()),
                (&b"hello"[..], true, false),
                "{said:?}"
            );
            assert!(framing.check().is_err());
            assert!(framing.take(b"0\r\n\r\n").is_err(), "it stays so");
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
            "5\rhello",
            "5;a\nhello",
            "0\r\n\n",
            "0\r\nx: 1\n\r\n",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            "0\r\n: 1\r\n\r\n",
            "0\r\n x: 1\r\n\r\n",
            "0\r\nx\r\n\r\n",
            "0\r\nx: \0\r\n\r\n",
            "1 2\r\na\r\n",
            "1;a\0b\r\na\r\n",
            "10000000000000000\r\n",
        ] {
            assert!(taken(Framing::CHUNKED, said.as_bytes(), 99).is_err(), "{said:?}");
        }
        for endless in [
            format!("1;{}", "x".repeat(ASIDE_MAX + 1)),
            format!("0\r\n{}", "x: 1\r\n".repeat(ASIDE_MAX / 4)),
            "0".repeat(17),
        ] {
            assert!(taken(Framing::CHUNKED, endless.as_bytes(), 999).is_err());
        }
    }
}
