//! ZMTP 3, the protocol of ZeroMQ's sockets, as far as engines' events need it: connections over TCP or a socket in the
//! file system, without security, between PUB and SUB and between DEALER and ROUTER. Written here because the peer is not
//! trusted: no length that it names is reserved, a peer that falls silent is noticed, and nothing works unseen.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::ZmqEndpoint;
use crate::lookup;
use crate::printable;

pub use frame::{Breach, Traffic};
pub use listener::{Arrival, Listener};
use unfinished::{Allowance, Unfinished, WHOLE_WITHIN};

mod frame;
mod listener;
mod unfinished;

/// Room that is made for reading at once: an idle connection holds no more.
const CHUNK: usize = 16 * 1024;

/// A ping without a time to live: a peer that is told one ends the connection when it does not hear from us within it,
/// and nobody pings an engine that is talking all the time.
const PING: &[u8] = b"\x04PING\x00\x00";

/// What one end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sends to all that listen.
    Pub,
    /// Listens.
    Sub,
    /// Asks, and hears many answers.
    Dealer,
    /// Answers.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    fn talks_to(self, peer: &[u8]) -> bool {
        let peers: &[&[u8]] = match self {
            Self::Pub => &[b"SUB", b"XSUB"],
            Self::Sub => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER"],
            Self::Router => &[b"DEALER", b"REQ"],
        };
        peers.contains(&peer)
    }
}

/// Why a connection is of no use, in words that an operator can act on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer ended it.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing came in time.
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    /// A message had begun, and was not whole in time.
    #[error("the peer had not sent all of a message after {0:?}")]
    Slow(Duration),
    /// The peer broke the protocol.
    #[error("the peer sent {0}")]
    Breach(#[from] Breach),
    /// It is somebody else.
    #[error("the peer is {0}")]
    Stranger(String),
}

/// A connection after its handshake.
pub struct Link {
    /// What comes.
    pub reader: Reader,
    /// What goes.
    pub writer: Writer,
    /// Whether the peer answers signs of life: protocol 3.1, which libzmq has had since 4.2. Others would hang up.
    pub pings: bool,
}

/// The receiving half.
pub struct Reader {
    input: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    decoder: frame::Decoder,
    unfinished: Unfinished,
}

/// The sending half.
pub struct Writer {
    output: Box<dyn AsyncWrite + Send + Unpin>,
    bytes: Vec<u8>,
    patience: Duration,
}

impl Link {
    /// Connects as `kind`; all of it, names included, within `patience`, which then bounds each sending too.
    ///
    /// # Errors
    /// When nobody answers, or somebody else.
    pub async fn connect(endpoint: &ZmqEndpoint, kind: Kind, patience: Duration) -> Result<Self, LinkError> {
        let deadline = Instant::now() + patience;
        let link = async {
            match endpoint {
                ZmqEndpoint::Tcp { host, port } => {
                    let stream = TcpStream::connect(&*lookup::addresses(host, *port).await?).await?;
                    stream.set_nodelay(true)?;
                    Self::shake_hands(stream.into_split(), kind, patience, Allowance::default()).await
                }
                ZmqEndpoint::Ipc(path) => {
                    let stream = UnixStream::connect(path).await?;
                    Self::shake_hands(stream.into_split(), kind, patience, Allowance::default()).await
                }
            }
        };
        timeout_at(deadline, link).await.map_err(|_| LinkError::Silent(patience))?
    }

    async fn shake_hands<R, W>(
        (input, output): (R, W),
        kind: Kind,
        patience: Duration,
        allowance: Allowance,
    ) -> Result<Self, LinkError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let decoder = frame::Decoder::default();
        let unfinished = Unfinished::of(allowance);
        let mut reader = Reader { input: Box::new(input), buffer: BytesMut::new(), decoder, unfinished };
        let mut writer = Writer { output: Box::new(output), bytes: Vec::new(), patience };
        writer.bytes.extend(greeting(kind));
        frame::write_command(&ready(kind), &mut writer.bytes);
        writer.flush().await?;
        let pings = check_greeting(&reader.take(64).await?)?;
        match reader.next().await? {
            Traffic::Command(command) => check_ready(kind, &command)?,
            Traffic::Message(_) => return Err(Breach::NotZmtp.into()),
        }
        Ok(Self { reader, writer, pings })
    }
}

impl Reader {
    /// What comes next. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// When the connection is over, or the peer breaks the protocol.
    pub async fn next(&mut self) -> Result<Traffic, LinkError> {
        loop {
            if let Some(traffic) = self.decoder.decode(&mut self.buffer)? {
                self.unfinished.end();
                return Ok(traffic);
            }
            match self.unfinished.lasts_until(self.decoder.bytes() + self.buffer.len())? {
                None => self.read().await?,
                Some(until) => timeout_at(until, self.read()).await.map_err(|_| LinkError::Slow(WHOLE_WITHIN))??,
            }
        }
    }

