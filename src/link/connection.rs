//! One connection, and the exchange on it: driven by whoever waits for the answer.
//!
//! HTTP/1.1 as a client speaks it, and no more of it than a proxy needs: a request whose bytes are all here, an answer whose
//! bytes are handed on as they come. What is read and not yet taken is never more than one piece, and a connection on which
//! nothing comes holds no buffer.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;
use tokio::task::coop::unconstrained;

use super::Fault;
use super::head::Head;
use super::wire::Wire;
use crate::http1::Framing;

/// What is read at once, in bytes.
const PIECE: usize = 16 * 1024;

/// A connection on which nothing is under way, or just one exchange.
pub(super) struct Connection {
    wire: Wire,
    /// What the head of an answer may have, with those that only promised one; in bytes.
    head_max: usize,
    /// The request, until the wire has taken all of it.
    unsent: Option<Unsent>,
    /// Whether a byte has come since the last request.
    has_heard: bool,
    /// Whether nothing has happened that forbids another exchange.
    is_reusable: bool,
    /// Whether its server has closed it before it had the whole request.
    is_deaf: bool,
    /// Whether the answer tells of a success.
    is_success: bool,
}

/// A request on its way.
struct Unsent {
    head: Vec<u8>,
    body: Bytes,
    /// Bytes of both that the wire has taken.
    written: usize,
}

impl Unsent {
    /// What is left of the head, and of the body.
    fn rest(&self) -> (&[u8], &[u8]) {
        let of_head = self.written.min(self.head.len());
        (&self.head[of_head..], &self.body[self.written - of_head..])
    }
}

/// How an answer begins.
pub(super) struct Begun {
    pub(super) head: Head,
    /// What is to come of the body.
    pub(super) framing: Framing,
    /// What came of it together with the head.
    pub(super) first: Bytes,
}

impl Connection {
    pub(super) fn over(wire: Wire, head_max: usize) -> Self {
        Self { wire, head_max, unsent: None, has_heard: false, is_reusable: true, is_deaf: false, is_success: false }
    }

    /// Sends a request, `head` and `body`, and waits for the head of its answer.
    pub(super) async fn exchange(&mut self, head: Vec<u8>, body: Bytes, is_head: bool) -> Result<Begun, Fault> {
        self.unsent = Some(Unsent { head, body, written: 0 });
        self.has_heard = false;
        let mut said = Vec::new();
        poll_fn(|cx| self.poll_begun(&mut said, is_head, cx)).await
    }

    /// The beginning of the answer, of which `said` has come before.
    fn poll_begun(&mut self, said: &mut Vec<u8>, is_head: bool, cx: &mut Context<'_>) -> Poll<Result<Begun, Fault>> {
        self.write(cx)?;
        loop {
            let mut space = [MaybeUninit::uninit(); PIECE];
            let mut space = ReadBuf::uninit(&mut space);
            ready!(self.wire.poll_read(cx, &mut space))?;
            let piece = space.filled();
            if piece.is_empty() {
                return Poll::Ready(Err(Fault::Closed));
            }
            self.has_heard = true;
            // Mostly it is all there at once.
            let begun = if said.is_empty() {
                let (begun, rest) = self.begin(piece, is_head)?;
                said.extend_from_slice(rest);
                begun
            } else {
                said.extend_from_slice(piece);
                let (begun, rest) = self.begin(said, is_head)?;
                let read = said.len() - rest.len();
                said.drain(..read);
                begun
            };
            match begun {
                Some(begun) => return Poll::Ready(Ok(begun)),
                None if said.len() > self.head_max => return Poll::Ready(Err(Fault::TooLarge)),
                None => {}
            }
        }
    }

