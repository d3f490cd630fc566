//! Whether a worker can be given requests, by its health check and by how its requests go. A verdict without I/O; `app`
//! asks, `Fleet` acts.

/// Failed checks in a row that take a worker out.
const FAILURES: u32 = 2;

/// Passed checks in a row that bring it back.
const PASSES: u32 = 2;

/// What the checks and the requests of one worker have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not checked yet: it may be tried, but does not count as ready.
    Unknown,
    Healthy {
        failures: u32,
    },
    Unhealthy {
        passes: u32,
    },
}

impl Health {
    /// A worker that was there when the router started: it may be tried before its first check, or a router that
    /// restarts would refuse what its workers could serve.
    pub fn presumed() -> Self {
        Self { state: State::Unknown }
    }

    /// A worker that has just come: it may still be loading its model, and gets requests once its checks pass.
    pub fn unproven() -> Self {
        Self { state: State::Unhealthy { passes: 0 } }
    }

    /// Takes note of a check.
    pub fn checked(&mut self, passed: bool) {
        self.state = match (self.state, passed) {
            (State::Unknown | State::Healthy { .. }, true) => State::Healthy { failures: 0 },
            (State::Unhealthy { passes }, true) if passes + 1 >= PASSES => State::Healthy { failures: 0 },
            (State::Unhealthy { passes }, true) => State::Unhealthy { passes: passes + 1 },
            (State::Healthy { failures }, false) if failures + 1 < FAILURES => {
                State::Healthy { failures: failures + 1 }
            }
            (_, false) => State::Unhealthy { passes: 0 },
        };
    }

    /// Its requests fail: it is out until its checks bring it back.
    pub fn condemn(&mut self) {
        if self.is_available() {
            self.state = State::Unhealthy { passes: 0 };
        }
    }

    /// Whether requests may go there.
    pub fn is_available(&self) -> bool {
        !matches!(self.state, State::Unhealthy { .. })
    }

    /// Whether a check has passed and not too many have failed since.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Healthy { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut health: Health, checks: &[bool]) -> Health {
        checks.iter().for_each(|passed| health.checked(*passed));
        health
    }

    fn presumed(checks: &[bool]) -> Health {
        after(Health::presumed(), checks)
    }

    #[test]
    fn an_unchecked_worker_may_be_tried_but_is_not_ready() {
        assert!(presumed(&[]).is_available() && !presumed(&[]).is_ready());
        assert!(presumed(&[true]).is_ready());
    }

    #[test]
    fn one_failed_check_is_forgiven_and_a_second_is_not() {
        assert!(presumed(&[true, false]).is_available());
        assert!(!presumed(&[true, false, false]).is_available());
        assert!(presumed(&[true, false, true, false]).is_available());
    }

    #[test]
    fn a_worker_that_never_passed_is_out_at_once() {
        assert!(!presumed(&[false]).is_available());
    }

    #[test]
    fn a_worker_that_was_out_comes_back_after_two_passed_checks_in_a_row() {
        assert!(!presumed(&[true, false, false, true]).is_available());
        assert!(presumed(&[true, false, false, true, true]).is_ready());
        assert!(!presumed(&[false, true, false, true]).is_available());
        assert!(presumed(&[false, true, false, true, true]).is_ready());
    }

    #[test]
    fn a_worker_that_has_just_come_is_tried_after_two_passed_checks() {
        assert!(!after(Health::unproven(), &[true]).is_available());
        assert!(after(Health::unproven(), &[true, true]).is_ready());
    }

    #[test]
    fn a_worker_whose_requests_fail_is_out_until_two_checks_pass() {
        let mut health = presumed(&[true]);
        health.condemn();
        assert!(!health.is_available());
        health.checked(true);
        // A failure that was under way before is no news.
        health.condemn();
        health.checked(true);
        assert!(health.is_ready());
    }
}
