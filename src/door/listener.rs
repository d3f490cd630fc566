//! A bound port, and how it is listened at.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::error::is_starved;
use crate::telemetry::metrics::DoorMetrics;

/// Connections that wait to be accepted.
pub(super) const BACKLOG: u32 = 1024;

/// What the kernel keeps of an answer that the client does not take, in bytes; it doubles this for its own purposes. By
/// itself it grows to megabytes, and workers would write ahead of their clients by as much.
const SEND_BUFFER: u32 = 128 * 1024;

/// Pauses after a connection that could not be accepted: short at first, as others may close any moment.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// See the module.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    pause: Duration,
}

impl Listener {
    /// Takes the port; 0 takes any.
    ///
    /// # Errors
    /// The port is taken, or may not be.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        // Connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(address)?;
        let socket = socket.listen(BACKLOG)?;
        Ok(Self { address: socket.local_addr()?, socket, pause: PAUSE_MIN })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. A client that left before it was accepted costs nothing; where connections cannot be had, it
    /// is tried again after a pause, since the kernel would say the same at once. Cancelling it loses no connection.
    pub(super) async fn accept(&mut self, metrics: &DoorMetrics) -> (TcpStream, SocketAddr) {
        loop {
            let error = match self.socket.accept().await {
                Ok(accepted) => {
                    self.pause = PAUSE_MIN;
                    return accepted;
                }
                Err(error) => error,
            };
            if is_of_one_connection(&error) {
                continue;
            }
            metrics.accept_failed(if is_starved(&error) { "no_descriptors" } else { "other" });
            if self.pause == PAUSE_MIN {
                tracing::warn!(address = %self.address, error = %error, "accept failed");
            }
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
