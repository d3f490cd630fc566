use serde_json::json;

use super::super::looker::{Bus, Config, Decision, Health, History, Worker};
use super::super::state::{Action, Said, Wish};
use super::*;

fn worker(id: &str, more: &serde_json::Value) -> Worker {
    let mut told = json!({
        "id": id, "model": "llama-3", "state": "up", "condition": "active", "breaker": "closed", "view": "whole",
        "in_flight": {"requests": 12, "sequences": 12, "prefill_tokens": 4096}, "max_num_seqs": 256, "index_blocks": 81_234,
        "hit_rate": 0.613, "kv_load": 0.2, "trust_weight": 1.0, "last_event_age_s": 0.042,
        "engine": {"waiting": 3.0, "kv_usage": 0.55}
    });
    told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(told).unwrap()
}

fn decision(number: u64, more: &serde_json::Value) -> Decision {
    let mut told = json!({
        "number": number, "at_ms": 1_700_000_000_000_u64 + 1000 * number, "request": format!("wp-1-{number}"),
        "worker": "gpu-a", "rank": 0, "policy": "kv", "prompt_tokens": 2048, "overlap_tokens": 1024, "cost": 0.4312,
        "unit": "share", "why": "0.12 share cheaper than gpu-b: 512 tokens more cached", "outcome": "answered",
        "ttft_ms": 87
    });
    told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(told).unwrap()
}

fn picture() -> Picture {
    let points = (0..120_u32).map(|at| {
        let at = f64::from(at);
        Point {
            requests: at,
            prompt_tokens: 100.0 * at,
            hit_rate: Some(0.5),
            first_tokens: at,
            ttft_ms: (at >= 60.0).then_some(100.0),
            requests_max_over_mean: Some(1.0 + at / 119.0),
        }
    });
    Picture {
        health: Health {
            status: "ok".to_owned(),
            ready: true,
            version: "0.1.0".to_owned(),
            off_duty: vec!["gpu-b: draining".to_owned()],
            ..Health::default()
        },
        workers: vec![
            worker("gpu-a", &json!({})),
            worker("gpu-a", &json!({"rank": 1, "kv_load": 0.95, "engine": null, "last_event_age_s": null})),
            worker(
                "gpu-b",
                &json!({"condition": "draining", "state": "down", "trust_weight": 0.42, "breaker": "trial",
                "reasons": ["events were lost"], "view": "suspect"}),
            ),
        ],
        history: History { step_ms: 5000, points: points.collect() },
        decided: 9,
        decisions: vec![
            decision(9, &json!({"outcome": "under_way", "ttft_ms": null})),
            decision(8, &json!({"outcome": "given_up", "ttft_ms": null, "worker": "gpu-b"})),
            decision(7, &json!({"rank": 1})),
        ],
        bus: Bus::default(),
        config: Config { hash: "0123456789abcdef".to_owned(), loaded_at_ms: 1_700_000_000_000, ..Config::default() },
    }
}

/// The same with what comes in over two buses, and two other routers.
fn told() -> Picture {
    let bus = json!({
        "buses": [{"kind": "nats", "up": true, "for_s": 600.0}, {"kind": "zmq_gate", "up": false, "for_s": 3.0}],
        "sources": [
            {"worker": "gpu-a", "way": "jetstream", "at": "warmpath.kv.m.gpu-a.0", "state": "connected", "for_s": 590.0,
             "events": 24_600, "events_per_s": 41.04, "last_event_age_s": 0.042, "lag_s": 0.003, "gaps": 1, "missing": 4,
             "last_error": "the subscription ended", "last_error_age_s": 590.0},
            {"worker": "gpu-b", "rank": 1, "way": "zmq", "at": "tcp://gpu-b:5557", "state": "down", "for_s": 12.0,
             "last_error": "refused", "last_error_age_s": 12.0, "held": 2},
        ],
        "replicas": {"in_flight": 14, "heard": [
            {"name": "pod-b", "config": "aaaaaaaaaaaa", "same_config": true, "ready": true, "in_flight": 9, "last_heard_s": 0.8},
            {"name": "pod-c", "config": "bbbbbbbbbbbb", "ready": true, "in_flight": 5, "last_heard_s": 12.0, "silent": true},
        ]},
    });
    Picture { bus: serde_json::from_value(bus).unwrap(), ..picture() }
}

