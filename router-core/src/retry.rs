//! What is done about an attempt that failed before the client had seen anything of it. After that nothing is ever tried
//! again.
//!
//! | failure | again? | where | counts against the worker |
//! |---|---|---|---|
//! | no connection | yes | elsewhere | yes |
//! | the router has no file descriptor left for one | yes | elsewhere, where one may be kept | no: it is the router's |
//! | a kept connection ended without a byte | at once, on a fresh one | the same worker | no |
//! | a connection broke | yes, within the budget | elsewhere | yes |
//! | no data in time | once | elsewhere | yes |
//! | 502, 503, 504, or a first event that is an error, but for those below | yes, within the budget | elsewhere; where nobody else is left, here after a Retry-After of up to a second | yes |
//! | 429, or a first event that says so | yes | elsewhere | no: it is a load |
//! | 401, where the router shows a key of its own | yes | elsewhere | yes: the client's key was never seen |
//! | 404 that says that the model is not there | yes | elsewhere | yes, but not where an adapter was asked for |
//! | another 4xx, whole or not, or a first event with such a code | no: it is the answer | | no: the worker is alive |
//! | 500 | no, unless it is configured: a prompt that breaks one engine breaks the next | elsewhere, within the budget | yes |
//! | an operator ejected the worker | yes | elsewhere | no |
//!
//! Inference has no side effect but its cost, so work may be done twice; what bounds that is the number of attempts, the
//! [`RetryBudget`] and the [`Suspects`]. A 429 needs no budget, since nothing was computed; but it is an attempt, since it may
//! be a sender's own limit, which every worker would tell.

use std::time::Duration;

pub use budget::RetryBudget;
pub use suspects::Suspects;

mod budget;
mod suspects;

/// The longest that a worker may ask to be waited for.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No connection: refused, not in time, or TLS failed. Nothing was sent.
    Connect,
    /// No connection, as the router had no file descriptor left for one. Nothing was sent.
    Starved,
    /// A kept connection ended before a byte of the answer came: the worker closed it while it was idle, or died.
    Stale,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// No data in time.
    Silent,
    /// The worker said that it cannot serve now (502, 503, 504), or its stream began with an error.
    Unavailable,
    /// It said that it has too much to do (429).
    TooManyRequests,
    /// It refused the key that the router showed it (401).
    Denied,
    /// It said that it does not serve the model (404).
    NotServed,
    /// It said that it failed (500).
    ServerError,
    /// An operator ejected it.
    Ejected,
}

impl Failure {
    /// The word for it in labels.
    pub fn label(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::Starved => "no_descriptors",
            Failure::Stale => "stale_connection",
            Failure::Broken => "broken",
            Failure::Silent => "first_byte_timeout",
            Failure::Unavailable => "unavailable",
            Failure::TooManyRequests => "too_many_requests",
            Failure::Denied => "denied",
            Failure::NotServed => "model_not_served",
            Failure::ServerError => "server_error",
            Failure::Ejected => "ejected",
        }
    }

    /// Whether it tells against the worker's health.
    pub fn is_fault(self) -> bool {
        !matches!(self, Failure::Starved | Failure::Stale | Failure::TooManyRequests | Failure::Ejected)
    }

    /// Whether the worker may have died of the request.
    pub fn may_be_death(self) -> bool {
        self == Failure::Broken
    }

    /// Whether it makes a death of what looked like a connection that had been closed while it was idle.
    pub fn confirms_death(self) -> bool {
        matches!(self, Failure::Connect | Failure::Broken)
    }
}

/// What may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    /// Attempts after the first.
    pub attempts: u8,
    /// Whether 500 is tried again.
    pub server_errors: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same worker, at once, on a new connection.
    Fresh,
    /// Another worker.
    Elsewhere {
        /// Whether the budget has to allow it.
        budgeted: bool,
        /// Where no other worker is left: the same one after this pause.
        or_here_after: Option<Duration>,
    },
    /// Tell the client.
    Stop,
}

/// The attempts of one request.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    rules: RetryRules,
    left: u8,
    was_silent: bool,
}

impl Course {
    /// Before the first attempt.
    pub fn new(rules: RetryRules) -> Self {
        Self { rules, left: rules.attempts, was_silent: false }
    }

