//! A way to a server that a test can cut.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use warmpath::shutdown::Tasks;

/// Passes bytes on, while it is not cut.
pub(crate) struct Link {
    address: SocketAddr,
    server: SocketAddr,
    tasks: Tasks,
}

impl Link {
    /// A way to `nats://host:port`.
    pub(crate) async fn to(url: &str) -> Self {
        let server = url.trim_start_matches("nats://").parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut link = Self { address, server, tasks: Tasks::new() };
        link.mend().await;
        link
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Ends every connection and takes no new ones.
    pub(crate) async fn cut(&mut self) {
        std::mem::take(&mut self.tasks).drain(Duration::ZERO).await;
    }

    /// Takes connections again, at the same address.
    pub(crate) async fn mend(&mut self) {
        self.mend_for(u64::MAX).await;
    }

    /// The same, but the first connection breaks once the server has said so many bytes.
    pub(crate) async fn mend_for(&mut self, bytes: u64) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (server, tasks) = (self.server, self.tasks.clone());
        self.tasks.spawn(async move {
            let mut bytes = bytes;
            while let Ok((mut near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(server).await else { continue };
                let (said, asked) = far.into_split();
                let mut far = tokio::io::join(said.take(std::mem::replace(&mut bytes, u64::MAX)), asked);
                tasks.spawn(async move { drop(copy_bidirectional(&mut near, &mut far).await) });
            }
        });
    }
}