    async fn read(&mut self) -> Result<(), LinkError> {
        // A long frame makes the buffer double as its bytes come, not as it is announced.
        if self.buffer.capacity() - self.buffer.len() < CHUNK / 4 {
            self.buffer.reserve(CHUNK);
        }
        if self.input.read_buf(&mut self.buffer).await? == 0 { Err(LinkError::Closed) } else { Ok(()) }
    }

    async fn take(&mut self, count: usize) -> Result<Bytes, LinkError> {
        while self.buffer.len() < count {
            // Somebody who greets with something else may wait for us to speak his language.
            if self.buffer.first().is_some_and(|first| *first != 0xff) {
                return Err(LinkError::Stranger("no ZeroMQ socket".to_owned()));
            }
            self.read().await?;
        }
        Ok(self.buffer.split_to(count).freeze())
    }
}

impl Writer {
    /// Sends a message.
    ///
    /// # Errors
    /// When the connection is over, or the peer takes nothing any more.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), LinkError> {
        self.put(frames);
        self.flush().await
    }

    /// Adds a message to what the next [`Writer::flush`] sends.
    pub fn put(&mut self, frames: &[&[u8]]) {
        frame::write_message(frames, &mut self.bytes);
    }

    /// How many bytes wait for the next [`Writer::flush`].
    pub fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// Sends what was put. Dropped half-way it leaves the connection useless.
    ///
    /// # Errors
    /// See [`Writer::send`].
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        let writing = timeout(self.patience, self.output.write_all(&self.bytes)).await;
        self.bytes.clear();
        self.bytes.shrink_to(CHUNK);
        Ok(writing.map_err(|_| LinkError::Silent(self.patience))??)
    }

    /// Asks the peer for a sign of life; ZeroMQ answers it without the program behind it.
    ///
    /// # Errors
    /// See [`Writer::send`].
    pub async fn ping(&mut self) -> Result<(), LinkError> {
        frame::write_command(PING, &mut self.bytes);
        self.flush().await
    }

    /// Answers a command of the peer's, where it wants an answer.
    ///
    /// # Errors
    /// See [`Writer::send`].
    pub async fn answer(&mut self, command: &[u8]) -> Result<(), LinkError> {
        // A ping is its name, two bytes of time to live, and a text that is to be returned.
        let Some(rest) = command.strip_prefix(b"\x04PING") else { return Ok(()) };
        let text = rest.get(2..).unwrap_or_default();
        let pong = [b"\x04PONG", text.get(..16.min(text.len())).unwrap_or_default()].concat();
        frame::write_command(&pong, &mut self.bytes);
        self.flush().await
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// Signature, version, mechanism NULL, neither client nor server. Who sends to subscribers says 3.1, to be asked for signs
/// of life; a subscriber says 3.0, whose subscriptions every peer understands.
fn greeting(kind: Kind) -> [u8; 64] {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[11] = u8::from(kind == Kind::Pub);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(kind: Kind) -> Vec<u8> {
    let name = kind.name().as_bytes();
    let mut ready = b"\x05READY\x0bSocket-Type\x00\x00\x00".to_vec();
    ready.push(u8::try_from(name.len()).unwrap_or_default());
    ready.extend(name);
    if matches!(kind, Kind::Dealer | Kind::Router) {
        ready.extend(b"\x08Identity\x00\x00\x00\x00");
    }
    ready
}

/// Whether the peer speaks 3.1.
fn check_greeting(greeting: &[u8]) -> Result<bool, LinkError> {
    let stranger = |what: String| Err(LinkError::Stranger(what));
    if greeting[0] != 0xff || greeting[9] != 0x7f {
        return stranger("no ZeroMQ socket".to_owned());
    }
    if greeting[10] < 3 {
        return stranger(format!("a ZeroMQ of protocol {}; 3 or later is needed", greeting[10]));
    }
    let mechanism = greeting[12..32].split(|byte| *byte == 0).next().unwrap_or_default();
    if mechanism != b"NULL" {
        return stranger(format!("secured ({}), which is not spoken", shown(mechanism)));
    }
    Ok(greeting[10] > 3 || greeting[11] > 0)
}

fn check_ready(kind: Kind, command: &[u8]) -> Result<(), LinkError> {
    let Some(mut properties) = command.strip_prefix(b"\x05READY") else {
        return Err(LinkError::Stranger(format!("unwilling: {}", shown(command))));
    };
    while let Some((&len, rest)) = properties.split_first() {
        let Some((name, rest)) = rest.split_at_checked(usize::from(len)) else { break };
        let Some((len, rest)) = rest.split_at_checked(4) else { break };
        let len = len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let Some((value, rest)) = rest.split_at_checked(len) else { break };
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return if kind.talks_to(value) {
                Ok(())
            } else {
                Err(LinkError::Stranger(format!("a {} socket, which no {} talks to", shown(value), kind.name())))
            };
        }
        properties = rest;
    }
    Err(Breach::NotZmtp.into())
}

/// A few printable characters of what a peer said.
fn shown(bytes: &[u8]) -> String {
    printable::line(&String::from_utf8_lossy(bytes).chars().take(40).collect::<String>()).trim().to_owned()
}
