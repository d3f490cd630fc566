//! Where a host is.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use tokio::sync::Semaphore;

/// Names that are looked up at once. Each takes a thread for as long as a name server is silent, whoever still waits for it, and
/// there are 512 of them for all that is done beside the threads that serve requests.
const AT_ONCE: usize = 64;

static LOOKUPS: Semaphore = Semaphore::const_new(AT_ONCE);

/// All its addresses. How long that may take is for the caller to say.
///
/// # Errors
/// No name server knows it, or none is there.
pub(crate) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let host = host.to_owned();
    let found = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        (host.as_str(), port).to_socket_addrs().map(Iterator::collect)
    });
    found.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn addresses_are_their_own_and_names_wait_where_too_many_are_looked_up() {
        let own = |host| addresses(host, 7).now_or_never().unwrap().unwrap();
        let all = LOOKUPS.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        assert_eq!(own("127.0.0.1"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(own("::1"), ["[::1]:7".parse().unwrap()]);
        let named = addresses("localhost", 7);
        tokio::pin!(named);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut named).await.is_err());
        drop(all);
        assert!(named.await.unwrap().iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    }
}
