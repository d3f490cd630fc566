//! A real ZeroMQ peer: libzmq, driven by a Python program beside the test.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde::Deserialize;
use tokio::sync::mpsc;
use warmpath::config::ZmqEndpoint;
use warmpath::events::zmq::ZmqEngine;

use crate::sdk::python;

/// The two recordings, and their block sizes.
pub(crate) const RECORDINGS: [(&str, u32); 2] =
    [("vllm-0.20.2-array-int64-block16", 16), ("vllm-0.32.0-map-int64-block32", 32)];

/// One message of a recording.
pub(crate) struct Recorded {
    pub(crate) step: String,
    pub(crate) seq: u64,
    pub(crate) payload: Vec<u8>,
}

fn file(recording: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/frames").join(recording).join(name)
}

/// The lines of a recording's file.
pub(crate) fn lines<T: for<'a> Deserialize<'a>>(recording: &str, name: &str) -> Vec<T> {
    let text = std::fs::read_to_string(file(recording, name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// All messages of a recording.
pub(crate) fn recorded(recording: &str) -> Vec<Recorded> {
    #[derive(Deserialize)]
    struct Line {
        step: String,
        frames: [String; 3],
    }
    let message = |line: Line| {
        let [_, seq, payload] = line.frames.map(|frame| unhex(&frame));
        Recorded { step: line.step, seq: u64::from_be_bytes(seq.try_into().unwrap()), payload }
    };
    lines(recording, "events.jsonl").into_iter().map(message).collect()
}

/// Ends when dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: mpsc::Receiver<String>,
}

impl Peer {
    fn start(args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/zmq_peer.py");
        let mut command = Command::new(python());
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (said, output) = mpsc::channel(10_000);
        std::thread::spawn(move || lines.map_while(Result::ok).all(|line| said.blocking_send(line).is_ok()));
        Self { input: child.stdin.take().unwrap(), output, child }
    }

    /// An engine that publishes a recording, and where it does; `layout` is `topic` or `plain`.
    pub(crate) async fn engine(recording: &str, layout: &str) -> (Self, ZmqEngine) {
        Self::engine_at(recording, layout, ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*"]).await
    }

    pub(crate) async fn engine_at(recording: &str, layout: &str, at: [&str; 2]) -> (Self, ZmqEngine) {
        let events = file(recording, "events.jsonl");
        let mut peer = Self::start(&["engine", events.to_str().unwrap(), at[0], at[1], layout]);
        let said = peer.line().await;
        let (events, replay) = said.split_once(' ').unwrap();
        (peer, ZmqEngine { events: events.parse().unwrap(), replay: Some(replay.parse().unwrap()) })
    }

    /// A router that listens to `count` batches, and then asks.
    pub(crate) async fn router(events: &ZmqEndpoint, replay: &ZmqEndpoint, count: usize) -> Self {
        let mut peer = Self::start(&["router", &events.to_string(), &replay.to_string(), &count.to_string()]);
        assert_eq!(peer.line().await, "ready");
        peer
    }

    pub(crate) async fn line(&mut self) -> String {
        let line = tokio::time::timeout(std::time::Duration::from_secs(20), self.output.recv()).await;
        line.expect("the peer speaks in time").expect("the peer lives")
    }

    pub(crate) fn write(&mut self, command: &str) {
        self.input.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// Gives a command and waits until it is done.
    pub(crate) async fn tell(&mut self, command: &str) {
        self.write(command);
        assert_eq!(self.line().await, "done");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
