//! A bare status, which is all that HTTP/2's library answers to a head larger than the router announces that it takes: it
//! asks nobody, and has no place for words. They are added on the answer's way out.
//!
//! It is told by its form (RFC 9113, 6.2; RFC 7541, 6): a `HEADERS` frame that ends its stream and has one field, its status.
//! No answer of ours has less than three, and none has trailers. The client's window is not asked, and is told nothing: the
//! library thinks it larger than it is by what was added, some 150 bytes for each head of half a megabyte, which matters to who
//! leaves no room in it. What was asked nobody knows any more, so a `HEAD` is answered with words, too.

use http::HeaderMap;

/// Bytes before what a frame carries.
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Where `:status` stands in HPACK's table, once for each of the commonest.
const STATUS: std::ops::RangeInclusive<usize> = 8..=14;

/// Follows what leaves on a connection, frame by frame.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Of the frame that is on its way.
    left: usize,
}

/// What some bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// So many bytes that are to leave as they are, and what is left of their last frame beyond them.
    AsTheyAre { len: usize, left: usize },
    /// A whole frame.
    Bare(Bare<'a>),
}

/// An answer that is a status and nothing else.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bare<'a> {
    stream: [u8; 4],
    fields: &'a [u8],
}

impl Frames {
    /// What `bytes`, which are to leave next, begin with.
    pub(super) fn next<'a>(&self, bytes: &'a [u8]) -> Next<'a> {
        let mut at = self.left;
        while at < bytes.len() {
            // The library gives frames whole; who does not is not followed any further.
            let Some(frame) = Frame::at(&bytes[at..]) else {
                return Next::AsTheyAre { len: bytes.len(), left: usize::MAX };
            };
            match frame.bare() {
                Some(bare) if at == 0 => return Next::Bare(bare),
                Some(_) => return Next::AsTheyAre { len: at, left: 0 },
                None => at = at.saturating_add(frame.len()),
            }
        }
        Next::AsTheyAre { len: bytes.len(), left: at - bytes.len() }
    }

    /// The first `len` of `bytes` have left as they are.
    pub(super) fn passed(&mut self, bytes: &[u8], len: usize) {
        let mut at = 0;
        while at < len {
            if self.left == 0 {
                self.left = Frame::at(&bytes[at..]).map_or(usize::MAX, |frame| frame.len());
            }
            let step = self.left.min(len - at);
            self.left -= step;
            at += step;
        }
    }

    /// As many bytes as that have left of the frame that is on its way.
    pub(super) fn passed_within(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len);
    }
}

impl Bare<'_> {
    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        FRAME_HEAD + self.fields.len()
    }

    /// The same answer with `headers` and a `body`; both are short.
    pub(super) fn completed(&self, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
        let mut fields = self.fields.to_vec();
        for (name, value) in headers {
            // A field that stays out of the table, which is the library's.
            fields.push(0);
            for text in [name.as_str().as_bytes(), value.as_bytes()] {
                push_integer(&mut fields, text.len());
                fields.extend(text);
            }
        }
        let mut frames = Vec::with_capacity(2 * FRAME_HEAD + fields.len() + body.len());
        for (kind, flags, carried) in [(HEADERS, END_HEADERS, fields.as_slice()), (DATA, END_STREAM, body)] {
            let len = u32::try_from(carried.len()).unwrap_or(u32::MAX);
            frames.extend(&len.to_be_bytes()[1..]);
            frames.extend([kind, flags]);
            frames.extend(self.stream);
            frames.extend(carried);
        }
        frames
    }
}

/// A frame of which the head is there.
struct Frame<'a> {
    carries: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    /// What is there of what it carries, and of what follows.
    rest: &'a [u8],
}

impl<'a> Frame<'a> {
    fn at(bytes: &'a [u8]) -> Option<Self> {
        let (&[a, b, c, kind, flags, ref stream @ ..], rest) = bytes.split_first_chunk::<FRAME_HEAD>()?;
        let carries = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(Self { carries, kind, flags, stream: *stream, rest })
    }

    fn len(&self) -> usize {
        FRAME_HEAD + self.carries
    }

    fn bare(&self) -> Option<Bare<'a>> {
        if (self.kind, self.flags) != (HEADERS, END_STREAM | END_HEADERS) {
            return None;
        }
        let fields = self.rest.get(..self.carries)?;
        is_status_alone(fields)?.then_some(Bare { stream: self.stream, fields })
    }
}

/// Whether an answer's fields are its status and nothing else; none if they make no sense.
fn is_status_alone(mut fields: &[u8]) -> Option<bool> {
    // Before the first, the size of the table may change.
    while fields.first()? & 0xe0 == 0x20 {
        (_, fields) = integer(fields, 5)?;
    }
    let kind = *fields.first()?;
    let after = if kind & 0x80 != 0 {
        integer(fields, 7)?.1
    } else {
        let (name, value) = integer(fields, if kind & 0x40 != 0 { 6 } else { 4 })?;
        if !STATUS.contains(&name) {
            return Some(false);
        }
        let (len, text) = integer(value, 7)?;
        text.get(len..)?
    };
    Some(after.is_empty())
}

