//! What takes a while is done beside the threads that serve requests, which would wait for it.

use std::panic::resume_unwind;

/// From so many bytes on reading something takes about a millisecond.
const LARGE: usize = 512 << 10;

/// What `read` makes of so many bytes: at once if they are few, else by a thread that serves nobody. A panic is the caller's.
pub(crate) async fn aside<R: Send + 'static>(bytes: usize, read: impl FnOnce() -> R + Send + 'static) -> R {
    if bytes < LARGE {
        return read();
    }
    match tokio::task::spawn_blocking(read).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends, and this with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn what_is_large_is_read_by_another_thread() {
        let here = thread::current().id();
        assert_eq!(aside(LARGE - 1, || thread::current().id()).await, here);
        assert_ne!(aside(LARGE, || thread::current().id()).await, here);
    }

    #[tokio::test]
    #[should_panic = "on purpose"]
    async fn a_panic_is_the_callers() {
        aside(LARGE, || panic!("on purpose")).await
    }
}