    /// An attempt failed; with 503 and 429 the worker may have said when to come back.
    pub fn after(&mut self, failure: Failure, retry_after: Option<Duration>) -> Next {
        let again = match failure {
            Failure::Stale => return Next::Fresh,
            // Nothing was spent, and no worker is asked twice.
            Failure::Ejected => return Next::Elsewhere { budgeted: false, or_here_after: None },
            Failure::ServerError => self.rules.server_errors,
            Failure::Silent => !std::mem::replace(&mut self.was_silent, true),
            Failure::Connect
            | Failure::Starved
            | Failure::Broken
            | Failure::Unavailable
            | Failure::TooManyRequests
            | Failure::Denied
            | Failure::NotServed => true,
        };
        if !again || self.left == 0 {
            return Next::Stop;
        }
        self.left -= 1;
        let budgeted = matches!(failure, Failure::Broken | Failure::Unavailable | Failure::ServerError);
        let may_wait = |pause: &Duration| failure == Failure::Unavailable && *pause <= PAUSE_MAX;
        Next::Elsewhere { budgeted, or_here_after: retry_after.filter(may_wait) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: RetryRules = RetryRules { attempts: 2, server_errors: false };
    const FREE: Next = Next::Elsewhere { budgeted: false, or_here_after: None };
    const PAID: Next = Next::Elsewhere { budgeted: true, or_here_after: None };

    fn course(rules: RetryRules, failures: &[Failure]) -> Vec<Next> {
        let mut course = Course::new(rules);
        failures.iter().map(|failure| course.after(*failure, None)).collect()
    }

    #[test]
    fn each_row_of_the_table_holds() {
        use Failure::*;
        let ever = |failure| course(RULES, &[failure; 4]);
        assert_eq!(ever(Connect), [FREE, FREE, Next::Stop, Next::Stop]);
        assert_eq!(ever(Starved), [FREE, FREE, Next::Stop, Next::Stop]);
        assert_eq!(ever(Stale), [Next::Fresh; 4]);
        assert_eq!(ever(Broken), [PAID, PAID, Next::Stop, Next::Stop]);
        assert_eq!(ever(Silent), [FREE, Next::Stop, Next::Stop, Next::Stop]);
        assert_eq!(ever(Unavailable), [PAID, PAID, Next::Stop, Next::Stop]);
        assert_eq!(ever(TooManyRequests), [FREE, FREE, Next::Stop, Next::Stop]);
        assert_eq!(course(RetryRules { attempts: 0, ..RULES }, &[TooManyRequests]), [Next::Stop]);
        assert_eq!(ever(Denied), [FREE, FREE, Next::Stop, Next::Stop]);
        assert_eq!(ever(NotServed), [FREE, FREE, Next::Stop, Next::Stop]);
        assert_eq!(ever(ServerError), [Next::Stop; 4]);
        assert_eq!(ever(Ejected), [FREE; 4]);
        let with_500 = RetryRules { server_errors: true, ..RULES };
        assert_eq!(course(with_500, &[ServerError; 3]), [PAID, PAID, Next::Stop]);
        let faults = [Connect, Broken, Silent, Unavailable, Denied, NotServed, ServerError];
        assert!(faults.iter().all(|failure| failure.is_fault()));
        assert!([Starved, Stale, TooManyRequests, Ejected].iter().all(|failure| !failure.is_fault()));
        assert!(
            Broken.may_be_death() && ![Connect, Stale, Denied, NotServed].iter().any(|failure| failure.may_be_death())
        );
    }

    #[test]
    fn different_failures_share_the_attempts() {
        use Failure::*;
        assert_eq!(course(RULES, &[Denied, Unavailable, Connect]), [FREE, PAID, Next::Stop]);
        assert_eq!(course(RULES, &[Silent, Stale, Connect, Broken]), [FREE, Next::Fresh, FREE, Next::Stop]);
        assert_eq!(course(RULES, &[TooManyRequests, Silent, TooManyRequests]), [FREE, FREE, Next::Stop]);
        assert_eq!(course(RULES, &[Broken, TooManyRequests, Connect]), [PAID, FREE, Next::Stop]);
        assert_eq!(course(RetryRules { attempts: 0, ..RULES }, &[Connect, Stale]), [Next::Stop, Next::Fresh]);
    }

    #[test]
    fn only_a_short_pause_of_a_worker_that_cannot_serve_is_waited_for() {
        let after = |failure, pause| Course::new(RULES).after(failure, Some(Duration::from_millis(pause)));
        let waits = |pause| Next::Elsewhere { budgeted: true, or_here_after: Some(Duration::from_millis(pause)) };
        assert_eq!(after(Failure::Unavailable, 1_000), waits(1_000));
        assert_eq!(after(Failure::Unavailable, 1_001), PAID);
        assert_eq!(after(Failure::TooManyRequests, 10), FREE);
    }
}
