//! Making a connection: name, TCP, TLS.

use std::net::SocketAddr;
use std::time::Duration;

use http::uri::Authority;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::bare;
use super::tls::ClientTls;
use super::wire::Wire;
use crate::error::BoxError;
use crate::lookup;
use crate::loss::end_when_lost;

/// Connects to the first address of `authority` that takes the connection. How long that may take is for the caller to
/// say.
pub(super) async fn dial(
    authority: &Authority,
    secure: Option<&ServerName<'static>>,
    tls: &ClientTls,
) -> Result<Wire, BoxError> {
    let port = authority.port_u16().unwrap_or(if secure.is_some() { 443 } else { 80 });
    let host = bare(authority.host());
    let tcp = connect_any(lookup::addresses(host, port).await?).await?;
    // Small requests and pieces of streams must not wait for an acknowledgement.
    tcp.set_nodelay(true)?;
    end_when_lost(&tcp, LOST_AFTER)?;
    Ok(match secure {
        None => Wire::Plain(tcp),
        Some(name) => {
            let connector = TlsConnector::from(tls.config()?);
            Wire::Secure(Box::new(connector.connect(name.clone(), tcp).await?))
        }
    })
}

/// A server whose host does not answer for so long is gone, or one that reads nothing of a body, and another one is asked: long
/// enough for a network that has to find another way, and for an engine that stands still while it compiles.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// What the kernel holds of an answer before it is read, in bytes, which it doubles: workers must not write megabytes
/// ahead of a client.
const RECEIVE_BUFFER: u32 = 128 * 1024;

async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.connect(address).await
}

/// One after the other: an address that refuses is answered at once on the networks where workers are.
async fn connect_any(addresses: Vec<SocketAddr>) -> Result<TcpStream, BoxError> {
    let mut last: BoxError = "the name has no address".into();
    for address in addresses {
        match connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
