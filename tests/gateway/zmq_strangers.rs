//! Peers over ZeroMQ that are not what they should be: told apart, counted, and no harm to anybody else.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmpath::config::ZmqEndpoint;
use warmpath::events::publish::zmq::ZmqPublisher;
use warmpath::events::zmq::ZmqEngine;
use warmpath::shutdown::Tasks;

use crate::zmq::{Listening, engine_of, message, outlet, until};

/// A peer that says this to everybody, and then nothing.
async fn says(bytes: Vec<u8>) -> ZmqEngine {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let events: ZmqEndpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    Tasks::new().spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(&bytes).await;
            open.push(stream);
        }
    });
    ZmqEngine { replay: Some(events.clone()), events }
}

/// The beginning of a conversation with a socket of this kind.
pub(crate) fn handshake(kind: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[u8::try_from(kind.len()).unwrap()][..], kind].concat();
    bytes.extend([4, u8::try_from(ready.len()).unwrap()]);
    bytes.extend(ready);
    bytes
}

#[tokio::test]
async fn peers_that_are_something_else_are_told_apart_in_words() {
    let huge = [&handshake(b"PUB")[..], &[2], &(1_u64 << 50).to_be_bytes()].concat();
    let endless = [&handshake(b"PUB")[..], &[1, 0].repeat(100)].concat();
    let mut curve = handshake(b"PUB");
    curve[12..17].copy_from_slice(b"CURVE");
    let mut old = handshake(b"PUB");
    old[10] = 1;
    let unwilling = [&handshake(b"PUB")[..64], b"\x04\x0b\x05ERROR\x04no! "].concat();
    let mut closed = says(vec![]).await;
    closed.events = "tcp://127.0.0.1:1".parse().unwrap();
    for (peer, expected) in [
        (says(huge).await, "the peer sent a message of more than 33558528 bytes"),
        (says(endless).await, "the peer sent a message of more than 8 frames"),
        (says(curve).await, "the peer is secured (CURVE), which is not spoken"),
        (says(old).await, "the peer is a ZeroMQ of protocol 1; 3 or later is needed"),
        (says(unwilling).await, "the peer is unwilling: ERROR no!"),
        (says(handshake(b"ROUTER")).await, "the peer is a ROUTER socket, which no SUB talks to"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await, "the peer is no ZeroMQ socket"),
        (says(vec![0xff; 200]).await, "the peer is no ZeroMQ socket"),
        (says(vec![]).await, "nothing was heard for 500ms"),
        (says(handshake(b"PUB")).await, "nothing was heard for 200ms"),
        (says([handshake(b"PUB"), vec![9; 9]].concat()).await, "the peer sent bytes that are no ZMTP"),
        (closed, "refused"),
    ] {
        let listening = Listening::to(peer);
        listening.trouble(expected).await;
    }
}

/// The commands and messages in what a socket of ours sent, by their bodies, and whether each is a command.
fn frames_of(mut bytes: &[u8]) -> Vec<(bool, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [flags, rest @ ..] = bytes {
        let long = flags & 2 != 0;
        let announced = if long { 8 } else { 1 };
        let Some((length, rest)) = rest.split_at_checked(announced) else { break };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let Some((body, rest)) = rest.split_at_checked(length) else { break };
        frames.push((flags & 4 != 0, body.to_vec()));
        bytes = rest;
    }
    frames
}

/// libzmq ends the connection of a peer that announces a time to live and then does not ping within it; ours pings those
/// only that are silent, so it must announce none: two zero bytes.
#[tokio::test]
async fn a_ping_announces_no_time_to_live() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let events: ZmqEndpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let mut listening = Listening::to(ZmqEngine { events, replay: None });
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&handshake(b"PUB")).await.unwrap();
    let (mut said, mut answered) = (Vec::new(), 0);
    let pings = loop {
        assert!(stream.read_buf(&mut said).await.unwrap() > 0, "it stays");
        let frames = frames_of(said.get(64..).unwrap_or_default());
        let pings = frames.into_iter().filter(|(is_command, body)| *is_command && body.starts_with(b"\x04PING"));
        let pings: Vec<_> = pings.map(|(_, body)| body).collect();
        for _ in answered..pings.len() {
            stream.write_all(b"\x04\x05\x04PONG").await.unwrap();
        }
        answered = pings.len();
        // Two at the beginning, the others when nothing was heard for a heartbeat.
        if answered >= 5 {
            break pings;
        }
    };
    assert!(pings.iter().all(|ping| ping == b"\x04PING\0\0"), "{pings:?}");
    listening.connected().await;
    listening.nothing_more();
}

#[tokio::test]
async fn messages_that_are_no_batches_are_counted_and_cost_nothing_else() {
    let mut bytes = handshake(b"PUB");
    bytes.extend(b"\x00\x01a");
    bytes.extend(b"\x01\x00\x01\x03123\x00\x01p");
    bytes.extend(b"\x01\x06other!\x01\x08\0\0\0\0\0\0\0\x05\x00\x01p");
    bytes.extend(b"\x01\x00\x01\x00\x01\x08\0\0\0\0\0\0\0\x05\x00\x01p");
    let mut listening = Listening::to(says(bytes).await);
    listening.connected().await;
    assert_eq!(listening.live().await, (5, b"p".to_vec()));
    until("three are counted", || listening.count("malformed") >= 3.0).await;
    assert!(listening.count("unexpected_topic") >= 1.0);
}

#[tokio::test]
async fn a_wrong_replay_socket_ends_the_replay_and_not_the_events() {
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    let answers = |answer: &[u8]| [&handshake(b"ROUTER")[..], answer].concat();
    for (answer, why) in [
        (answers(b"\x00\x01a"), "no replay socket of an engine"),
        (answers(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"), "a message of more than"),
        (answers(b""), "nothing was heard for 300ms"),
        (handshake(b"PUB"), "a PUB socket"),
    ] {
        let replay = says(answer).await.replay;
        let mut listening = Listening::to(ZmqEngine { replay, ..engine_of(&publisher) });
        listening.connected().await;
        assert_eq!(listening.replay(0).await, []);
        let complaints = listening.bus.complaints();
        assert!(complaints.len() == 1 && complaints[0].contains(why), "{complaints:?}");
        until("it is subscribed", || publisher.subscribers() > 0).await;
        publisher.send(message(3));
        assert_eq!(listening.live().await.0, 3);
        listening.tasks.drain(Duration::ZERO).await;
    }
}
