//! R8: a stream that is cut after every number of bytes, in every manner, on new and on kept connections. What the router
//! makes of it goes by the table of `warmpath_core::retry` alone.

use std::collections::BTreeMap;

use crate::chaos::{Saw, ask, before};
use crate::chaos_proxy::{ChaosProxy, CutAt, MANNERS, Manner};
use crate::faulty::{Act, Faulty, stream};
use crate::fleet::{TestFleet, fleet};

/// What the router may do with a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// The same worker is asked again.
    Again,
    /// The other one answers.
    Elsewhere,
    /// The client is told.
    Told,
    /// Nothing was missing.
    Whole,
}

struct World {
    fleet: TestFleet,
    proxy: ChaosProxy,
    first: Faulty,
    second: Faulty,
}

impl World {
    /// Two workers, the first behind a proxy and always asked first; kept connections are used or not.
    async fn new(kept: bool) -> Self {
        let (first, second) = (Faulty::start(|_, _| stream(1)).await, Faulty::start(|_, _| stream(1)).await);
        let proxy = ChaosProxy::start(first.address, None).await;
        let idle = if kept { "4s" } else { "1ms" };
        let settings = format!("timeouts: {{worker_idle: {idle}}}\nhealth: {{request_failures: 1000000}}");
        let fleet = fleet().engines(0).policy("least_requests").stranger(proxy.address).stranger(second.address);
        let fleet = fleet.config(&settings).start().await;
        Self { fleet, proxy, first, second }
    }

    /// What becomes of a stream that is cut so.
    async fn class(&self, cut: CutAt) -> Class {
        let url = self.fleet.url("/v1/completions");
        // Leaves a connection behind, where they are kept; and shows that the last cut has left nothing.
        assert_eq!(ask(&self.fleet.client, &url, "warm").await, Saw::Whole);
        if self.fleet.app.in_flight() > 0 {
            self.fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let (first, second) = (self.first.count(), self.second.count());
        self.proxy.cut_next(cut);
        // A prompt of its own, so that no request becomes a suspect.
        let saw = ask(&self.fleet.client, &url, &format!("{cut:?}")).await;
        let sent = (self.first.count() - first, self.second.count() - second);
        // A request that is cut before its answer does not come through the proxy.
        match (saw, sent) {
            (Saw::Whole, (1, 0)) if cut.bytes == 0 => Class::Again,
            (Saw::Whole, (1, 0)) => Class::Whole,
            (Saw::Whole, (_, 1)) => Class::Elsewhere,
            (Saw::Broken, (1, 0)) => Class::Told,
            odd => panic!("{cut:?}: {odd:?}"),
        }
    }
}

/// Where things lie in the answer: the end of the first event's line, of `[DONE]`, which needs no line's end, and of all.
fn places() -> (usize, usize, usize) {
    let bytes: Vec<u8> = stream(1)
        .into_iter()
        .flat_map(|act| match act {
            Act::Send(bytes) => bytes,
            other => unreachable!("{other:?} is no part of a stream"),
        })
        .collect();
    let text = String::from_utf8(bytes).unwrap();
    let after = |start: usize, what: &str| start + text[start..].find(what).unwrap() + what.len();
    let event = after(after(0, "data: "), "\n");
    let done = after(event, "[DONE]");
    (event, done, text.len())
}

fn expected(bytes: usize, kept: bool) -> Class {
    let (event, done, _) = places();
    match bytes {
        0 if kept => Class::Again,
        bytes if bytes < event => Class::Elsewhere,
        bytes if bytes < done => Class::Told,
        _ => Class::Whole,
    }
}

async fn every_cut(stride: usize) {
    let (event, done, len) = places();
    let mut counts: BTreeMap<Class, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for kept in [false, true] {
        let world = World::new(kept).await;
        let bound = |at: usize| [at - 1, at, at + 1];
        let edges = [vec![0, 1, len - 1, len], bound(event).to_vec(), bound(done).to_vec()].concat();
        let at: std::collections::BTreeSet<usize> = (0..=len).step_by(stride).chain(edges).collect();
        for manner in MANNERS {
            for bytes in &at {
                let class = world.class(CutAt { bytes: *bytes, manner }).await;
                *counts.entry(class).or_default() += 1;
                if class != expected(*bytes, kept) {
                    wrong.push((kept, manner, *bytes, class));
                }
            }
        }
    }
    println!("R8: {counts:?}, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[tokio::test]
async fn r8_a_cut_is_what_its_place_makes_it() {
    Box::pin(every_cut(37)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r8_every_offset_in_every_manner() {
    Box::pin(every_cut(1)).await;
}

/// A kept connection that ends without a byte says nothing of the worker; a new one does.
#[tokio::test]
async fn only_new_connections_that_end_are_faults() {
    for (kept, up) in [(true, true), (false, false)] {
        let (first, second) = (Faulty::start(|_, _| stream(1)).await, Faulty::start(|_, _| stream(1)).await);
        let proxy = ChaosProxy::start(first.address, None).await;
        let settings = format!(
            "timeouts: {{worker_idle: {}, health_interval: 1h}}\nhealth: {{request_failures: 3}}",
            if kept { "4s" } else { "1ms" }
        );
        let fleet = fleet().engines(0).policy("least_requests").stranger(proxy.address).stranger(second.address);
        let fleet = fleet.config(&settings).start().await;
        let url = fleet.url("/v1/completions");
        for _ in 0..3 {
            assert_eq!(ask(&fleet.client, &url, "warm").await, Saw::Whole);
            fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            proxy.cut_next(CutAt { bytes: 0, manner: Manner::Reset });
            assert_eq!(ask(&fleet.client, &url, "cut").await, Saw::Whole);
            fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
            if kept {
                continue;
            }
            // An answer would clear the strikes.
            break;
        }
        if !kept {
            for number in 0..2 {
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
                proxy.cut_next(CutAt { bytes: 0, manner: Manner::Reset });
                assert_eq!(ask(&fleet.client, &url, &format!("cut-{number}")).await, Saw::Whole);
            }
        }
        assert_eq!(fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5, up, "kept: {kept}");
    }
}

/// The worker answers before it has the whole request; what follows must not wait for its connection.
#[tokio::test]
async fn an_early_answer_to_a_long_request_delays_nobody() {
    let early = |_: &str, _| crate::faulty::refusal("400 Bad Request", "");
    let worker = Faulty::start(early).await;
    let fleet = before(&[&worker]).start().await;
    let long = format!("{{\"model\": \"m\", \"prompt\": \"{}\"}}", "x".repeat(1 << 20));
    for _ in 0..5 {
        let start = std::time::Instant::now();
        assert_eq!(fleet.post_bytes("/v1/completions", long.clone().into_bytes()).await.status, 400);
        assert!(start.elapsed() < std::time::Duration::from_secs(2));
    }
}
