//! A stream without the chunk of usage that the router asked for and the client did not.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use memchr::{memchr2_iter, memmem};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::sse::BYTE_ORDER_MARK;

/// The longest event that is put together from several pieces; a longer one passes unread.
const EVENT_MAX: usize = 256 * 1024;

/// Passes a stream of events on as it comes, except for the first event that has usage and no choices. What a piece begins
/// and does not end is kept until its event is whole.
pub struct WithoutUsage<B> {
    inner: B,
    cut: Cut,
}

/// The cutting without I/O.
#[derive(Debug, Default)]
struct Cut {
    held: Vec<u8>,
    done: bool,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<IgnoredAny>,
    usage: Option<IgnoredAny>,
}

impl Cut {
    /// What may pass of `data` and what was held before it.
    fn pass(&mut self, data: Bytes) -> Bytes {
        if self.done {
            return data;
        }
        let mut data = if self.held.is_empty() {
            data
        } else {
            self.held.extend_from_slice(&data);
            std::mem::take(&mut self.held).into()
        };
        let mut start = 0;
        while let Some(len) = event_len(&data[start..]) {
            if is_usage(&data[start..start + len]) {
                self.done = true;
                return [&data[..start], &data[start + len..]].concat().into();
            }
            start += len;
        }
        if data.len() - start <= EVENT_MAX {
            self.held = data.split_off(start).into();
        }
        data
    }
}

/// The length of the first event with the empty line that ends it, if it is whole. Lines end with CR, LF or both.
fn event_len(bytes: &[u8]) -> Option<usize> {
    let (mut line, mut before_ended_in_both) = (0, false);
    for end in memchr2_iter(b'\n', b'\r', bytes) {
        // The LF of both.
        if end < line {
            continue;
        }
        let is_cr = bytes[end] == b'\r';
        let in_both = is_cr && bytes.get(end + 1) == Some(&b'\n');
        let next = end + 1 + usize::from(in_both);
        if end == line {
            // An LF may be on its way, where the line before had one.
            let is_cut = is_cr && next == bytes.len() && before_ended_in_both && !in_both;
            return (!is_cut).then_some(next);
        }
        (line, before_ended_in_both) = (next, in_both);
    }
    None
}

fn is_usage(event: &[u8]) -> bool {
    if memmem::find(event, b"\"usage\"").is_none() {
        return false;
    }
    let event = event.strip_prefix(BYTE_ORDER_MARK).unwrap_or(event);
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let mut payloads = lines.filter_map(|line| line.strip_prefix(b"data:"));
    let (Some(payload), None) = (payloads.next(), payloads.next()) else { return false };
    let chunk: Result<Chunk, _> = serde_json::from_slice(payload);
    chunk.is_ok_and(|chunk| chunk.choices.is_empty() && chunk.usage.is_some())
}

impl<B> WithoutUsage<B> {
    /// A body that passes `inner` on.
    pub fn new(inner: B) -> Self {
        Self { inner, cut: Cut::default() }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WithoutUsage<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        loop {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let passed = this.cut.pass(frame.into_data().unwrap_or_default());
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed))));
                    }
                    // Nobody polls a body again that says that it has ended.
                    if this.is_end_stream() {
                        return Poll::Ready(None);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    // An event that nothing ends passes as it is.
                    let held = std::mem::take(&mut this.cut.held);
                    return Poll::Ready((!held.is_empty()).then(|| Ok(Frame::data(held.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.cut.held.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use super::*;

    const BEFORE: &str = ": ping\r\n\r\ndata: {\"choices\":[{\"text\":\"é🦀 \\\"usage\\\"\"}],\"usage\":null}\r\n\r\n\
        data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n";
    const USAGE: &str = "event: x\ndata:{\"choices\":[ ],\"usage\":{\"prompt_tokens\":1}}\r\n\r\n";
    const AFTER: &str = "data: [DONE]\n\n";

    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }
    }

    /// What comes out of these pieces, as hyper reads a body.
    fn passed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let pieces = pieces.into_iter().map(Bytes::copy_from_slice).collect();
        let mut body = WithoutUsage::new(Pieces(pieces));
        let mut out = Vec::new();
        while !body.is_end_stream() {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else { break };
            let data = frame.into_data().unwrap();
            assert!(!data.is_empty());
            out.extend_from_slice(&data);
        }
        out
    }

    /// R15.
    #[test]
    fn wherever_a_stream_is_cut_the_one_chunk_is_missing_and_nothing_else() {
        let as_it_is = |text: &str| text.to_owned();
        let ending_in = |end: &'static str| move |text: &str| text.replace("\r\n", "\n").replace('\n', end);
        let forms: [&dyn Fn(&str) -> String; 4] = [&as_it_is, &ending_in("\n"), &ending_in("\r\n"), &ending_in("\r")];
        for form in forms {
            let stream = form(&[BEFORE, USAGE, AFTER].concat()).into_bytes();
            let expected = form(&[BEFORE, AFTER].concat()).into_bytes();
            for first in 0..=stream.len() {
                for second in (first..=stream.len()).step_by(7) {
                    let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                    assert_eq!(passed(pieces), expected, "cut at {first} and {second}");
                }
            }
            assert_eq!(passed(stream.chunks(1)), expected);
        }
        let marked = ["\u{feff}data: {\"choices\":[],\"usage\":{}}\n\n", AFTER].concat();
        assert_eq!(passed([marked.as_bytes()]), AFTER.as_bytes());
    }

    #[test]
    fn an_event_passes_as_soon_as_it_is_whole_however_its_lines_end() {
        for event in ["data: {}\n\n", "data: {}\r\r", "data: {}\r\n\r\n", ": ping\rdata: {}\r\r", "\r"] {
            assert_eq!(Cut::default().pass(Bytes::from_static(event.as_bytes())), event, "{event:?}");
        }
    }

    #[test]
    fn only_the_first_is_cut_out() {
        let stream = [USAGE, AFTER, USAGE].concat().into_bytes();
        assert_eq!(passed(stream.chunks(5)), [AFTER, USAGE].concat().as_bytes());
    }

    #[test]
    fn what_nothing_ends_passes_as_it_is() {
        for stream in ["data: [DONE]\n", "data: {\"choices\":[],\"usage\":{}}\n", "x", "\n", "data: a\n\ndata: b"] {
            assert_eq!(passed(stream.as_bytes().chunks(3)), stream.as_bytes(), "{stream:?}");
        }
    }

    #[test]
    fn a_whole_piece_passes_without_a_copy() {
        let mut cut = Cut::default();
        let piece = Bytes::from_static(b"data: {\"choices\":[{}]}\n\n");
        assert_eq!(cut.pass(piece.clone()).as_ptr(), piece.as_ptr());
    }

    #[test]
    fn an_endless_event_is_bounded() {
        let mut cut = Cut::default();
        let mut passed = 0;
        for _ in 0..100 {
            passed += cut.pass(Bytes::from(vec![b'x'; 10_000])).len();
            assert!(cut.held.len() <= EVENT_MAX);
        }
        assert_eq!(passed + cut.held.len(), 1_000_000);
        assert!(passed > 700_000);
    }
}
