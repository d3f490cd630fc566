//! The time of an answer, as its head tells it.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use crate::wall_clock;

thread_local! {
    /// The last second that this thread was asked for, and its text.
    static LAST: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Appends the present second (RFC 9110, 5.6.7), which is written out once.
pub(super) fn write(head: &mut Vec<u8>) {
    let now = wall_clock::now().as_secs();
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now || text.is_empty() {
            (*second, *text) = (now, httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now)));
        }
        head.extend_from_slice(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn it_is_the_present_second() {
        for _ in 0..2 {
            let mut head = Vec::new();
            let before = SystemTime::now() - Duration::from_secs(1);
            write(&mut head);
            let told = httpdate::parse_http_date(std::str::from_utf8(&head).unwrap()).unwrap();
            assert!(before <= told && told <= SystemTime::now(), "{told:?}");
        }
    }
}
