//! SRV records, asked of a name server: the one kind of record that the system's resolver does not look up for programs.
//! RFC 1035 and 2782: one question over UDP, over TCP where the answer did not fit.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// What an answer over UDP may have; asked for by EDNS.
const UDP_BYTES_MAX: usize = 4096;

/// What a name may have, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Links that a compressed name may follow.
const LINKS_MAX: usize = 32;

const TYPE_SRV: u16 = 33;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;

/// The server's answer was cut to fit: ask again over TCP.
const TRUNCATED: u16 = 0x0200;

/// Why an answer tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The name cannot be asked for.
    #[error("no name: labels have 1 to 63 bytes, names at most 255")]
    Name,
    /// It is not what was asked.
    #[error("an answer to something else")]
    Foreign,
    /// It breaks off, or names go in circles.
    #[error("a malformed answer")]
    Malformed,
    /// The server says that it cannot tell.
    #[error("the name server answers with code {0}")]
    Code(u16),
}

/// Hosts and ports of a name's SRV records.
///
/// # Errors
/// When the server cannot be reached, or its answer tells nothing.
pub async fn look_up(server: SocketAddr, name: &str) -> io::Result<Vec<(String, u16)>> {
    let id = rand::random();
    let question = question(id, name).map_err(io::Error::other)?;
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut answer = vec![0; UDP_BYTES_MAX];
    loop {
        let len = socket.recv(&mut answer).await?;
        match read(id, &answer[..len]) {
            // Somebody else's, or a late one: ours may still come.
            Err(AnswerError::Foreign) => {}
            Ok(None) => return over_tcp(server, id, &question).await,
            Ok(Some(found)) => return Ok(found),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

async fn over_tcp(server: SocketAddr, id: u16, question: &[u8]) -> io::Result<Vec<(String, u16)>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&u16::try_from(question.len()).unwrap_or(u16::MAX).to_be_bytes()).await?;
    stream.write_all(question).await?;
    let len = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(len)];
    stream.read_exact(&mut answer).await?;
    let found = read(id, &answer).map_err(io::Error::other)?;
    found.ok_or_else(|| io::Error::other(AnswerError::Malformed))
}

/// The first name server of `/etc/resolv.conf`.
///
/// # Errors
/// When the file cannot be read or names none.
pub async fn system_server() -> io::Result<SocketAddr> {
    let text = tokio::fs::read_to_string("/etc/resolv.conf").await?;
    server_in(&text).ok_or_else(|| io::Error::other("/etc/resolv.conf names no name server"))
}

fn server_in(resolv_conf: &str) -> Option<SocketAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|address| Some((address.trim().parse::<std::net::IpAddr>().ok()?, 53).into())).next()
}