fn live(state: &mut State, size: (u16, u16)) -> (Vec<String>, Buffer) {
    let buffer = drawn(size, |frame| draw(frame, state));
    (text(&buffer).lines().map(str::to_owned).collect(), buffer)
}

/// Whoever is to be drained has to be named.
#[test]
fn names_are_printed_whole_however_long_they_are() {
    let long = "vllm-qwen3-32b-instruct-decode-deployment-7c9d8b6f5d-00017";
    let mut picture = picture();
    picture.workers.push(worker(long, &json!({})));
    picture.decisions.push(decision(10, &json!({"worker": long, "rank": 3})));
    let all = printed(&mut State::new(picture), 120);
    assert_eq!(all.lines().filter(|line| line.contains(long)).count(), 2, "{all}");
    assert!(all.contains(&format!("{long}/3")), "{all}");
}

#[test]
fn a_terminal_of_24_lines_shows_it_all() {
    let expected = "\
warmpath 0.1.0  ok  config 01234567 since 22:13:20 UTC
gpu-b: draining
hit rate 50.0 %      first token 100 ms  requests 22.5 /s     balance 1.95
███████████████████           █████████            ▁▂▃▄▄▅▆▇█   ▁▁▂▂▃▃▃▄▄▅▅▆▆▇▇██
███████████████████           █████████  ▁▁▂▃▄▅▅▆▇██████████  ██████████████████
Workers: 2 of 3 up, row 1 of 3 ─────────────────────────────────────────────────
 worker      state    in flight queue KV use  hits  blocks  events trust breaker
>gpu-a       active      12/256     3   55 %  61 %   81234   42 ms  1.00 closed
 gpu-a/1     active      12/256     –   95 %  61 %   81234       –  1.00 closed
 gpu-b       draining    12/256     3   55 %  61 %   81234   42 ms  0.42 trial
Decisions: 9 so far, row 1 of 3 (UTC; cached of prompt tokens; first token) ────
>22:13:29 gpu-a                1024/2048   under way 0.12 share cheaper than gpu
 22:13:28 gpu-b                1024/2048    given up 0.12 share cheaper than gpu
 22:13:27 gpu-a/1              1024/2048       87 ms 0.12 share cheaper than gpu







gpu-a: llama-3, 4096 tokens to prefill, its view is whole; nothing speaks
against it
q quit  tab pane  j/k select  d drain  u undrain  e eject  r breaker  ? help";
    let mut state = State::new(picture());
    let (lines, buffer) = live(&mut state, (80, 24));
    assert_eq!(lines.join("\n"), expected);
    let color = |x, y| buffer[(x, y)].fg;
    assert_eq!((color(16, 0), color(13, 7), color(13, 9)), (Color::Green, Color::Green, Color::Yellow));
    // Trust, a breaker on trial, a cache that is full, a request that was given up.
    assert_eq!((color(68, 9), color(73, 9), color(41, 8)), (Color::Red, Color::Yellow, Color::Yellow));
    assert_eq!(color(44, 12), Color::Yellow);
    assert!(buffer[(1, 7)].modifier.contains(Modifier::REVERSED), "what is selected");
    assert!(!buffer[(1, 8)].modifier.contains(Modifier::REVERSED));
}

