//! Whether a worker answers its health check. A verdict without I/O; `app` asks and acts.

/// Failed checks in a row that take a worker out.
const FAILURES: u32 = 2;

/// What the checks of one worker have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not checked yet: it may be tried, but does not count as ready.
    #[default]
    Unknown,
    Healthy {
        failures: u32,
    },
    Unhealthy,
}

impl Health {
    /// Takes note of a check.
    pub fn checked(&mut self, passed: bool) {
        self.state = match (self.state, passed) {
            (_, true) => State::Healthy { failures: 0 },
            (State::Healthy { failures }, false) if failures + 1 < FAILURES => {
                State::Healthy { failures: failures + 1 }
            }
            (_, false) => State::Unhealthy,
        };
    }

    /// Whether requests may go there.
    pub fn is_available(&self) -> bool {
        !matches!(self.state, State::Unhealthy)
    }

    /// Whether a check has passed and not too many have failed since.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Healthy { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(checks: &[bool]) -> Health {
        let mut health = Health::default();
        checks.iter().for_each(|passed| health.checked(*passed));
        health
    }

    #[test]
    fn an_unchecked_worker_may_be_tried_but_is_not_ready() {
        assert!(after(&[]).is_available() && !after(&[]).is_ready());
    }

    #[test]
    fn one_failed_check_is_forgiven_and_a_second_is_not() {
        assert!(after(&[true, false]).is_available());
        assert!(!after(&[true, false, false]).is_available());
        assert!(after(&[true, false, true, false]).is_available());
        assert!(after(&[true, false, false, true]).is_ready());
    }

    #[test]
    fn a_worker_that_never_passed_is_out_at_once() {
        assert!(!after(&[false]).is_available());
    }
}