    /// The answer that `said` begins with, if its head is there, and what is left: the beginning of a head. What only promises
    /// an answer is passed over (RFC 9110, 15.2).
    fn begin<'a>(&mut self, mut said: &'a [u8], is_head: bool) -> Result<(Option<Begun>, &'a [u8]), Fault> {
        while let Some(head) = Head::parse(said)? {
            if head.len > self.head_max {
                return Err(Fault::TooLarge);
            }
            said = &said[head.len..];
            if head.is_interim() {
                continue;
            }
            let mut framing = head.framing(is_head)?;
            self.is_reusable &= head.keeps_open();
            self.is_success = head.status.is_success();
            let first = self.take(&mut framing, said)?;
            return Ok((Some(Begun { head, framing, first }), &[]));
        }
        Ok((None, said))
    }

    /// More data of the body; none where it has ended.
    pub(super) fn poll_data(&mut self, framing: &mut Framing, cx: &mut Context<'_>) -> Poll<Result<Bytes, Fault>> {
        self.write(cx)?;
        while !framing.has_ended() {
            framing.check()?;
            let mut space = [MaybeUninit::uninit(); PIECE];
            let mut space = ReadBuf::uninit(&mut space);
            ready!(self.wire.poll_read(cx, &mut space))?;
            let piece = space.filled();
            if piece.is_empty() {
                self.is_reusable = false;
                // A close that has met the request, too, may have met a part of the answer. Why it was refused may pass.
                if *framing != Framing::UntilClose || self.is_deaf && self.is_success {
                    return Poll::Ready(Err(Fault::Closed));
                }
                *framing = Framing::ENDED;
            }
            let data = self.take(framing, piece)?;
            if !data.is_empty() {
                return Poll::Ready(Ok(data));
            }
        }
        Poll::Ready(Ok(Bytes::new()))
    }

    /// The data in `said`. Nobody has asked for what stands behind the body.
    fn take(&mut self, framing: &mut Framing, said: &[u8]) -> Result<Bytes, Fault> {
        let (data, taken) = framing.take(said)?;
        self.is_reusable &= taken == said.len();
        Ok(data)
    }

    /// Whether a byte of the answer has come.
    pub(super) fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Whether it can be kept when the answer has ended. What was not read of a request is in the way of the next.
    pub(super) fn is_reusable(&self) -> bool {
        self.is_reusable && self.unsent.is_none()
    }

    /// Whether its server has neither closed it nor said anything, as far as is known.
    pub(super) async fn is_silent(&mut self) -> bool {
        let mut space = [MaybeUninit::uninit(); 1];
        // Who has looked at a hundred would be told by tokio to wait, which is no silence.
        let looking = poll_fn(|cx| Poll::Ready(self.wire.poll_read(cx, &mut ReadBuf::uninit(&mut space)).is_pending()));
        unconstrained(looking).await
    }

    /// Writes what can be. A server that takes no more may have said why before, and that is read.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        while let Some(unsent) = &mut self.unsent {
            let written = match unsent.rest() {
                ([], []) => self.wire.poll_flush(cx).map_ok(|()| None),
                (head, body) => self.wire.poll_write(cx, &[IoSlice::new(head), IoSlice::new(body)]).map_ok(Some),
            };
            match written {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(None)) => self.unsent = None,
                Poll::Ready(Ok(Some(0))) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(Some(written))) => unsent.written += written,
                Poll::Ready(Err(error)) if matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                    (self.unsent, self.is_reusable, self.is_deaf) = (None, false, true);
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::StatusCode;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Notify, oneshot};
    use tokio::time::timeout;

    use super::*;
    use crate::link::{ClientTls, Link, LinkLimits, Links, Outgoing, Stage, Way};
    use crate::shutdown::Tasks;

    const HEAD_MAX: usize = 40 * 1024;

    /// A server that is played by the test, and the way to it.
    async fn server() -> (TcpListener, Arc<Link>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
        let limits = LinkLimits { connect: Duration::from_secs(5), idle: Duration::from_secs(5), head: HEAD_MAX };
        let links = Links::new(limits, ClientTls::default(), Tasks::new());
        (listener, links.link(&http::uri::Scheme::HTTP, &authority).unwrap())
    }

    /// Sends, and takes the whole of the answer: its status and body, or how far it came.
    async fn send(link: &Arc<Link>, outgoing: &Outgoing) -> Result<(StatusCode, Bytes), Option<Stage>> {
        let sending = async {
            let sent = link.send(outgoing, &http::HeaderMap::new(), Way::Kept).await;
            let (parts, body) = sent.map_err(|error| Some(error.stage))?.into_parts();
            Ok((parts.status, body.collect().await.map_err(|_| None)?.to_bytes()))
        };
        timeout(Duration::from_secs(10), sending).await.expect("it ends")
    }

    /// Takes a request that has no body, and says this.
    async fn answer(stream: &mut TcpStream, pieces: &[&str]) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        for piece in pieces {
            stream.write_all(piece.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What becomes of the first answer, and whether its connection takes the next request, too.
    async fn first_of_two(pieces: &[&str]) -> (Result<(StatusCode, Bytes), Option<Stage>>, bool) {
        let (listener, link) = server().await;
        let playing = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, pieces).await;
            let mut next = [0; 1];
            tokio::select! {
                read = stream.read_exact(&mut next) => read.is_ok(),
                another = listener.accept() => another.is_err(),
            }
        };
        let (tell, told) = oneshot::channel();
        let asking = async {
            let first = send(&link, &Outgoing::get("/")).await;
            // What is said behind the answer has come, and whoever is not kept has gone.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let next = Outgoing::get("/");
            tokio::select! {
                _ = send(&link, &next) => {}
                _ = told => {}
            }
            first
        };
        let playing = async {
            let is_used_again = playing.await;
            tell.send(()).unwrap_or_default();
            is_used_again
        };
        timeout(Duration::from_secs(10), async { tokio::join!(asking, playing) }).await.expect("it ends")
    }

    #[tokio::test]
    async fn an_answer_is_the_same_in_one_piece_and_in_many() {
        const WHOLE: &str = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\
                             \r\n5\r\nhello\r\n6\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n";
        let expected = || Ok((StatusCode::CREATED, Bytes::from_static(b"hello world")));
        assert_eq!(first_of_two(&[WHOLE]).await, (expected(), true));
        for cut in (1..WHOLE.len()).step_by(7) {
            let (begin, rest) = WHOLE.split_at(cut);
            assert_eq!(first_of_two(&[begin, rest]).await, (expected(), true), "{cut}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_used_again_only_where_nothing_forbids_it() {
        let hello = || Ok((StatusCode::OK, Bytes::from_static(b"hello")));
        for (said, expected, is_used_again) in [
            (&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"][..], hello(), true),
            (&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", "lo"], hello(), true),
            (&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello!"], hello(), false),
            // An answer before it was asked for is no answer.
            (&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\n\r\n"], hello(), false),
            (&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"], hello(), false),
            (&["HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello"], hello(), false),
            (&["HTTP/1.1 204 No Content\r\n\r\n"], Ok((StatusCode::NO_CONTENT, Bytes::new())), true),
            (&["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", "x\r\n"], Err(None), false),
            (&["SSH-2.0-OpenSSH\r\n"], Err(Some(Stage::Broken)), false),
        ] {
            assert_eq!(first_of_two(said).await, (expected, is_used_again), "{said:?}");
        }
        let long = ["HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: ", &"y".repeat(HEAD_MAX - 60), "\r\n\r\n"].concat();
        assert_eq!(first_of_two(&[&long]).await, (Ok((StatusCode::OK, Bytes::new())), true));
        let endless = ["HTTP/1.1 200 OK\r\nx: ", &"y".repeat(HEAD_MAX), "\r\n\r\n"].concat();
        assert_eq!(first_of_two(&[&endless]).await, (Err(Some(Stage::TooLarge)), false));
    }

    #[tokio::test]
    async fn a_body_may_last_as_long_as_its_connection_and_no_other_may() {
        for (head, expected) in
            [("", Ok((StatusCode::OK, Bytes::from_static(b"hello")))), ("content-length: 9\r\n", Err(None))]
        {
            let (listener, link) = server().await;
            let playing = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                answer(&mut stream, &[&format!("HTTP/1.1 200 OK\r\n{head}\r\nhel"), "lo"]).await;
            };
            let (said, ()) = tokio::join!(async { send(&link, &Outgoing::get("/")).await }, playing);
            assert_eq!((said, link.kept()), (expected, 0), "{head:?}");
        }
    }

    #[tokio::test]
    async fn a_kept_connection_that_ends_without_a_word_is_told_from_one_that_breaks() {
        let (listener, link) = server().await;
        let playing = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, &["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]).await;
            answer(&mut stream, &[]).await;
            drop(stream);
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, &["HTTP"]).await;
        };
        let asking = async {
            let first = send(&link, &Outgoing::get("/")).await;
            (first, send(&link, &Outgoing::get("/")).await, send(&link, &Outgoing::get("/")).await)
        };
        let (said, ()) = tokio::join!(asking, playing);
        let ok = Ok((StatusCode::OK, Bytes::new()));
        assert_eq!(said, (ok, Err(Some(Stage::Stale)), Err(Some(Stage::Broken))));
    }

    #[tokio::test]
    async fn however_many_connections_have_said_something_unasked_none_of_them_is_used() {
        const KEPT: usize = 300;
        const ASKED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nasked";
        const UNASKED: &str = "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";
        let (listener, link) = server().await;
        let [all_kept, all_said] = [Notify::new(), Notify::new()];
        let playing = async {
            let mut streams = Vec::new();
            while streams.len() < KEPT {
                streams.push(listener.accept().await.unwrap().0);
            }
            for stream in &mut streams {
                answer(stream, &[ASKED]).await;
            }
            all_kept.notified().await;
            for stream in &mut streams {
                stream.write_all(UNASKED.as_bytes()).await.unwrap();
            }
            all_said.notify_one();
            answer(&mut listener.accept().await.unwrap().0, &[ASKED]).await;
        };
        let asking = async {
            let outgoing = Outgoing::get("/");
            futures_util::future::join_all((0..KEPT).map(|_| send(&link, &outgoing))).await;
            while link.kept() < KEPT {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            all_kept.notify_one();
            all_said.notified().await;
            // The runtime notices what has come when it waits for something.
            tokio::time::sleep(Duration::from_millis(20)).await;
            send(&link, &outgoing).await
        };
        let both = async { tokio::join!(asking, playing) };
        let (said, ()) = timeout(Duration::from_secs(20), both).await.expect("a new connection is made");
        assert_eq!(said, Ok((StatusCode::OK, Bytes::from_static(b"asked"))));
    }

    #[tokio::test]
    async fn a_close_that_meets_the_request_is_no_end_of_a_success() {
        let large = Outgoing::post("/", vec![b'x'; 32 << 20]);
        for (status, is_passed) in [("200 OK", false), ("413 Content Too Large", true)] {
            let (listener, link) = server().await;
            let playing = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                answer(&mut stream, &[&format!("HTTP/1.1 {status}\r\n\r\npart")]).await;
                // Its head has been read by then.
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.set_zero_linger().unwrap();
            };
            let (said, ()) = tokio::join!(async { send(&link, &large).await }, playing);
            assert_eq!(said.is_ok(), is_passed, "{status}: {said:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_comes_before_the_whole_request_is_heard() {
        const REFUSED: &str = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nno!";
        let large = Outgoing::post("/", vec![b'x'; 32 << 20]);
        // It stays open and reads nothing more, or is gone at once.
        for stays in [true, false] {
            let (listener, link) = server().await;
            let playing = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                answer(&mut stream, &[REFUSED]).await;
                if stays {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let (said, ()) = tokio::join!(async { send(&link, &large).await }, playing);
            // Closed with unread bytes before it, an answer may be lost on the way: that is TCP's.
            if stays {
                assert_eq!(said, Ok((StatusCode::PAYLOAD_TOO_LARGE, Bytes::from_static(b"no!"))));
            } else {
                assert!(matches!(said, Ok((StatusCode::PAYLOAD_TOO_LARGE, _)) | Err(Some(Stage::Broken))), "{said:?}");
            }
            assert_eq!(link.kept(), 0);
        }
    }

    #[tokio::test]
    async fn a_request_is_written_as_its_server_takes_it() {
        let (listener, link) = server().await;
        let body: Vec<u8> = (0..8 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
        let playing = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, &[]).await;
            let mut read = vec![0; body.len()];
            for piece in read.chunks_mut(1 << 20) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                stream.read_exact(piece).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            read
        };
        let large = Outgoing::post("/", body.clone());
        let (said, read) = tokio::join!(async { send(&link, &large).await }, playing);
        assert_eq!(said, Ok((StatusCode::OK, Bytes::new())));
        assert!(read == body);
        assert_eq!(link.kept(), 1);
    }
}
