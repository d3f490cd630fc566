//! Requests of which workers die: they are known again, and sent to nobody once two have.

use serde_json::json;

use crate::breaker::{asked, header};
use crate::chaos::{Saw, ask, before};
use crate::faulty::{Act, Faulty, beginning, stream};
use crate::fleet::fleet;
use crate::retries::send;

/// R35: a prompt that kills every engine that computes it. Engines come back at once, as under a supervisor.
#[tokio::test]
async fn r35_a_prompt_that_kills_engines_kills_two() {
    let mortal = || Faulty::start(|prompt, _| if prompt == "die" { vec![Act::Reset] } else { stream(1) });
    let engines = [mortal().await, mortal().await, mortal().await, mortal().await];
    let fleet = before(&engines.iter().collect::<Vec<_>>()).start().await;
    let kills = || engines.iter().map(|engine| engine.arrived("die").len()).sum::<usize>();
    let touched = || engines.iter().filter(|engine| !engine.arrived("die").is_empty()).count();
    for number in 0..10 {
        let answer = asked(&fleet, "die").await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (502, &json!("request_suspect")), "{number}");
        assert_eq!(header(&answer, "x-should-retry").as_deref(), Some("false"));
        assert_eq!(ask(&fleet.client, &fleet.url("/v1/completions"), &format!("fine-{number}")).await, Saw::Whole);
    }
    println!("R35: {} kills of {} engines by ten requests", kills(), touched());
    assert_eq!((kills(), touched()), (2, 2));
    assert_eq!(fleet.metric("warmpath_requests_total", "outcome=\"suspect\"").await, 10.0);
}

/// R35: those that were let in before two were killed are not sent to the next one that has room.
#[tokio::test]
async fn r35_a_prompt_that_killed_two_engines_while_it_waited_is_not_sent() {
    let engine = || {
        let holds =
            |prompt: &str, _| if prompt == "die" { vec![Act::Hold] } else { [beginning(1), vec![Act::Hold]].concat() };
        Faulty::start(holds)
    };
    let engines = [engine().await, engine().await, engine().await];
    let fleet = fleet().engines(0).policy("least_requests").tokenizer("null");
    let one_at_once = "events: none, max_num_seqs: 1";
    let fleet = engines.iter().fold(fleet, |fleet, engine| fleet.stranger_with(engine.address, one_at_once));
    let fleet = fleet.config("timeouts: {health_interval: 1h}").start().await;
    let busy = send(&fleet).await;
    let dies = || async { asked(&fleet, "die").await.body["error"]["code"].as_str().unwrap().to_owned() };
    let killing = async {
        for (engine, name) in [(&engines[1], "stranger-2"), (&engines[2], "stranger-3")] {
            fleet.eventually("it has the prompt", async |_| engine.count() == 1).await;
            assert_eq!(fleet.operate(name, "drain").await.0, 200);
        }
        fleet.until_metric("warmpath_queue_length", "class=\"normal\"", 2.0).await;
        engines[1].kill().await;
        engines[2].kill().await;
        fleet.until_metric("warmpath_requests_total", "outcome=\"suspect\"", 1.0).await;
        drop(busy);
    };
    let (first, second, third, fourth, ()) = tokio::join!(dies(), dies(), dies(), dies(), killing);
    assert_eq!([first, second, third, fourth], ["request_suspect"; 4]);
    assert_eq!(engines[0].arrived("die").len(), 0);
}

/// R35: it may kill them in mid-stream as well.
#[tokio::test]
async fn r35_a_prompt_that_breaks_two_streams_is_sent_to_nobody_else() {
    let mortal = || {
        Faulty::start(|prompt, _| if prompt == "die" { [beginning(2), vec![Act::Reset]].concat() } else { stream(1) })
    };
    let engines = [mortal().await, mortal().await, mortal().await];
    let fleet = before(&engines.iter().collect::<Vec<_>>())
        .config("routing: {policy: round_robin, fallback: round_robin}")
        .start()
        .await;
    let url = fleet.url("/v1/completions");
    let mut saw = Vec::new();
    for _ in 0..4 {
        saw.push(ask(&fleet.client, &url, "die").await);
    }
    assert_eq!(saw, [Saw::Broken, Saw::Broken, Saw::Refused(502), Saw::Refused(502)]);
    assert_eq!(ask(&fleet.client, &url, "fine").await, Saw::Whole);
}

/// Both break once; whoever asks again is answered, so that the request is no suspect.
#[tokio::test]
async fn an_answer_clears_a_request_that_was_there_when_workers_broke() {
    let once = |first: usize| {
        Faulty::start(
            move |_, number| if number == first { [beginning(1), vec![Act::Reset]].concat() } else { stream(1) },
        )
    };
    let engines = [once(0).await, once(1).await];
    let fleet = before(&[&engines[0], &engines[1]])
        .config("routing: {policy: round_robin, fallback: round_robin}")
        .start()
        .await;
    let url = fleet.url("/v1/completions");
    let mut saw = Vec::new();
    for _ in 0..6 {
        saw.push(ask(&fleet.client, &url, "same").await);
    }
    assert_eq!(saw, [Saw::Broken, Saw::Whole, Saw::Whole, Saw::Broken, Saw::Whole, Saw::Whole]);
}
