//! Bounds on what a request may be, checked before memory is spent.

use std::fmt::Write;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use crate::fleet::fleet;
use crate::raw::{answer, connect, exchange, post};
use crate::scripted::{Scripted, Step, until, whole};
use crate::serving::Serving;

/// A completion of exactly so many bytes.
fn body_of(bytes: usize) -> String {
    let (begin, end) = ("{\"model\":\"m\",\"prompt\":\"", "\"}");
    format!("{begin}{}{end}", "x".repeat(bytes - begin.len() - end.len()))
}

fn chunked(body: &str) -> String {
    let mut text = "POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for chunk in body.as_bytes().chunks(100_000) {
        write!(text, "{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap()).unwrap();
    }
    text + "0\r\n\r\n"
}

/// R-046.
#[tokio::test]
async fn r046_a_body_of_4_mib_is_taken_and_one_byte_more_is_413() {
    const LIMIT: usize = 4 << 20;
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("limits: {body_bytes: 4MiB}").start().await;
    let (fits, too_large) = (body_of(LIMIT), body_of(LIMIT + 1));
    for (number, form) in (1..).zip([post, chunked]) {
        let answered = exchange(fleet.app.data_address(), form(&fits).as_bytes()).await.unwrap();
        assert_eq!(answered.status, 200, "{answered:?}");
        assert_eq!(worker.seen().last().unwrap().body, fits.as_bytes());
        let refused = exchange(fleet.app.data_address(), form(&too_large).as_bytes()).await.unwrap();
        assert_eq!((refused.status, worker.seen().len()), (413, number));
        assert_eq!(refused.refusal(), "the request body is larger than 4194304 bytes");
    }
}

/// The worker might read the other one.
#[tokio::test]
async fn every_routed_key_that_occurs_twice_is_400() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let keys = [
        ("model", "\"m\""),
        ("prompt", "[1]"),
        ("prompt_embeds", "null"),
        ("messages", "null"),
        ("tools", "[]"),
        ("tool_choice", "\"auto\""),
        ("documents", "[]"),
        ("chat_template", "null"),
        ("chat_template_kwargs", "{}"),
        ("add_generation_prompt", "true"),
        ("continue_final_message", "false"),
        ("reasoning_effort", "\"low\""),
        ("add_special_tokens", "true"),
        ("truncate_prompt_tokens", "5"),
        ("truncation_side", "\"left\""),
        ("cache_salt", "\"s\""),
        ("extra_key", "\"k\""),
        ("stream", "false"),
        ("stream_options", "{}"),
        ("n", "1"),
        ("max_tokens", "1"),
        ("max_completion_tokens", "1"),
        ("priority", "0"),
        ("user", "\"u\""),
    ];
    let all = |skip: &str| {
        let fields = keys.iter().filter(|(key, _)| *key != skip).map(|(key, value)| format!("\"{key}\":{value}"));
        fields.collect::<Vec<_>>().join(",")
    };
    let address = fleet.app.data_address();
    let whole = format!("{{{}}}", all(""));
    assert_eq!(exchange(address, post(&whole).as_bytes()).await.unwrap().status, 200);
    for (key, value) in keys {
        // One of the two is written with an escape, as another reader may not notice.
        for twin in [key.to_owned(), format!("\\u{:04x}{}", u32::from(key.as_bytes()[0]), &key[1..])] {
            let body = format!("{{{},\"{key}\":{value},\"{twin}\":{value}}}", all(key));
            let refused = exchange(address, post(&body).as_bytes()).await.unwrap();
            assert_eq!(refused.status, 400, "{body}");
            assert!(refused.refusal().contains(&format!("duplicate field `{key}`")), "{refused:?}");
        }
    }
    let twice_but_not_ours = format!("{{{},\"seed\":1,\"seed\":2,\"x\":{{\"model\":1,\"model\":2}}}}", all(""));
    assert_eq!(exchange(address, post(&twice_but_not_ours).as_bytes()).await.unwrap().status, 200);
    assert_eq!(worker.seen().len(), 2);
}

/// R13: whatever is sent, memory follows what may be sent. Of 1 GiB by its length nothing is read, and of 1 GiB in
/// chunks no more than the limit is kept.
#[tokio::test]
async fn r13_large_bodies_heads_and_lists_cost_no_memory() {
    const CLIENTS: u64 = 4;
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let serving = Serving::start("r13", worker.address, "limits: {body_bytes: 4MiB}");
    let plain = exchange(serving.data, post("{\"model\":\"m\",\"prompt\":\"x\"}").as_bytes()).await.unwrap();
    assert_eq!(plain.status, 200);
    let (before, _) = serving.memory();
    for _ in 0..CLIENTS {
        let head = "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 1073741824\r\n\r\n";
        assert_eq!(exchange(serving.data, head.as_bytes()).await.unwrap().status, 413);
        let mut stream = connect(serving.data).await;
        stream
            .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        let piece = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        let (mut reader, mut writer) = stream.split();
        let mut written = 0;
        let writing = async {
            while written < 1 << 30 && writer.write_all(&piece).await.is_ok() {
                written += piece.len();
            }
        };
        let (refused, ()) = tokio::join!(answer(&mut reader), writing);
        assert_eq!(refused.unwrap().status, 413);
        assert!(written < 32 << 20, "{written} bytes were taken");
        let list = format!("{{\"model\":\"m\",\"prompt\":[{}\"a\"]}}", "\"a\",".repeat(1_000_000));
        let refused = exchange(serving.data, post(&list).as_bytes()).await.unwrap();
        assert_eq!((refused.status, refused.refusal().as_str()), (400, "`prompt` may have at most 4096 elements"));
        let deep = format!("{{\"model\":\"m\",\"prompt\":\"x\",\"a\":{}}}", "[".repeat(10_000));
        assert_eq!(exchange(serving.data, post(&deep).as_bytes()).await.unwrap().status, 400);
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: r\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
        assert_eq!(exchange(serving.data, head.as_bytes()).await.unwrap().status, 431);
    }
    let (_, most) = serving.memory();
    let grown = most.saturating_sub(before);
    assert!(grown <= (4 + 16) * 1024, "{grown} KiB more than before");
}