/// Many short prompts that hit beside a long one that does not.
#[test]
fn the_hit_rate_is_of_prompt_tokens_not_of_steps_or_requests() {
    let of = |requests, prompt_tokens, hit_rate| Point { requests, prompt_tokens, hit_rate, ..Point::default() };
    let mut told = picture();
    told.history.points = vec![of(8.0, 80.0, Some(1.0)), of(1.0, 1000.0, Some(0.0)), Point::default()];
    let all = printed(&mut State::new(told), 120);
    assert!(all.contains("\nhit rate 7.4 % "), "{all}");
}

#[test]
fn what_is_printed_has_every_worker_and_nothing_to_select() {
    let expected = "\
warmpath 0.1.0  ok  config 01234567 since 22:13:20 UTC
gpu-b: draining
hit rate 50.0 %                first token 100 ms            requests 22.5 /s               balance 1.95
█████████████████████████████                ██████████████                 ▁▁▂▂▃▄▄▅▅▆▆▇▇█    ▁▁▁▂▂▂▃▃▃▃▄▄▄▅▅▅▅▆▆▆▇▇▇▇██
█████████████████████████████                ██████████████  ▁▁▁▂▂▃▄▄▅▅▆▆▇████████████████  ████████████████████████████
Workers: 2 of 3 up ─────────────────────────────────────────────────────────────────────────────────────────────────────
worker                              state    in flight queue KV use  hits  blocks  events trust breaker model
gpu-a                               active      12/256     3   55 %  61 %   81234   42 ms  1.00 closed  llama-3
gpu-a/1                             active      12/256     –   95 %  61 %   81234       –  1.00 closed  llama-3
gpu-b                               draining    12/256     3   55 %  61 %   81234   42 ms  0.42 trial   llama-3
Decisions: 9 so far (UTC; cached of prompt tokens; first token) ────────────────────────────────────────────────────────
22:13:29 gpu-a                          1024/2048   under way 0.12 share cheaper than gpu-b: 512 tokens more cached
22:13:28 gpu-b                          1024/2048    given up 0.12 share cheaper than gpu-b: 512 tokens more cached
22:13:27 gpu-a/1                        1024/2048       87 ms 0.12 share cheaper than gpu-b: 512 tokens more cached
";
    assert_eq!(printed(&mut State::new(picture()), 120), expected);
    let mut many = picture();
    many.workers = (0..100).map(|at| worker(&format!("w{at}"), &json!({}))).collect();
    many.decisions = (0..100).rev().map(|at| decision(at, &json!({}))).collect();
    let all = printed(&mut State::new(many), 120);
    assert!((0..100).all(|at| all.contains(&format!("\nw{at} "))), "{all}");
    assert_eq!(all.matches("cheaper").count(), 20);
}

#[test]
fn event_sources_and_other_routers_are_printed_each() {
    let all = printed(&mut State::new(told()), 120);
    let (_, below) = all.split_once("gpu-b: draining\n").unwrap();
    let summary = "events 1 of 2 connected, 41.0 /s, 1 gaps  nats up 10 min  zmq gate down 3.0 s  other routers 2, 14 in \
                   flight, 1 silent\n";
    assert_eq!(&below[..summary.len()], summary);
    let (_, tables) = all.split_once("Event sources: 2 ").unwrap();
    let lines: Vec<&str> = tables.lines().skip(1).map(str::trim_end).take(7).collect();
    let expected = "\
worker                   over      state         for      /s    last     lag  gaps last error
gpu-a                    jetstream connected  10 min    41.0   42 ms    3 ms     1 the subscription ended
gpu-b/1                  zmq       down       12.0 s     0.0       –       –     0 refused
Other routers: 2 ───────────────────────────────────────────────────────────────────────────────────────────────────────
router                   state       heard in flight configuration
pod-b                    ready      800 ms         9 the same
pod-c                    silent     12.0 s         5 another: bbbbbbbb";
    assert_eq!(lines.join("\n"), expected);
    assert!(all.contains("gpu-a/1 ") && all.contains("Decisions: 9 so far"), "{all}");
}