/// An integer of which the first byte has so many bits (RFC 7541, 5.1), and what follows it.
fn integer(bytes: &[u8], bits: u32) -> Option<(usize, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(first) & most;
    if value < most {
        return Some((value, rest));
    }
    for shift in [0, 7, 14, 21] {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// The length of a text that is written as it is.
fn push_integer(bytes: &mut Vec<u8>, mut value: usize) {
    const MOST: usize = 0x7f;
    let low = |value: usize| u8::try_from(value & MOST).unwrap_or_default();
    if value < MOST {
        return bytes.push(low(value));
    }
    bytes.push(low(MOST));
    value -= MOST;
    while value > MOST {
        bytes.push(low(value) | 0x80);
        value >>= 7;
    }
    bytes.push(low(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, carried: &[u8]) -> Vec<u8> {
        let len = u8::try_from(carried.len()).unwrap();
        [&[0, 0, len, kind, flags, 0, 0, 0, 7], carried].concat()
    }

    /// `:status` 431: as a field to remember, by Huffman; from the table; after a change of its size; as one to forget.
    const STATUSES: [&[u8]; 4] =
        [&[0x48, 0x82, 0x68, 0x2b], &[0xbe], &[0x3f, 0xe1, 0x1f, 0xbf], &[0x08, 0x03, b'4', b'3', b'1']];

    fn as_they_are(len: usize, left: usize) -> Next<'static> {
        Next::AsTheyAre { len, left }
    }

    #[test]
    fn a_status_alone_is_told_from_every_other_answer() {
        let frames = Frames::default();
        for fields in STATUSES {
            let bytes = frame(HEADERS, END_STREAM | END_HEADERS, fields);
            let more = [bytes.as_slice(), &[1, 2, 3]].concat();
            for bytes in [&bytes, &more] {
                assert_eq!(frames.next(bytes), Next::Bare(Bare { stream: [0, 0, 0, 7], fields }), "{fields:?}");
            }
        }
        let others = [
            // A body follows; more follows; another kind.
            frame(HEADERS, END_HEADERS, &[0xbe]),
            frame(HEADERS, END_STREAM, &[0xbe]),
            frame(DATA, END_STREAM | END_HEADERS, &[0xbe]),
            // More fields than one; one that is no status; nothing; less than it says.
            frame(HEADERS, END_STREAM | END_HEADERS, &[0xbe, 0xbf]),
            frame(HEADERS, END_STREAM | END_HEADERS, &[0x88, 0x40, 1, b'a', 1, b'b']),
            frame(HEADERS, END_STREAM | END_HEADERS, &[0x40, 1, b'a', 1, b'b']),
            frame(HEADERS, END_STREAM | END_HEADERS, &[]),
            frame(HEADERS, END_STREAM | END_HEADERS, &[0x48, 0x85, 0x68]),
        ];
        for bytes in others {
            assert_eq!(frames.next(&bytes), as_they_are(bytes.len(), 0), "{bytes:?}");
        }
    }

    #[test]
    fn frames_are_followed_however_they_leave() {
        let bare = frame(HEADERS, END_STREAM | END_HEADERS, STATUSES[1]);
        // What looks like one inside of data is none.
        let data = frame(DATA, 0, &bare);
        let bytes = [data.as_slice(), &data, &bare, &data].concat();
        for step in 1..=bytes.len() {
            let (mut frames, mut rest, mut found) = (Frames::default(), bytes.as_slice(), Vec::new());
            while !rest.is_empty() {
                let len = match frames.next(rest) {
                    Next::AsTheyAre { len, .. } => {
                        let len = len.min(step);
                        frames.passed(rest, len);
                        len
                    }
                    Next::Bare(bare) => {
                        found.push(bytes.len() - rest.len());
                        bare.len()
                    }
                };
                rest = &rest[len..];
            }
            assert_eq!(found, [2 * data.len()], "by {step}");
        }
        assert_eq!(Frames::default().next(&bytes), as_they_are(2 * data.len(), 0));
        // A frame of which a part is elsewhere.
        let mut frames = Frames::default();
        assert_eq!(frames.next(&data[..12]), as_they_are(12, data.len() - 12));
        frames.passed(&data, 12);
        frames.passed_within(data.len() - 12);
        assert_eq!(frames.next(&bare), Next::Bare(Bare { stream: [0, 0, 0, 7], fields: STATUSES[1] }));
        // A head that is not whole is the end of it.
        assert_eq!(frames.next(&bare[..8]), as_they_are(8, usize::MAX));
        frames.passed(&bare[..8], 8);
        assert_eq!(frames.next(&bare), as_they_are(bare.len(), usize::MAX - 8 - bare.len()));
    }

    #[test]
    fn words_are_added_to_it() {
        let headers = HeaderMap::from_iter([(http::header::SERVER, http::HeaderValue::from_static("x"))]);
        let bare = Bare { stream: [0, 0, 0, 7], fields: &[0xbe] };
        let expected = [frame(HEADERS, END_HEADERS, b"\xbe\x00\x06server\x01x"), frame(DATA, END_STREAM, b"no")];
        assert_eq!(bare.completed(&headers, b"no"), expected.concat());
    }

    #[test]
    fn integers_are_read_as_they_are_written() {
        for value in [0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 1_000_000] {
            let mut bytes = Vec::new();
            push_integer(&mut bytes, value);
            bytes.push(9);
            assert_eq!(integer(&bytes, 7), Some((value, &[9][..])), "{bytes:?}");
        }
        // RFC 7541, C.1.
        assert_eq!(integer(&[0x0a], 5), Some((10, &[][..])));
        assert_eq!(integer(&[0x1f, 0x9a, 0x0a], 5), Some((1337, &[][..])));
        assert_eq!([integer(&[], 5), integer(&[0x1f], 5), integer(&[0xff; 9], 5)], [None; 3]);
    }
}
