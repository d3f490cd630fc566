//! What a thread comes to too late.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::fleet::fleet;
use crate::retries::{good, read, send};
use crate::scripted::event;

/// A task that takes the thread for so long, time and again.
async fn hog(for_so_long: Duration) {
    poll_fn::<(), _>(|cx| {
        let begin = Instant::now();
        while begin.elapsed() < for_so_long {
            std::hint::spin_loop();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A request goes behind what else its thread has to do before it is sent. What is too late by then is not begun.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test aborts single tasks")]
async fn what_became_too_late_behind_others_reaches_no_worker() {
    let worker = good().await;
    let fleet = fleet().engines(0).stranger(worker.address).config("timeouts: {health_interval: 1h}").start().await;
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    let hog = tokio::spawn(hog(Duration::from_millis(6)));
    let request = fleet.client.post(fleet.url("/v1/completions")).header("x-request-timeout-ms", "5");
    let answer = request.body(r#"{"model": "m", "prompt": "late"}"#).send().await.expect("the gateway answers");
    assert_eq!(answer.status(), 504);
    hog.abort();
    // Its connection was not touched, and serves the next one.
    assert_eq!(read(send(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(worker.seen().len(), 2);
    assert_eq!(fleet.app.in_flight(), 0);
}
