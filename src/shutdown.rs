//! Tasks that shutdown knows of.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use lasting::{Lasting, Restarts};

mod lasting;

/// The only way to start a task: what starts here is waited for, and cancelled if it does not end by itself.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Who also waits for these tasks, and cancels them.
    parent: Option<TaskTracker>,
    cancel: CancellationToken,
    over: Arc<Over>,
}

/// Whether tasks are cancelled, to be read at no cost: asking the token takes two locks that all tasks share.
#[derive(Debug, Default)]
struct Over {
    cancelled: AtomicBool,
    whole: Option<Arc<Over>>,
}

impl Over {
    fn is_it(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.whole.as_ref().is_some_and(|whole| whole.is_it())
    }
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task. It ends when `task` does, or when the grace of [`Tasks::drain`] is over.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (cancel, over) = (self.cancel.clone(), Arc::clone(&self.over));
        let task = async move {
            let (mut task, mut cancelled) = (pin!(task), pin!(cancel.cancelled()));
            let mut waits: Option<Waker> = None;
            poll_fn(|cx| {
                if task.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let is_told = waits.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                if is_told && !over.is_it() {
                    return Poll::Pending;
                }
                waits = Some(cx.waker().clone());
                cancelled.as_mut().poll(cx)
            })
            .await;
        };
        match &self.parent {
            Some(parent) => parent.spawn(self.tracker.track_future(task)),
            None => self.tracker.spawn(task),
        };
    }

    /// Starts a task that begins again where it panics. Otherwise as [`Tasks::spawn`].
    pub fn supervise(&self, restarts: Restarts, mut work: impl Lasting + 'static) {
        self.spawn(async move { restarts.outlive(&mut work).await });
    }

    /// A part of these tasks that can be drained by itself; draining the whole ends it, too.
    pub fn part(&self) -> Self {
        Self {
            tracker: TaskTracker::new(),
            parent: Some(self.tracker.clone()),
            cancel: self.cancel.child_token(),
            over: Arc::new(Over { cancelled: AtomicBool::new(false), whole: Some(Arc::clone(&self.over)) }),
        }
    }

    /// Ends all of them, without waiting.
    pub fn cancel(&self) {
        self.over.cancelled.store(true, Ordering::Release);
        self.cancel.cancel();
    }

    /// How many tasks are alive.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no task is alive.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Nothing new is waited for; what runs may finish within `grace`; the rest is cancelled. Returns how many were.
    pub async fn drain(&self, grace: Duration) -> usize {
        self.tracker.close();
        if timeout(grace, self.tracker.wait()).await.is_ok() {
            return 0;
        }
        let cancelled = self.tracker.len();
        self.cancel();
        self.tracker.wait().await;
        cancelled
    }
}

/// SIGINT and SIGTERM. As soon as this is there, neither ends the process by itself, and none is lost: to be made before
/// anybody is told that the process serves.
#[derive(Debug)]
pub struct Interrupts([Option<Signal>; 2]);

impl Interrupts {
    /// Listens from now on, in a runtime. A signal that cannot be had ends the process, as ever.
    pub fn new() -> Self {
        Self([SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).ok()))
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            () = comes(interrupt) => {}
            () = comes(terminate) => {}
        }
    }
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

async fn comes(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a supervisor does that is in a hurry: nobody waits yet, or nobody waits any more.
    #[tokio::test]
    async fn a_signal_that_comes_before_it_is_waited_for_is_not_lost() {
        let mut interrupts = Interrupts::new();
        for _ in 0..2 {
            let sent = std::process::Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
            assert!(sent.unwrap().success());
            timeout(Duration::from_secs(10), interrupts.next()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_not_cancelled_and_the_rest_is() {
        let tasks = Tasks::new();
        tasks.spawn(tokio::time::sleep(Duration::from_secs(1)));
        tasks.spawn(std::future::pending());
        assert_eq!(tasks.drain(Duration::from_secs(2)).await, 1);
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_ends_by_itself_and_with_the_whole() {
        let tasks = Tasks::new();
        let (first, second) = (tasks.part(), tasks.part());
        for part in [&first, &second] {
            part.spawn(std::future::pending());
        }
        assert_eq!((tasks.len(), first.drain(Duration::ZERO).await), (2, 1));
        assert_eq!((tasks.len(), second.len()), (1, 1));
        assert_eq!(tasks.drain(Duration::ZERO).await, 1);
        assert!(second.is_empty());
    }
}