/// R12: a body that comes too slowly is refused long before its time is over, and one that is fast enough is not.
#[tokio::test]
async fn a_body_that_drips_is_408() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let limits = "limits: {body_rate: 1KiB}\ntimeouts: {body_read: 30s}";
    let fleet = fleet().engines(0).stranger(worker.address).config(limits).start().await;
    let body = body_of(20_000);
    let start = Instant::now();
    let drip = async |bytes: usize| {
        let mut stream = connect(fleet.app.data_address()).await;
        let (mut reader, mut writer) = stream.split();
        let text = post(&body);
        let writing = async {
            for piece in text.as_bytes().chunks(bytes) {
                if writer.write_all(piece).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            answer = answer(&mut reader) => answer.unwrap(),
            () = writing => panic!("the connection is gone before the answer"),
        }
    };
    let (slow, fast) = tokio::join!(drip(10), drip(400));
    assert_eq!((slow.status, slow.refusal().as_str()), (408, "the request body did not arrive in time"));
    assert_eq!(fast.status, 200);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

/// R13: bodies of all requests together are bounded. What finds no room is 503 and not read; what is answered or given up
/// makes room again.
#[tokio::test]
async fn r13_bodies_of_all_requests_together_are_bounded() {
    const BODY: usize = 4 << 20;
    let worker = Scripted::start(vec![Step::Hold]).await;
    let limits = "limits: {body_bytes: 5MiB, all_body_bytes: 16MiB}";
    let serving = Serving::start("r13-all", worker.address, limits);
    let body = format!("{{\"model\":\"m\",\"prompt\":\"x\",\"pad\":\"{}\"}}", " ".repeat(BODY - 64));
    let announced = post(&body);
    let (before, _) = serving.memory();
    let mut held = Vec::new();
    for number in 1..=4 {
        let mut client = connect(serving.data).await;
        client.write_all(announced.as_bytes()).await.unwrap();
        held.push(client);
        until("the worker has it", || worker.seen().len() == number).await;
    }
    // Whether they say how long they are or not.
    let mut in_chunks = connect(serving.data).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n";
    in_chunks.write_all(format!("{head}{:x}\r\n", BODY).as_bytes()).await.unwrap();
    let (mut reader, mut writer) = in_chunks.split();
    let writing = async { drop(writer.write_all(body.as_bytes()).await) };
    let (refused, ()) = tokio::join!(answer(&mut reader), writing);
    for refused in [refused.unwrap(), exchange(serving.data, announced.as_bytes()).await.unwrap()] {
        assert_eq!(refused.status, 503);
        assert_eq!(refused.refusal(), "the router holds too many request bodies");
        assert!(refused.head.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{refused:?}");
    }
    let (_, most) = serving.memory();
    let grown = most.saturating_sub(before);
    assert!(grown <= (16 + 16) * 1024, "{grown} KiB more than before");
    assert_eq!(worker.seen().len(), 4);
    held.remove(0);
    until("its worker is given up", || worker.hangups() == 1).await;
    let mut client = connect(serving.data).await;
    client.write_all(announced.as_bytes()).await.unwrap();
    until("the worker has it", || worker.seen().len() == 5).await;
}

/// What is held back for clients that may not read it has its bounds: beyond them it goes on as it comes, and nobody takes over.
#[tokio::test]
async fn an_answer_is_held_back_as_far_as_there_is_room() {
    let document = format!("{{\"text\":\"{}\"}}", "x".repeat(800_000));
    let told =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", document.len());
    let torn = [told.as_bytes(), &document.as_bytes()[..400_000]].concat();
    for (limits, held) in [("", true), ("limits: {body_bytes: 64KiB, all_body_bytes: 64KiB}", false)] {
        let breaks = Scripted::start(vec![Step::Send(torn.clone()), Step::Close]).await;
        let good = Scripted::start(vec![whole("200 OK", &document)]).await;
        let fleet = fleet().engines(0).policy("round_robin").stranger(breaks.address).stranger(good.address);
        let fleet = fleet.config(limits).start().await;
        let ask = async || {
            let body = r#"{"model":"m","prompt":"x"}"#;
            let answer = fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), 200);
            answer.text().await.ok()
        };
        let answers = [ask().await, ask().await];
        let count = answers.iter().filter(|answer| answer.as_deref() == Some(&*document)).count();
        assert_eq!((count, breaks.seen().is_empty()), (if held { 2 } else { 1 }, false), "{limits}");
    }
}
