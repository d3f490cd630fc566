//! What is said of a panic: where it was, in one line. Its message only where it is written in the source, for one that was
//! put together may hold a prompt or a key. A simulation has neither.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};

/// From now on a panic is one log line, or one on standard error where nothing is logged, instead of a message and a trace.
pub fn say_briefly() {
    panic::set_hook(Box::new(say));
}

/// From now on a panic is told with its message, whatever that was put together from: for commands that see no prompt and no
/// key.
pub fn say_wholly() {
    panic::set_hook(Box::new(|info| {
        let at = info.location().map_or_else(|| "nowhere known".to_owned(), ToString::to_string);
        let message = info.payload_as_str().unwrap_or("no message");
        // A panic that cannot be told is still one.
        let _ = writeln!(io::stderr(), "warmpath: panic at {at}: {message}");
    }));
}

fn say(info: &PanicHookInfo<'_>) {
    let at = info.location().map_or_else(|| "nowhere known".to_owned(), ToString::to_string);
    let message = harmless(info.payload());
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or_default();
    if tracing::dispatcher::has_been_set() {
        tracing::error!(at, message, thread, "panic");
    } else {
        // A panic that cannot be told is still one.
        let _ = writeln!(io::stderr(), "warmpath: panic at {at}: {message}");
    }
}

/// The message, if it is a constant.
fn harmless(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(not told, for it may hold data)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r34_only_a_constant_message_of_a_panic_is_told() {
        let prompt = "my secret";
        let payload = |panics: fn(&str)| panic::catch_unwind(|| panics(prompt)).unwrap_err();
        assert_eq!(harmless(&*payload(|_| panic!("the lock is gone"))), "the lock is gone");
        let told = [
            payload(|prompt| panic!("what is {prompt}?")),
            payload(|prompt| assert_eq!(prompt, "another")),
            payload(|prompt| panic::panic_any(prompt.to_owned())),
        ];
        assert!(told.iter().all(|payload| !harmless(&**payload).contains("secret")));
    }
}
