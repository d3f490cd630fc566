//! The body of a request that has not all come: between the connection's task, which reads it when it is wanted, and the
//! handler, which takes it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::socket::Socket;
use crate::http1::Framing;

/// What is read at once, and kept until it is taken.
pub(super) const PIECE: usize = 64 * 1024;

/// The least that is read at once where there is more to come.
const WORTHWHILE: usize = 8 * 1024;

/// What of a body in chunks is read at once.
const CHUNKS: usize = 16 * 1024;

/// The connection's side of it.
pub(super) struct Upload(Arc<Mutex<State>>);

/// The handler's side of it.
pub(super) struct Uploaded(Arc<Mutex<State>>);

struct State {
    /// What has come and was not taken.
    data: BytesMut,
    /// What is to come.
    framing: Framing,
    /// Whether nothing more can be read, though not all has come.
    is_broken: bool,
    /// Who waits for more.
    taker: Option<Waker>,
    /// Whom it wakes for it.
    reader: Option<Waker>,
}

/// The body broke off, or is none.
#[derive(Debug, thiserror::Error)]
#[error("the body ended before its end")]
pub(super) struct Broken;

impl Upload {
    /// Both sides of a body of which `data` has come.
    pub(super) fn begin(data: BytesMut, framing: Framing) -> (Self, Uploaded) {
        let is_broken = framing.check().is_err();
        let state = Arc::new(Mutex::new(State { data, framing, is_broken, taker: None, reader: None }));
        (Self(Arc::clone(&state)), Uploaded(state))
    }

    /// Whether all of it has been read.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.0).framing.has_ended()
    }

    /// Whether anything of it can still come.
    pub(super) fn can_go_on(&self) -> bool {
        lock(&self.0).can_go_on()
    }

    /// Whether more is to be read now. If not, the task is woken when it is.
    pub(super) fn is_wanted(&self, cx: &Context<'_>) -> bool {
        let mut state = lock(&self.0);
        let is_wanted = state.taker.is_some();
        if !is_wanted && !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        is_wanted
    }

    /// Reads on. What comes behind the body goes to `behind`. That nothing more can be read the handler is told.
    pub(super) fn poll_read(&self, socket: &mut Socket, behind: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        let read = ready!(state.poll_read(socket, behind, cx));
        state.is_broken |= !matches!(read, Ok(1..));
        if let Some(taker) = state.taker.take() {
            drop(state);
            // A task that is woken while it runs is run once more.
            if !taker.will_wake(cx.waker()) {
                taker.wake();
            }
        }
        Poll::Ready(())
    }
}

impl State {
    fn can_go_on(&self) -> bool {
        !self.framing.has_ended() && !self.is_broken
    }

    fn poll_read(
        &mut self,
        socket: &mut Socket,
        behind: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(socket);
        let read = if let Framing::Length(left) = &mut self.framing {
            let piece = usize::try_from(*left).map_or(PIECE, |left| left.min(PIECE));
            // What is left of the last piece serves as long as it is worth a look.
            if self.data.capacity() - self.data.len() < piece.min(WORTHWHILE) {
                self.data.reserve(piece);
            }
            let read = ready!(poll_read_buf(socket, cx, &mut (&mut self.data).limit(piece)))?;
            *left = left.saturating_sub(u64::try_from(read).unwrap_or(*left));
            read
        } else {
            let mut space = [MaybeUninit::uninit(); CHUNKS];
            let mut space = ReadBuf::uninit(&mut space);
            ready!(socket.poll_read(cx, &mut space))?;
            let said = space.filled();
            let (data, taken) = self.framing.take(said).unwrap_or_default();
            self.is_broken |= self.framing.check().is_err();
            self.data.extend_from_slice(&data);
            behind.extend_from_slice(&said[taken..]);
            said.len()
        };
        Poll::Ready(Ok(read))
    }
}

impl Body for Uploaded {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut state = lock(&self.0);
        if !state.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(state.data.split().freeze()))));
        }
        if state.framing.has_ended() {
            return Poll::Ready(None);
        }
        if !state.can_go_on() {
            return Poll::Ready(Some(Err(Broken)));
        }
        state.taker = Some(cx.waker().clone());
        if let Some(reader) = state.reader.take_if(|reader| !reader.will_wake(cx.waker())) {
            reader.wake();
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        state.data.is_empty() && state.framing.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let state = lock(&self.0);
        match state.framing {
            Framing::Length(left) => {
                SizeHint::with_exact(left.saturating_add(u64::try_from(state.data.len()).unwrap_or(u64::MAX)))
            }
            _ => SizeHint::default(),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use http_body_util::BodyExt;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::shutdown::Tasks;

    /// What a handler gets of a body that is sent in these pieces, whether it got all of it, and what is behind it.
    async fn uploaded(framing: Framing, begun: &[u8], pieces: &[&[u8]]) -> (Vec<u8>, bool, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(client, listener.accept());
        let (mut client, mut socket) = (client.unwrap(), Socket::Plain(server.unwrap().0));
        client.set_nodelay(true).unwrap();
        let (upload, mut body) = Upload::begin(begun.into(), framing);
        let sending = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(client);
        };
        let mut behind = Vec::new();
        let reading = poll_fn(|cx| {
            while upload.can_go_on() {
                if !upload.is_wanted(cx) {
                    return Poll::Pending;
                }
                ready!(upload.poll_read(&mut socket, &mut behind, cx));
            }
            Poll::Ready(())
        });
        // Of a task of its own, so that each has to wake the other.
        let (tell, told) = tokio::sync::oneshot::channel();
        Tasks::new().spawn(async move {
            let mut taken = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                taken.extend_from_slice(&frame.into_data().unwrap());
            }
            tell.send((taken, body.is_end_stream())).unwrap();
        });
        let ((), (), told) = tokio::join!(sending, reading, told);
        let (taken, is_whole) = told.unwrap();
        assert_eq!(upload.has_ended(), is_whole);
        (taken, is_whole, behind)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_body_is_the_same_however_it_comes_and_whoever_takes_it() {
        let whole: Vec<u8> = (0..200_000_u32).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
        for piece in [999, 70_000, whole.len()] {
            let (begun, rest) = whole.split_at(100);
            let left = Framing::Length(u64::try_from(rest.len()).unwrap());
            let pieces: Vec<&[u8]> = rest.chunks(piece).collect();
            assert_eq!(uploaded(left, begun, &pieces).await, (whole.clone(), true, Vec::new()), "{piece}");
        }
        let chunks: Vec<u8> = whole.chunks(30_000).fold(Vec::new(), |chunks, chunk| {
            [&chunks[..], format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()
        });
        let all = [&chunks[..], b"0\r\n\r\nGET /"].concat();
        let pieces: Vec<&[u8]> = all.chunks(7_001).collect();
        assert_eq!(uploaded(Framing::CHUNKED, b"", &pieces).await, (whole, true, b"GET /".to_vec()));
    }

    #[tokio::test]
    async fn one_that_breaks_off_or_makes_no_sense_is_not_whole() {
        assert_eq!(uploaded(Framing::Length(9), b"he", &[b"ll"]).await, (b"hell".to_vec(), false, Vec::new()));
        let (taken, is_whole, _) = uploaded(Framing::CHUNKED, b"", &[b"4\r\nhell\r\nx\r\n", b"more"]).await;
        assert_eq!((taken, is_whole), (b"hell".to_vec(), false));
    }
}
