//! What takes a while is done beside the threads that serve requests, which would wait for it.

use std::panic::resume_unwind;

use tokio::runtime::{Handle, RuntimeFlavor};

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

/// The same for what cannot leave its thread: others of the runtime take over what waits there.
pub(crate) fn in_place<R>(bytes: usize, read: impl FnOnce() -> R) -> R {
    let is_shared = || Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE && is_shared() { tokio::task::block_in_place(read) } else { read() }
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_cannot_leave_its_thread_keeps_nobody_waiting() {
        let tasks = crate::shutdown::Tasks::new();
        let ((tell, told), (done, ended)) = (tokio::sync::oneshot::channel(), tokio::sync::oneshot::channel());
        tasks.spawn(async move { done.send(in_place(LARGE, || told.blocking_recv())).unwrap() });
        tasks.spawn(async move { tell.send(7).unwrap() });
        assert_eq!(ended.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    #[should_panic = "on purpose"]
    async fn a_panic_is_the_callers() {
        aside(LARGE, || panic!("on purpose")).await
    }
}
