//! What is ready at once is looked at first, and written then.
//!
//! Whoever waits at the other end of a connection is woken by what is written, and where its core sleeps, too, that takes
//! longer than the rest of the write: some 5 µs in a virtual machine, half of what nginx takes for a request. A proxy that
//! writes as soon as it can wakes its reader for each, since that has gone back to sleep while the next is looked at.
//! Here the requests and answers that a thread finds ready together are written one right after the other, and most of them
//! find the reader awake.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

thread_local! {
    /// Counts the times that this thread had nothing more to do.
    static TURN: Cell<u64> = const { Cell::new(0) };
    /// The turn in which something was written last.
    static WRITTEN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Told by a thread of the runtime that has run all that was ready.
pub(crate) fn ended() {
    TURN.set(TURN.get().wrapping_add(1));
}

/// Waits until this thread has run what else is ready, unless it is the first to write in this turn: its reader can begin
/// meanwhile, and who is alone waits for nobody.
pub(crate) async fn behind_others() {
    let turn = Some(TURN.get());
    if WRITTEN.replace(turn) != turn {
        return;
    }
    let mut is_behind = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        // Woken while it runs, a task goes to the end of the queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{JoinSet, LocalSet};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().on_thread_park(ended).enable_time().build().unwrap()
    }

    /// What so many do that are ready at once.
    async fn turn_of(count: usize) -> Vec<(usize, &'static str)> {
        let told = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let told = Rc::clone(&told);
            tasks.spawn_local(async move {
                told.borrow_mut().push((number, "looked"));
                behind_others().await;
                told.borrow_mut().push((number, "wrote"));
            });
        }
        while tasks.join_next().await.is_some() {}
        Rc::try_unwrap(told).unwrap().into_inner()
    }

    #[test]
    fn the_first_writes_at_once_and_the_others_when_all_were_looked_at() {
        let (looked, wrote) = (|number| (number, "looked"), |number| (number, "wrote"));
        let expected = [looked(0), wrote(0), looked(1), looked(2), looked(3), wrote(1), wrote(2), wrote(3)];
        let runtime = runtime();
        for _ in 0..3 {
            assert_eq!(LocalSet::new().block_on(&runtime, turn_of(4)), expected);
            // The thread has nothing to do for a while.
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
        }
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let runtime = runtime();
        runtime.block_on(async {
            for _ in 0..3 {
                assert!(behind_others().now_or_never().is_some());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
}