fn question(id: u16, name: &str) -> Result<Vec<u8>, AnswerError> {
    let mut message = Vec::with_capacity(name.len() + 32);
    // One question, recursion desired, one additional record: EDNS with our size.
    for word in [id, 0x0100, 1, 0, 0, 1] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    let labels = name.strip_suffix('.').unwrap_or(name);
    if labels.len() + 2 > NAME_BYTES_MAX {
        return Err(AnswerError::Name);
    }
    for label in labels.split('.') {
        let len = u8::try_from(label.len()).ok().filter(|len| (1..=63).contains(len)).ok_or(AnswerError::Name)?;
        message.push(len);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    let size = u16::try_from(UDP_BYTES_MAX).unwrap_or(u16::MAX);
    for word in [TYPE_SRV, CLASS_IN] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    message.push(0);
    for word in [TYPE_OPT, size, 0, 0, 0] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    Ok(message)
}

/// What an answer says; `None`: it was cut to fit.
fn read(id: u16, message: &[u8]) -> Result<Option<Vec<(String, u16)>>, AnswerError> {
    let mut reader = Reader { message, at: 0 };
    let (answered, flags) = (reader.word()?, reader.word()?);
    if answered != id || flags & 0x8000 == 0 {
        return Err(AnswerError::Foreign);
    }
    if flags & TRUNCATED != 0 {
        return Ok(None);
    }
    if flags & 0xf != 0 {
        return Err(AnswerError::Code(flags & 0xf));
    }
    let (questions, answers) = (reader.word()?, reader.word()?);
    reader.skip(4)?;
    for _ in 0..questions {
        reader.name()?;
        reader.skip(4)?;
    }
    let mut found = Vec::new();
    for _ in 0..answers {
        reader.name()?;
        let kind = reader.word()?;
        reader.skip(6)?;
        let end = usize::from(reader.word()?) + reader.at;
        if kind == TYPE_SRV {
            reader.skip(4)?;
            let port = reader.word()?;
            found.push((reader.name()?, port));
        }
        // Never back: a record ends where it says, not where its name does.
        if end < reader.at {
            return Err(AnswerError::Malformed);
        }
        reader.at = end;
    }
    // A target of `.` says that there is decidedly nobody.
    found.retain(|(target, _)| !target.is_empty());
    Ok(Some(found))
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn skip(&mut self, bytes: usize) -> Result<(), AnswerError> {
        self.at += bytes;
        if self.at <= self.message.len() { Ok(()) } else { Err(AnswerError::Malformed) }
    }

    fn byte(&mut self) -> Result<u8, AnswerError> {
        let byte = self.message.get(self.at).copied().ok_or(AnswerError::Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    fn word(&mut self) -> Result<u16, AnswerError> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A name, with its links followed; labels that are no plain host names are refused.
    fn name(&mut self) -> Result<String, AnswerError> {
        let mut name = String::new();
        let (mut links, mut behind) = (0, None);
        loop {
            let len = self.byte()?;
            match len >> 6 {
                0 if len == 0 => break,
                0 => {
                    let end = self.at + usize::from(len);
                    let label = self.message.get(self.at..end).ok_or(AnswerError::Malformed)?;
                    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                    if !label.iter().all(plain) || name.len() + label.len() > NAME_BYTES_MAX {
                        return Err(AnswerError::Malformed);
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(label.iter().copied().map(char::from));
                    self.at = end;
                }
                3 => {
                    let target = (usize::from(len & 0x3f) << 8) | usize::from(self.byte()?);
                    behind.get_or_insert(self.at);
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(AnswerError::Malformed);
                    }
                    self.at = target;
                }
                _ => return Err(AnswerError::Malformed),
            }
        }
        self.at = behind.unwrap_or(self.at);
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The answer of a name server to [`question`] for `_http._tcp.w`: two records whose targets end by a link.
    fn answer(id: u16, flags: u16) -> Vec<u8> {
        let mut message = question(id, "_http._tcp.w").unwrap();
        message.truncate(12 + 14 + 4);
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[6..8].copy_from_slice(&2_u16.to_be_bytes());
        message[10..12].copy_from_slice(&0_u16.to_be_bytes());
        for (host, port) in [(b'a', 8000_u16), (b'b', 8001)] {
            message.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 30, 0, 10, 0, 1, 0, 1]);
            message.extend_from_slice(&port.to_be_bytes());
            // `w` stands at 23: behind the header, `_http` and `_tcp`.
            message.extend_from_slice(&[1, host, 0xc0, 23]);
        }
        message
    }

    #[test]
    fn a_question_is_asked_as_name_servers_expect_it() {
        let mut expected = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        expected.extend_from_slice(b"\x05_http\x04_tcp\x01w\x00\x00\x21\x00\x01");
        expected.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(question(0x1234, "_http._tcp.w."), Ok(expected));
        for name in ["", "a..b", &"a".repeat(64), &"a.".repeat(130)] {
            assert_eq!(question(1, name), Err(AnswerError::Name), "{name}");
        }
    }

    #[test]
    fn targets_and_ports_are_read_through_links() {
        let expected = [("a.w".to_owned(), 8000), ("b.w".to_owned(), 8001)];
        let mut message = answer(7, 0x8180);
        assert_eq!(read(7, &message), Ok(Some(expected.to_vec())));
        assert_eq!(read(8, &message), Err(AnswerError::Foreign));
        message.pop();
        assert_eq!(read(7, &message), Err(AnswerError::Malformed));
        assert_eq!(read(7, &answer(7, 0x8380)), Ok(None));
        assert_eq!(read(7, &answer(7, 0x8183)), Err(AnswerError::Code(3)));
        assert_eq!(read(7, &answer(7, 0x0100)), Err(AnswerError::Foreign));
    }

    #[test]
    fn a_name_that_links_to_itself_ends() {
        let mut message = answer(7, 0x8180);
        let last = message.len() - 1;
        message[last] = u8::try_from(last - 1).unwrap();
        assert_eq!(read(7, &message), Err(AnswerError::Malformed));
    }

    #[test]
    fn the_first_name_server_of_the_system_is_asked() {
        let text = "# none\nsearch a b\nnameserver fe80::1%eth0\nnameserver 10.0.0.10\nnameserver 10.0.0.11\n";
        assert_eq!(server_in(text), Some("10.0.0.10:53".parse().unwrap()));
        assert_eq!(server_in(""), None);
    }

    proptest! {
        #[test]
        fn no_answer_is_too_odd(flip in prop::collection::vec((0..70_usize, any::<u8>()), 0..8), cut in 0..70_usize) {
            let mut message = answer(7, 0x8180);
            for (at, byte) in flip {
                if let Some(changed) = message.get_mut(at) {
                    *changed = byte;
                }
            }
            message.truncate(cut);
            let _ = read(7, &message);
        }
    }
}
