//! Where a host is.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Names that are looked up at once. Each takes a thread for as long as a name server is silent, whoever still waits for it, and
/// there are 512 of them for all that is done beside the threads that serve requests.
const AT_ONCE: usize = 256;

static LOOKUPS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Names that are being looked up: whoever asks for one of them waits for the same answer.
static UNDER_WAY: LazyLock<Mutex<HashMap<String, Looked>>> = LazyLock::new(Mutex::default);

/// What is found of a name: none before it is.
type Looked = watch::Receiver<Option<Result<Vec<IpAddr>, String>>>;

/// All its addresses. How long that may take is for the caller to say.
///
/// # Errors
/// No name server knows it, or none is there.
pub(crate) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let at_port = |address| SocketAddr::new(address, port);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![at_port(address)]);
    }
    let under_way = running(&under_way(), host);
    let mut looked = match under_way {
        Some(looked) => looked,
        None => begin(host, LOOKUPS.acquire().await.map_err(io::Error::other)?),
    };
    let found = looked.wait_for(Option::is_some).await.map_err(io::Error::other)?;
    match found.as_ref() {
        Some(Ok(found)) => Ok(found.iter().copied().map(at_port).collect()),
        Some(Err(why)) => Err(io::Error::other(why.clone())),
        None => Err(io::Error::other("it was not looked up")),
    }
}

fn under_way() -> MutexGuard<'static, HashMap<String, Looked>> {
    // Nothing panics while the lock is held.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unless its runtime has ended, and nobody will tell.
fn running(all: &HashMap<String, Looked>, host: &str) -> Option<Looked> {
    all.get(host).filter(|looked| looked.has_changed().is_ok()).cloned()
}

/// Looks a name up, unless somebody else has begun that meanwhile.
fn begin(host: &str, permit: SemaphorePermit<'static>) -> Looked {
    let mut all = under_way();
    if let Some(looked) = running(&all, host) {
        return looked;
    }
    let (tell, looked) = watch::channel(None);
    all.insert(host.to_owned(), looked.clone());
    drop(all);
    let host = host.to_owned();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let found = (host.as_str(), 0).to_socket_addrs();
        let found = found.map(|found| found.map(|address| address.ip()).collect()).map_err(|error| error.to_string());
        under_way().remove(&host);
        tell.send_replace(Some(found));
    });
    looked
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn addresses_are_their_own_and_a_name_is_looked_up_once_however_many_ask() {
        let own = |host| addresses(host, 7).now_or_never().unwrap().unwrap();
        let all = LOOKUPS.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        assert_eq!(own("127.0.0.1"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(own("::1"), ["[::1]:7".parse().unwrap()]);
        let named = addresses("localhost", 7);
        tokio::pin!(named);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut named).await.is_err());
        drop(all);
        assert!(named.await.unwrap().iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        // One place is enough for all who ask for the same.
        let most = LOOKUPS.acquire_many(u32::try_from(AT_ONCE - 1).unwrap()).await.unwrap();
        let asked = join_all((1..=50).map(|port| addresses("localhost", port))).await;
        assert!(asked.iter().zip(1..).all(|(found, port)| found.as_ref().unwrap()[0].port() == port), "{asked:?}");
        drop(most);
        assert!(running(&under_way(), "localhost").is_none(), "nothing is kept");
    }

    #[test]
    fn a_runtime_that_ends_leaves_nobody_waiting() {
        let (tell, looked) = watch::channel(None);
        let all = HashMap::from([("a".to_owned(), looked)]);
        assert!(running(&all, "a").is_some());
        drop::<watch::Sender<Option<Result<Vec<IpAddr>, String>>>>(tell);
        assert!(running(&all, "a").is_none());
    }
}
