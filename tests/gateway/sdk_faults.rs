//! OpenAI's own SDK as the judge of what goes wrong: every broken stream raises, and nothing is sent more often than helps.

use std::path::Path;
use std::process::{Command, Output};

use crate::chaos::before;
use crate::faulty::{Act, Faulty, refusal, stream, torn};
use crate::scripted::{Step, end};
use crate::sdk::python;

/// An engine whose streams end as their prompts say: `reset 3 20` after three tokens and 20 bytes of the next event by a RST,
/// and so on.
async fn engine() -> Faulty {
    Faulty::start(|prompt, number| {
        let mut words = prompt.split(' ');
        let how = words.next().unwrap_or_default();
        let mut number_of = |otherwise| words.next().and_then(|word| word.parse().ok()).unwrap_or(otherwise);
        let (tokens, bytes): (usize, usize) = (number_of(1), number_of(0));
        let begun = || torn(tokens, bytes);
        let Step::Send(clean) = end() else { unreachable!("it is sent") };
        match how {
            "reset" => [begun(), vec![Act::Reset]].concat(),
            "close" => [begun(), vec![Act::Close]].concat(),
            "clean" => [begun(), vec![Act::Send(clean)]].concat(),
            "idle" => [begun(), vec![Act::Hold]].concat(),
            "die" => vec![Act::Reset],
            "error" => refusal("500 Internal Server Error", ""),
            "bad" => refusal("400 Bad Request", ""),
            "full" => refusal("429 Too Many Requests", "retry-after-ms: 50\r\n"),
            "once" if number == 0 => refusal("503 Service Unavailable", "retry-after-ms: 1500\r\n"),
            _ => stream(tokens),
        }
    })
    .await
}

/// Lets the SDK read so many broken streams, and check how often it sends what fails.
async fn judge(streams: usize) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/sdk_faults.py");
    let (first, second, alone) = (engine().await, engine().await, engine().await);
    let config = "timeouts: {stream_idle: 150ms}\nhealth: {request_failures: 1000000}";
    let two = before(&[&first, &second]).config(config).start().await;
    let one = before(&[&alone]).config(config).start().await;
    let mut command = Command::new(python());
    let seen =
        |prompt: &str| [&first, &second, &alone].map(|engine| engine.arrived(prompt).len()).iter().sum::<usize>();
    command.arg(script).args([two.url(""), one.url(""), streams.to_string()]);
    command.env_remove("OPENAI_BASE_URL").env("NO_PROXY", "*");
    let output: Output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("Python starts");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    println!("SDK: {}", said.trim());
    // What the engines saw of one call of the SDK, which tries twice more unless it is told otherwise.
    assert_eq!(seen("die"), 2, "two engines, and the SDK was told to leave it");
    assert_eq!(seen("error"), 1);
    assert_eq!(seen("bad"), 1);
    assert_eq!(seen("full"), 6, "three times two");
    assert_eq!(alone.arrived("once").len(), 2, "refused, and sent again when the engine had said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_raises_for_every_broken_stream_and_sends_nothing_in_vain() {
    Box::pin(judge(60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_the_sdk_raises_for_ten_thousand_broken_streams() {
    Box::pin(judge(10_000)).await;
}