#[test]
fn the_third_pane_has_the_sources_in_the_place_of_the_decisions() {
    let mut state = State::new(told());
    state.pane = Pane::Events;
    let (lines, buffer) = live(&mut state, (80, 24));
    let row = |name: &str| lines.iter().position(|line| line.contains(name)).unwrap();
    assert!(lines[row("Event sources: 2, row 1 of 2")].starts_with("Event sources"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("Decisions")), "{lines:?}");
    let at = u16::try_from(row("gpu-b/1")).unwrap();
    let color = |x| buffer[(x, at)].fg;
    let column = lines[usize::from(at)].chars().position(|c| c == 'd').unwrap();
    assert_eq!(color(u16::try_from(column).unwrap()), Color::Red);
    let detail = |state: &mut State| live(state, (80, 24)).0[21..23].join(" ");
    let first = "gpu-a: warmpath.kv.m.gpu-a.0, 24600 events so far, 4 batches lost in 1 gaps, 0 still to be read, 0 held \
                 back; 10 min ago: the subscription ended";
    assert_eq!(detail(&mut state).replace("  ", " "), first);
    state.sources.select(Some(1));
    assert!(detail(&mut state).starts_with("gpu-b/1: tcp://gpu-b:5557, 0 events so far"));
}

#[test]
fn a_hundred_workers_scroll_and_leave_half_to_the_decisions() {
    let mut many = picture();
    many.workers = (0..100).map(|at| worker(&format!("w{at}"), &json!({}))).collect();
    many.decisions = (0..100).rev().map(|at| decision(at, &json!({}))).collect();
    let mut state = State::new(many);
    let names = |lines: &[String]| -> Vec<String> {
        lines[7..13].iter().map(|line| line.split(' ').find(|part| !part.is_empty()).unwrap().to_owned()).collect()
    };
    let (lines, _) = live(&mut state, (80, 24));
    assert_eq!(names(&lines), [">w0", "w1", "w2", "w3", "w4", "w5"]);
    assert_eq!(lines.iter().filter(|line| line.contains("cheaper")).count(), 7);
    state.workers.select(Some(42));
    let (lines, _) = live(&mut state, (80, 24));
    assert_eq!(names(&lines), ["w37", "w38", "w39", "w40", "w41", ">w42"]);
    assert_eq!(lines[5].split(" ─").next(), Some("Workers: 100 of 100 up, row 43 of 100"));
}

#[test]
fn what_is_selected_is_explained_in_whole() {
    let mut state = State::new(picture());
    state.workers.select(Some(2));
    let detail = |state: &mut State| live(state, (80, 24)).0[21..23].join(" ");
    assert_eq!(detail(&mut state), "gpu-b: llama-3, 4096 tokens to prefill, its view is suspect; events were lost ");
    state.pane = Pane::Decisions;
    let why = "9 wp-1-9: 0.12 share cheaper than gpu-b: 512 tokens more cached (kv, cost 0.431 share)";
    assert_eq!(detail(&mut state), why);
    state.see(Picture::default());
    assert_eq!(detail(&mut state), " ");
}

