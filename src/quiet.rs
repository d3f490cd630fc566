//! Wakers that can be kept from waking their task for nothing.
//!
//! hyper wakes a connection's task for every piece of a body that is taken from it, even the last one, and even where the
//! task takes it itself. A task that is woken while it runs is run again, with every request for nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

thread_local! {
    /// Whether a waker was called since [`quietly`] began on this thread; none outside of it.
    static CALLED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// A task's waker that [`quietly`] can mute.
struct Mutable(Waker);

impl Wake for Mutable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match CALLED.get() {
            Some(_) => CALLED.set(Some(true)),
            None => self.0.wake_by_ref(),
        }
    }
}

/// The waker of one task, in a form that can be muted.
#[derive(Default)]
pub(crate) struct Bell(Option<(Waker, Waker)>);

impl Bell {
    /// Wakes as `task` does, unless it is called by what runs [`quietly`].
    pub(crate) fn of(&mut self, task: &Waker) -> &Waker {
        let made = self.0.take().filter(|(known, _)| known.will_wake(task));
        let made = made.unwrap_or_else(|| (task.clone(), Arc::new(Mutable(task.clone())).into()));
        &self.0.insert(made).1
    }
}

/// Runs `act`, and says whether it has called wakers that can be muted: they wake nobody. Who calls this sees to it that
/// whoever has something to do is polled or woken nevertheless. Other threads' calls are heard.
pub(crate) fn quietly<T>(act: impl FnOnce() -> T) -> (T, bool) {
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            CALLED.set(None);
        }
    }
    let _until = Until;
    CALLED.set(Some(false));
    let done = act();
    (done, CALLED.get().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_what_is_called_quietly_and_on_this_thread_is_not_heard() {
        let count = Arc::new(Count::default());
        let heard = || count.0.load(Ordering::Relaxed);
        let mut bell = Bell::default();
        let waker = bell.of(&Arc::clone(&count).into()).clone();
        assert_eq!(quietly(|| 7), (7, false));
        assert_eq!((quietly(|| waker.wake_by_ref()), heard()), (((), true), 0));
        waker.wake_by_ref();
        assert_eq!(heard(), 1);
        let (_, called) = quietly(|| std::thread::scope(|scope| scope.spawn(|| waker.wake_by_ref()).join().unwrap()));
        assert_eq!((called, heard()), (false, 2));
        let panics = std::panic::catch_unwind(|| quietly(|| panic!("on purpose")));
        assert!(panics.is_err());
        waker.wake();
        assert_eq!(heard(), 3);
    }
}
