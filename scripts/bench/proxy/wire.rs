//! As much HTTP/1.1 as both ends of the bench speak, with few calls and few copies, so that they cost little themselves.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Bytes that a head may have.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A connection and what was read of it beyond what was asked for.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
    /// What of the buffer was used.
    at: usize,
}

/// How much of a message's body is still to come.
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Wire {
    /// A connection without delay.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(64 << 10), at: 0 })
    }

    /// The head of the next message, up to its empty line; none if the other side has hung up before it.
    pub(crate) async fn head(&mut self, head: &mut Vec<u8>) -> io::Result<bool> {
        let mut seen = self.at;
        loop {
            if let Some(end) = find(&self.buffer[seen..], b"\r\n\r\n") {
                let end = seen + end + 4;
                head.clear();
                head.extend_from_slice(&self.buffer[self.at..end]);
                self.at = end;
                return Ok(true);
            }
            if self.buffer.len() - self.at > HEAD_BYTES_MAX {
                return Err(wrong("a head without an end"));
            }
            let kept = self.buffer.len() - self.at;
            if self.read().await? == 0 {
                return if kept == 0 { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            // What was left has moved to the front.
            seen = kept.saturating_sub(3);
        }
    }

    /// Appends a body of `length` bytes.
    pub(crate) async fn exactly(&mut self, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
        let mut missing = length;
        loop {
            let some = missing.min(self.buffer.len() - self.at);
            body.extend_from_slice(&self.buffer[self.at..self.at + some]);
            self.at += some;
            missing -= some;
            if missing == 0 {
                return Ok(());
            }
            self.read_some().await?;
        }
    }

    /// Appends the data of one chunk; false if it was the last.
    pub(crate) async fn chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        let size = loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = find(rest, b"\r\n") {
                let text = std::str::from_utf8(&rest[..end]).map_err(|_| wrong("a chunk's size"))?;
                let size = usize::from_str_radix(text, 16).map_err(|_| wrong("a chunk's size"))?;
                self.at += end + 2;
                break size;
            }
            self.read_some().await?;
        };
        self.exactly(size, body).await?;
        while self.buffer.len() - self.at < 2 {
            self.read_some().await?;
        }
        if &self.buffer[self.at..self.at + 2] != b"\r\n" {
            return Err(wrong("a chunk's end"));
        }
        self.at += 2;
        Ok(size > 0)
    }

    async fn read_some(&mut self) -> io::Result<()> {
        if self.read().await? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.stream.read_buf(&mut self.buffer).await
    }
}

/// An answer as a client reads it, piece by piece.
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    framing: Framing,
}

impl Answer {
    /// Reads the head of the next answer.
    pub(crate) async fn begin(wire: &mut Wire, head: &mut Vec<u8>) -> io::Result<Self> {
        if !wire.head(head).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let status = head.get(9..12).and_then(|code| std::str::from_utf8(code).ok()).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| wrong("a status line"))?;
        let framing = match (number(head, "content-length"), field(head, "transfer-encoding")) {
            (Some(length), None) => Framing::Length(length),
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            _ => return Err(wrong("the framing of an answer")),
        };
        Ok(Self { status, framing })
    }

    /// Appends the next piece of the body; false at its end.
    pub(crate) async fn piece(&mut self, wire: &mut Wire, body: &mut Vec<u8>) -> io::Result<bool> {
        match self.framing {
            Framing::Length(length) => {
                wire.exactly(length, body).await?;
                self.framing = Framing::Length(0);
                Ok(false)
            }
            Framing::Chunked => wire.chunk(body).await,
        }
    }
}

/// A field of a head.
pub(crate) fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (key, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        key.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// A field of a head that is a number.
pub(crate) fn number(head: &[u8], name: &str) -> Option<usize> {
    std::str::from_utf8(field(head, name)?).ok()?.parse().ok()
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, what)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not understood: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_their_case() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx-bench: a=1 \r\n\r\n";
        assert_eq!(number(head, "content-length"), Some(12));
        assert_eq!(field(head, "X-Bench"), Some(&b"a=1"[..]));
        assert_eq!(field(head, "content"), None);
    }
}
