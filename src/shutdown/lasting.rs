//! Work that outlives its panics.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use metrics::Counter;
use tokio::time::{Instant, sleep};

/// Pauses before work begins again: a fault that comes once costs next to nothing, one that stays does not fill the log.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Work that went well for so long pauses briefly again.
const GOOD: Duration = Duration::from_secs(30);

/// Work that can be begun again on whatever a panic has left of it.
pub trait Lasting: Send {
    /// Works until it is done. After a panic it is called again.
    fn work(&mut self) -> impl Future<Output = ()> + Send;
}

impl<F, W> Lasting for W
where
    W: FnMut() -> F + Send,
    F: Future<Output = ()> + Send,
{
    fn work(&mut self) -> impl Future<Output = ()> + Send {
        self()
    }
}

/// What sort of work it is, and how often it had to begin again.
#[derive(Clone)]
pub struct Restarts {
    task: &'static str,
    counter: Counter,
}

impl Restarts {
    /// Counted by `counter`; logs call it `task`.
    pub fn new(task: &'static str, counter: Counter) -> Self {
        Self { task, counter }
    }

    /// Does all of `work`. A panic in it is counted, and it begins again within a second.
    pub async fn outlive(&self, work: &mut impl Lasting) {
        let mut pause = PAUSE_MIN;
        loop {
            let began = Instant::now();
            // What it shares with others stands behind locks that outlive a panic; of its own it makes the best.
            if AssertUnwindSafe(async { work.work().await }).catch_unwind().await.is_ok() {
                return;
            }
            if began.elapsed() >= GOOD {
                pause = PAUSE_MIN;
            }
            self.counter.increment(1);
            tracing::error!(task = self.task, ?pause, "a task panicked and begins again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::shutdown::Tasks;

    fn restarts() -> (Restarts, Arc<AtomicU64>) {
        let count = Arc::<AtomicU64>::default();
        (Restarts::new("test", Counter::from_arc(Arc::clone(&count))), count)
    }

    #[tokio::test(start_paused = true)]
    async fn r34_work_that_panics_begins_again_within_a_second_however_often() {
        let (restarts, count) = restarts();
        let mut begun = Vec::new();
        let mut panics = || {
            begun.push(Instant::now());
            let is_over = begun.len() > 20;
            async move {
                if is_over {
                } else {
                    panic!("on purpose")
                }
            }
        };
        restarts.outlive(&mut panics).await;
        assert_eq!(count.load(Ordering::Relaxed), 20);
        let pauses: Vec<Duration> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.iter().all(|pause| (PAUSE_MIN..Duration::from_secs(1)).contains(pause)), "{pauses:?}");
        assert!(pauses[10] >= PAUSE_MAX, "a fault that stays is not tried a hundred times a second: {pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_good_while_the_pause_is_short_again() {
        let (restarts, _) = restarts();
        let mut begun = Vec::new();
        let mut panics = || {
            begun.push(Instant::now());
            let number = begun.len();
            async move {
                if number == 10 {
                    sleep(GOOD).await;
                }
                assert!(number > 10, "on purpose");
            }
        };
        restarts.outlive(&mut panics).await;
        let pause = begun[10] - begun[9] - GOOD;
        assert!((PAUSE_MIN..2 * PAUSE_MIN).contains(&pause), "{pause:?}");
    }

    /// Its neighbours are not ended, and draining ends it like any other.
    #[tokio::test(start_paused = true)]
    async fn r34_a_task_that_panics_harms_no_other() {
        let (restarts, count) = restarts();
        let tasks = Tasks::new();
        let beats = Arc::<AtomicU64>::default();
        let beating = Arc::clone(&beats);
        tasks.supervise(restarts.clone(), move || {
            let beats = Arc::clone(&beating);
            async move {
                loop {
                    sleep(Duration::from_secs(1)).await;
                    beats.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        tasks.supervise(restarts, || async { panic!("on purpose") });
        sleep(Duration::from_millis(60_500)).await;
        assert_eq!(beats.load(Ordering::Relaxed), 60);
        assert!(count.load(Ordering::Relaxed) > 60);
        assert_eq!((tasks.len(), tasks.drain(Duration::ZERO).await), (2, 2));
    }
}