#[test]
fn questions_answers_and_faults_are_seen() {
    let mut state = State::new(picture());
    let last = |state: &mut State| live(state, (80, 24)).0.pop().unwrap();
    state.asked = Some(Wish { worker: "gpu-a".to_owned(), action: Action::Eject });
    assert_eq!(last(&mut state), "Eject gpu-a? What it has not begun to answer goes to others.  y/n");
    state.asked = None;
    state.said = Some(Said { fine: true, text: "eject gpu-a: ejected".to_owned() });
    assert_eq!(last(&mut state), "eject gpu-a: ejected");
    state.fault = Some("no router answers".to_owned());
    let (lines, buffer) = live(&mut state, (80, 24));
    assert_eq!(
        lines[..3],
        ["warmpath 0.1.0  no answer  config 01234567 since 22:13:20 UTC", "no router answers", "gpu-b: draining"]
    );
    assert_eq!(buffer[(16, 0)].fg, Color::Red);
    let reload = json!({"hash": "ff", "last_reload": {"asked_by": "file", "at_ms": 0, "faults": ["a.yaml:1:2: no"]},
        "needs_restart": [{"key": "listen.data"}, {"key": "log.level"}]});
    state.see(Picture { config: serde_json::from_value(reload).unwrap(), ..picture() });
    state.picture.health.ready = false;
    assert_eq!(
        live(&mut state, (100, 24)).0[..4],
        [
            "warmpath 0.1.0  not ready  config ff since 00:00:00 UTC  last read 00:00:00 (file): not followed",
            "gpu-b: draining",
            "a.yaml:1:2: no",
            "needs a restart: listen.data, log.level"
        ]
    );
    // Where there is more than room for it, how much is told; what is printed has room.
    state.picture.health.degraded = vec!["one".to_owned(), "two".to_owned()];
    state.picture.health.queued = 7;
    let lines = live(&mut state, (120, 24)).0;
    assert!(lines[0].contains("  7 waiting for a worker  last read"), "{lines:?}");
    assert_eq!(lines[1..4], ["one", "two", "and 3 more: see /healthz, or `warmpath top --once`"]);
    let all = printed(&mut state, 120);
    assert_eq!(all.lines().nth(5), Some("needs a restart: listen.data, log.level"));
}

/// Where no worker was found, nothing is degraded and nobody is off duty.
#[test]
fn why_nobody_is_served_comes_first_and_once() {
    let why = "nobody serves `m`: no worker was found";
    let mut told = picture();
    told.health = Health { not_ready: Some(why.to_owned()), status: "ok".to_owned(), ..Health::default() };
    let first = |told: Picture| live(&mut State::new(told), (80, 24)).0;
    assert_eq!(first(told.clone())[1], why);
    told.health.degraded = vec!["the disk is full".to_owned(), why.to_owned()];
    assert_eq!(first(told)[1..3], [why, "the disk is full"]);
}

#[test]
fn help_lies_over_the_rest() {
    let mut state = State::new(picture());
    state.help = true;
    let (lines, _) = live(&mut state, (80, 24));
    assert_eq!(lines[5], "Workers: 2 of 3 up, ┌ keys ────────────────────────────────┐────────────────────");
    assert_eq!(lines[6], " worker      state  │ tab            workers, decisions, or│events trust breaker");
    assert_eq!(lines[17], "                    │ q  quit                              │");
}

#[test]
fn no_terminal_is_too_small_and_no_name_is_obeyed() {
    let mut state = State::new(picture());
    state.help = true;
    for size in [(1, 1), (3, 2), (20, 5), (80, 7), (500, 200)] {
        live(&mut state, size);
    }
    let mut hostile = picture();
    hostile.workers = vec![worker("\u{1b}[2J\u{7}宽", &json!({}))];
    let all = printed(&mut State::new(hostile), 120);
    assert!(!all.contains('\u{1b}') && !all.contains('\u{7}'), "{all:?}");
    assert!(all.contains("\n[2J宽                               active "), "{all}");
}

#[test]
fn what_needs_attention_is_printed_to_its_end() {
    let mut told = picture();
    let long = format!("worker `a` {}correct its `model`", "serves another model ".repeat(12));
    told.health.degraded = vec![long.clone(), "short".to_owned()];
    let all = printed(&mut State::new(told), 60);
    let lines: Vec<&str> = all.lines().collect();
    let begin = lines.iter().position(|line| line.starts_with("worker `a`")).unwrap();
    let end = lines.iter().position(|line| *line == "short").unwrap();
    assert!(end - begin > 3 && lines[begin + 1..end].iter().all(|line| line.starts_with("  ")), "{all}");
    let words: Vec<&str> = lines[begin..end].iter().flat_map(|line| line.split_whitespace()).collect();
    assert_eq!(words.join(" "), long);
}
