//! Frames of ZMTP 3 without any I/O: what a peer may send is bounded before memory is reserved for it.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a message, all its frames together: as many as the event decoders take, and some for topic and number.
pub(super) const MESSAGE_BYTES_MAX: usize = (32 << 20) + 4096;

/// Frames of a message; engines send three or four.
const FRAMES_MAX: usize = 8;

/// Bytes of a command.
const COMMAND_BYTES_MAX: usize = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer sends.
#[derive(Debug, PartialEq, Eq)]
pub enum Traffic {
    /// A whole message.
    Message(Vec<Bytes>),
    /// Something between the two ends of the connection.
    Command(Bytes),
}

/// What no peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// Too long.
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// Too many parts.
    #[error("a message of more than {FRAMES_MAX} frames")]
    TooManyFrames,
    /// Too much that is not whole.
    #[error("more of a message than there is room for beside those that others have begun")]
    TooMuch,
    /// Not ZMTP.
    #[error("bytes that are no ZMTP")]
    NotZmtp,
}

/// Puts frames together to messages.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    frames: Vec<Bytes>,
    bytes: usize,
}

impl Decoder {
    /// Bytes of frames whose message is not whole.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes what is complete off `input`. None: more is needed. Copies nothing.
    ///
    /// # Errors
    /// When the peer breaks a rule; nothing that follows can be understood then.
    pub(super) fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Traffic>, Breach> {
        while let Some((flags, head, len)) = header(input, MESSAGE_BYTES_MAX - self.bytes)? {
            if input.len() < head + len {
                break;
            }
            input.advance(head);
            let frame = input.split_to(len).freeze();
            if flags & COMMAND != 0 {
                return Ok(Some(Traffic::Command(frame)));
            }
            if self.frames.len() == FRAMES_MAX {
                return Err(Breach::TooManyFrames);
            }
            self.bytes += len;
            self.frames.push(frame);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Traffic::Message(std::mem::take(&mut self.frames))));
            }
        }
        Ok(None)
    }
}

/// Flags, bytes of the header, and bytes of the body that follows.
fn header(input: &[u8], room: usize) -> Result<Option<(u8, usize, usize)>, Breach> {
    let Some(&flags) = input.first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(Breach::NotZmtp);
    }
    let (head, len) = if flags & LONG == 0 {
        let Some(&len) = input.get(1) else { return Ok(None) };
        (2, usize::from(len))
    } else {
        let Some(len) = input.get(1..9).and_then(|len| len.try_into().ok()) else { return Ok(None) };
        (9, usize::try_from(u64::from_be_bytes(len)).map_err(|_| Breach::TooLong)?)
    };
    let most = if flags & COMMAND == 0 { room } else { COMMAND_BYTES_MAX };
    if len > most { Err(Breach::TooLong) } else { Ok(Some((flags, head, len))) }
}

/// Appends a message.
pub(super) fn write_message(frames: &[&[u8]], to: &mut Vec<u8>) {
    for (place, frame) in frames.iter().enumerate() {
        write(if place + 1 == frames.len() { 0 } else { MORE }, frame, to);
    }
}

/// Appends a command.
pub(super) fn write_command(body: &[u8], to: &mut Vec<u8>) {
    write(COMMAND, body, to);
}

fn write(flags: u8, body: &[u8], to: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(len) => to.extend([flags, len]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend(u64::try_from(body.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    to.extend(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> (Vec<Traffic>, Result<(), Breach>) {
        let (mut decoder, mut input, mut found) = (Decoder::default(), BytesMut::from(bytes), Vec::new());
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(traffic)) => found.push(traffic),
                Ok(None) => return (found, Ok(())),
                Err(breach) => return (found, Err(breach)),
            }
        }
    }

    #[test]
    fn frames_are_written_as_libzmq_writes_them() {
        let mut bytes = Vec::new();
        write_message(&[b"", b"ab"], &mut bytes);
        write_command(b"\x04PING", &mut bytes);
        assert_eq!(bytes, b"\x01\x00\x00\x02ab\x04\x05\x04PING");
        let mut long = Vec::new();
        write_message(&[&[7; 256]], &mut long);
        assert_eq!(long[..9], [2, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_length_is_refused_before_anything_is_reserved() {
        for len in [(32 << 20) + 4097, 1 << 50, u64::MAX] {
            let bytes = [&[2][..], &len.to_be_bytes()].concat();
            assert_eq!(all(&bytes), (vec![], Err(Breach::TooLong)));
        }
        assert_eq!(all(&[6, 0, 0, 0, 0, 0, 0, 0x10, 1]).1, Err(Breach::TooLong));
        assert_eq!(all(&[1, 0].repeat(9)).1, Err(Breach::TooManyFrames));
        for flags in [8, 5, 0x47, 0xff] {
            assert_eq!(all(&[flags, 0]).1, Err(Breach::NotZmtp));
        }
    }

    #[test]
    fn the_frames_of_a_message_share_one_bound() {
        let (mut decoder, half) = (Decoder::default(), vec![0; MESSAGE_BYTES_MAX / 2 + 1]);
        let mut bytes = Vec::new();
        write_message(&[&half, &half], &mut bytes);
        assert_eq!(decoder.decode(&mut BytesMut::from(&bytes[..])), Err(Breach::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_in_whatever_pieces_it_comes(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..5), 1..5),
            piece in 1_usize..64,
        ) {
            let mut bytes = Vec::new();
            for message in &messages {
                let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                write_message(&frames, &mut bytes);
            }
            let (mut decoder, mut input, mut found) = (Decoder::default(), BytesMut::new(), Vec::new());
            for piece in bytes.chunks(piece) {
                input.extend_from_slice(piece);
                while let Some(traffic) = decoder.decode(&mut input).unwrap() {
                    let Traffic::Message(frames) = traffic else { panic!("no command was sent") };
                    found.push(frames.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn no_bytes_are_too_much(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (found, _) = all(&bytes);
            prop_assert!(found.len() <= bytes.len());
        }
    }
}
