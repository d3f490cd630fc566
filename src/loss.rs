//! Peers that vanish without a word: lost hosts, cut networks, translations of addresses that were forgotten.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Questions to a silent peer, after half of the time that it has.
const QUESTIONS: u32 = 4;

/// Ends the connection once the peer has taken nothing for `silent`: neither its kernel's answers to questions where nothing is
/// under way, nor what was sent, a window that stays full among it. A program that hangs with nothing to read is still there: who
/// waits for it has limits of his own. Reading and writing then fail as on a connection that broke.
///
/// # Errors
/// The system knows none of this.
pub(crate) fn end_when_lost(stream: &TcpStream, silent: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let half = silent / 2;
    let questions = TcpKeepalive::new().with_time(half).with_interval(half / QUESTIONS).with_retries(QUESTIONS);
    socket.set_tcp_keepalive(&questions)?;
    // On Linux it decides for questions, too.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(silent))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_peer_is_asked_until_its_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let silent = Duration::from_secs(40);
        end_when_lost(&stream, silent).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let asked = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(socket.tcp_keepalive_time().unwrap() + asked, silent);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(silent));
    }
}
