//! Where long texts are worked on: a few threads at a time, a queue with an end, and a bound on waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::Reason;
use crate::alarm::in_time;

/// The threads that all models of a gateway share.
pub(super) struct Pool {
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait: Duration,
}

/// One that waits for its turn.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// A pool of `jobs` jobs at a time, before which at most `waiting_max` wait, each for `wait`, its work included.
    pub(super) fn new(jobs: usize, waiting_max: usize, wait: Duration) -> Self {
        Self { turns: Arc::new(Semaphore::new(jobs)), waiting: AtomicUsize::new(0), waiting_max, wait }
    }

    /// Runs a job on a thread for blocking work. The job is told whether anybody still waits for it, and should look at that
    /// every few milliseconds. Its turn ends when it does, not when the request leaves: a client that hangs up does not
    /// make room for another job before this one has ended.
    ///
    /// # Errors
    /// [`Reason::TokenizerBusy`] if too many wait already or the time is over, [`Reason::TokenizerError`] if it panics.
    pub(super) async fn run<T, F>(&self, job: F) -> Result<T, Reason>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    {
        let until = Instant::now() + self.wait;
        let turn = match Arc::clone(&self.turns).try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let _waiting = self.queue().ok_or(Reason::TokenizerBusy)?;
                let turn = in_time(until, Arc::clone(&self.turns).acquire_owned()).await;
                turn.and_then(Result::ok).ok_or(Reason::TokenizerBusy)?
            }
        };
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let result = job(&|| !sender.is_closed());
            // Nobody waits any more.
            let _ = sender.send(result);
        });
        let done = in_time(until, receiver).await.ok_or(Reason::TokenizerBusy)?;
        done.map_err(|_| Reason::TokenizerError)
    }

    fn queue(&self) -> Option<Waiting<'_>> {
        let waiting = Waiting(&self.waiting);
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        (before < self.waiting_max).then_some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    type Job = Box<dyn FnOnce(&dyn Fn() -> bool) -> bool + Send>;

    /// A job that says when it has begun, and waits until it may end; it tells whether it was awaited then.
    fn gated() -> (Job, Receiver<()>, SyncSender<()>) {
        let (begun, has_begun) = sync_channel(1);
        let (go, go_on) = sync_channel::<()>(1);
        let job = move |awaited: &dyn Fn() -> bool| {
            begun.send(()).expect("the test listens");
            go_on.recv().expect("the test sends");
            awaited()
        };
        (Box::new(job), has_begun, go)
    }

    #[tokio::test]
    async fn a_full_pool_is_waited_for_and_a_full_queue_is_not() {
        let pool = Pool::new(1, 1, Duration::from_secs(60));
        let (job, has_begun, go) = gated();
        let others = async {
            tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();
            let after_both = async {
                assert_eq!(pool.run(|_| 3).await, Err(Reason::TokenizerBusy));
                go.send(()).unwrap();
            };
            tokio::join!(pool.run(|_| 2), after_both).0
        };
        let (first, second) = tokio::join!(pool.run(job), others);
        assert_eq!((first, second), (Ok(true), Ok(2)));
        assert_eq!(pool.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn the_wait_has_an_end_and_the_work_is_part_of_it() {
        let pool = Pool::new(1, 1, Duration::from_millis(5));
        let (job, has_begun, go) = gated();
        let others = async {
            tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();
            pool.run(|_| 2).await
        };
        let (first, second) = tokio::join!(pool.run(job), others);
        assert_eq!((first, second), (Err(Reason::TokenizerBusy), Err(Reason::TokenizerBusy)));
        go.send(()).unwrap();
    }

    #[tokio::test]
    async fn a_job_hears_whether_it_is_awaited_and_a_panic_is_an_error() {
        let pool = Pool::new(1, 1, Duration::from_secs(60));
        assert_eq!(pool.run(|awaited| awaited()).await, Ok(true));
        let (job, has_begun, go) = gated();
        let seen = Arc::new(std::sync::Mutex::new(None));
        let told = Arc::clone(&seen);
        {
            let run = pool.run(move |awaited| *told.lock().unwrap() = Some(job(awaited)));
            tokio::pin!(run);
            let begun = tokio::task::spawn_blocking(move || has_begun.recv());
            tokio::select! {
                _ = &mut run => unreachable!("the job waits for the test"),
                begun = begun => begun.unwrap().unwrap(),
            }
        }
        go.send(()).unwrap();
        let _turn = pool.turns.acquire().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(false));
        drop(_turn);
        assert_eq!(pool.run(|_| panic!("broken")).await, Err::<(), _>(Reason::TokenizerError));
    }
}
