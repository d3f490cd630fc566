//! Where peers connect to.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

use super::unfinished::Allowance;
use super::{Kind, Link, LinkError};
use crate::config::ZmqEndpoint;

/// Something that peers connect to.
pub struct Listener {
    socket: Socket,
    /// What begun messages of all peers may take.
    allowance: Allowance,
}

enum Socket {
    /// On a port.
    Tcp(TcpListener),
    /// In the file system.
    Ipc(UnixListener),
}

impl Socket {
    async fn bind(endpoint: &ZmqEndpoint) -> io::Result<Self> {
        match endpoint {
            ZmqEndpoint::Tcp { host, port } if host == "*" => {
                // Both families where the machine has both.
                match TcpListener::bind(("::", *port)).await {
                    Ok(listener) => Ok(Self::Tcp(listener)),
                    Err(_) => Ok(Self::Tcp(TcpListener::bind(("0.0.0.0", *port)).await?)),
                }
            }
            ZmqEndpoint::Tcp { host, port } => Ok(Self::Tcp(TcpListener::bind((host.as_str(), *port)).await?)),
            ZmqEndpoint::Ipc(path) => {
                let in_use = UnixStream::connect(path).await.is_ok();
                if !in_use && path.exists() {
                    std::fs::remove_file(path)?;
                }
                Ok(Self::Ipc(UnixListener::bind(path)?))
            }
        }
    }
}

impl Listener {
    /// Listens; a socket that a dead process left in the file system is taken over.
    ///
    /// # Errors
    /// When the place is taken or cannot be used.
    pub async fn bind(endpoint: &ZmqEndpoint) -> io::Result<Self> {
        Ok(Self { socket: Socket::bind(endpoint).await?, allowance: Allowance::default() })
    }

    /// Where it listens, with the port that it was given.
    ///
    /// # Errors
    /// When the system does not know.
    pub fn endpoint(&self) -> io::Result<ZmqEndpoint> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => {
                let address = listener.local_addr()?;
                ZmqEndpoint::Tcp { host: address.ip().to_string(), port: address.port() }
            }
            Socket::Ipc(listener) => {
                ZmqEndpoint::Ipc(listener.local_addr()?.as_pathname().map(Into::into).unwrap_or_default())
            }
        })
    }

    /// The next peer, before its handshake: [`Arrival::greet`] makes that, beside further arrivals.
    ///
    /// # Errors
    /// When the system has no more room for connections; later it may have.
    pub async fn accept(&self) -> io::Result<Arrival> {
        let stream = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Socket::Ipc(listener) => Stream::Ipc(listener.accept().await?.0),
        };
        Ok(Arrival { stream, allowance: self.allowance.clone() })
    }
}

/// A peer that has connected and said nothing yet.
pub struct Arrival {
    stream: Stream,
    allowance: Allowance,
}

enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Through the file system.
    Ipc(UnixStream),
}

impl Arrival {
    /// Makes the handshake as `kind`, within `patience`, which then bounds each sending too.
    ///
    /// # Errors
    /// When it is nobody that `kind` talks to, or somebody slow.
    pub async fn greet(self, kind: Kind, patience: Duration) -> Result<Link, LinkError> {
        let Self { stream, allowance } = self;
        let shaking = async {
            match stream {
                Stream::Tcp(stream) => Link::shake_hands(stream.into_split(), kind, patience, allowance).await,
                Stream::Ipc(stream) => Link::shake_hands(stream.into_split(), kind, patience, allowance).await,
            }
        };
        timeout(patience, shaking).await.map_err(|_| LinkError::Silent(patience))?
    }
}
