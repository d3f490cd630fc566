//! Whether a worker can be given requests, by its health check and by how its requests go. A verdict without I/O; `app`
//! asks, `Fleet` acts.
//!
//! One breaker for both. It opens by failed checks or by requests that fail in a row, and closes by passed checks only.
//! Whom requests have taken out is on trial afterwards: one more fault before an answer takes it out again, and each such
//! relapse doubles the checks that it has to pass.

use std::time::{Duration, Instant};

/// Failed checks in a row that take a worker out.
const FAILURES: u32 = 2;

/// Passed checks in a row that bring it back.
const PASSES: u32 = 2;

/// The most of these, after relapses.
const PASSES_MAX: u32 = 16;

/// How workers are taken out and brought back.
#[derive(Clone, Copy, Debug)]
pub struct Conduct {
    /// Requests in a row that fail through a worker's fault before it is taken out.
    pub strikes_max: u32,
    /// How long a worker that came back is given less than it could take.
    pub ramp: Duration,
    /// Sequences that it is given at first.
    pub ramp_from: u32,
}

/// What the checks and the requests of one worker have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    state: State,
    /// Requests in a row that failed through its fault.
    strikes: u32,
    /// Passed checks that it needs to come back.
    passes: u32,
    /// Whether its requests took it out, and it has answered none since.
    on_trial: bool,
    /// Whether it was ever checked.
    checked: bool,
    /// When a request failed last through its fault.
    faulted: Option<Instant>,
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
        /// Checks that have failed in a row: with `FAILURES` of them it is they that keep it out.
        failures: u32,
    },
}

/// Out by its checks, or not checked yet.
const DOWN: State = State::Unhealthy { passes: 0, failures: FAILURES };

impl Health {
    /// A worker that was there when the router started, or that takes over from those that go: it may be tried before its
    /// first check, or what it could serve would be refused.
    pub fn presumed() -> Self {
        Self::begin(State::Unknown)
    }

    /// A worker that has just come: it may still be loading its model, and gets requests once its checks pass.
    pub fn unproven() -> Self {
        Self::begin(DOWN)
    }

    fn begin(state: State) -> Self {
        Self { state, strikes: 0, passes: PASSES, on_trial: false, checked: false, faulted: None }
    }

    /// Takes note of a check.
    pub fn checked(&mut self, passed: bool) {
        self.checked = true;
        self.state = match (self.state, passed) {
            (State::Unknown | State::Healthy { .. }, true) => State::Healthy { failures: 0 },
            (State::Unhealthy { passes, .. }, true) if passes + 1 >= self.passes => State::Healthy { failures: 0 },
            // One that was down by its checks is so until it is back.
            (State::Unhealthy { passes, failures }, true) => {
                State::Unhealthy { passes: passes + 1, failures: if failures < FAILURES { 0 } else { failures } }
            }
            (State::Unhealthy { failures, .. }, false) => {
                State::Unhealthy { passes: 0, failures: (failures + 1).min(FAILURES) }
            }
            (State::Healthy { failures }, false) if failures + 1 < FAILURES => {
                State::Healthy { failures: failures + 1 }
            }
            (State::Unknown | State::Healthy { .. }, false) => DOWN,
        };
    }

    /// A request that was sent then failed through its fault. Returns whether it is one too many, for which it should be
    /// condemned: the last of `strikes_max` in a row, or any while it is on trial. What was sent before its requests took it out
    /// says no more of it than they did.
    pub fn failed(&mut self, (sent, now): (Instant, Instant), strikes_max: u32) -> bool {
        if self.on_trial && self.faulted.is_some_and(|faulted| sent < faulted) {
            return false;
        }
        self.faulted = Some(now);
        self.strikes = self.strikes.saturating_add(1);
        self.is_available() && (self.on_trial || self.strikes >= strikes_max)
    }

    /// It answered a request that was sent then as it should. What was sent before its requests took it out ends no trial.
    pub fn answered(&mut self, sent: Instant) {
        if self.on_trial && self.faulted.is_some_and(|faulted| sent < faulted) {
            return;
        }
        (self.strikes, self.passes, self.on_trial) = (0, PASSES, false);
    }

    /// Its requests fail: it is out until its checks bring it back.
    pub fn condemn(&mut self) {
        if self.is_available() {
            self.state = State::Unhealthy { passes: 0, failures: 0 };
            self.strikes = 0;
            self.passes = if self.on_trial { (self.passes * 2).min(PASSES_MAX) } else { PASSES };
            self.on_trial = true;
        }
    }

    /// It is needed, and may serve on trial if a check has passed since its requests took it out. Returns whether it does.
    pub fn readmit(&mut self) -> bool {
        let passes = matches!(self.state, State::Unhealthy { passes: 1.., failures: ..FAILURES });
        if passes {
            self.state = State::Healthy { failures: 0 };
        }
        passes
    }

    /// An operator vouches for it: what its requests have shown is forgotten. If it was out, it may be tried before its
    /// next check, and that one decides.
    pub fn pardon(&mut self) {
        let state = if self.is_available() { self.state } else { State::Unknown };
        *self = Self::begin(state);
    }

    /// The word for its breaker: `open` while it is out, `trial` while one more fault would take it out, else `closed`.
    pub fn breaker(&self) -> &'static str {
        match (self.is_available(), self.on_trial) {
            (false, _) => "open",
            (true, true) => "trial",
            (true, false) => "closed",
        }
    }

    /// Whether requests may go there.
    pub fn is_available(&self) -> bool {
        !matches!(self.state, State::Unhealthy { .. })
    }

    /// Whether it would serve but for what its requests have shown: its checks do not keep it out.
    pub fn is_out_by_requests(&self) -> bool {
        matches!(self.state, State::Unhealthy { failures, .. } if failures < FAILURES)
    }

    /// What keeps it out, in words; none where nothing does.
    pub fn trouble(&self) -> Option<&'static str> {
        let State::Unhealthy { passes, failures } = self.state else { return None };
        Some(match (passes, failures) {
            (_, ..FAILURES) => "is out, since its requests failed one after the other",
            (1.., _) => "has not passed enough health checks in a row yet",
            _ if !self.checked => "is not checked yet",
            _ => "fails its health checks",
        })
    }

    /// Whether a check has passed and not too many have failed since.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Healthy { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    /// A request that was sent just now.
    fn fails(health: &mut Health) -> bool {
        health.failed((now(), now()), 3)
    }

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

    /// Those that checks keep out are not counted among what requests take out.
    #[test]
    fn who_is_out_by_requests_is_so_until_two_checks_fail_as_well() {
        let mut health = presumed(&[true]);
        assert!(!health.is_out_by_requests());
        health.condemn();
        let is = |checks: &[bool]| after(health, checks).is_out_by_requests();
        assert!(is(&[]) && is(&[true]) && is(&[false]) && is(&[false, true, false]));
        assert!(!is(&[true, true]) && !is(&[false, false]) && !is(&[false, false, true]));
        assert!(!presumed(&[false]).is_out_by_requests() && !presumed(&[true, false, false]).is_out_by_requests());
        assert!(!Health::unproven().is_out_by_requests());
    }

    #[test]
    fn what_keeps_a_worker_out_is_told_as_it_is() {
        let told = |health, checks: &[bool]| after(health, checks).trouble();
        let failing = Some("fails its health checks");
        assert_eq!(told(Health::unproven(), &[]), Some("is not checked yet"));
        assert_eq!(told(Health::unproven(), &[true]), Some("has not passed enough health checks in a row yet"));
        assert_eq!([told(Health::unproven(), &[false]), told(Health::presumed(), &[false])], [failing; 2]);
        let mut condemned = presumed(&[true]);
        assert_eq!(condemned.trouble(), None);
        condemned.condemn();
        let by_requests = Some("is out, since its requests failed one after the other");
        assert_eq!([told(condemned, &[]), told(condemned, &[true])], [by_requests; 2]);
        assert_eq!([told(condemned, &[false, false]), told(condemned, &[true, true])], [failing, None]);
    }

    #[test]
    fn a_pardon_forgets_faults_but_not_what_the_next_check_shows() {
        let mut health = presumed(&[true]);
        let mut words = vec![health.breaker()];
        health.condemn();
        words.push(health.breaker());
        health = after(health, &[true, true]);
        words.push(health.breaker());
        health.pardon();
        words.push(health.breaker());
        assert_eq!(words, ["closed", "open", "trial", "closed"]);
        assert!(health.is_ready() && !fails(&mut health), "one fault is forgiven again");
        health.condemn();
        health.pardon();
        assert!(health.is_available() && !health.is_ready());
        assert!(!after(health, &[false]).is_available());
        assert!(after(health, &[true]).is_ready());
    }

    #[test]
    fn strikes_are_counted_in_a_row() {
        let mut health = presumed(&[true]);
        assert_eq!([fails(&mut health), fails(&mut health)], [false, false]);
        health.answered(now());
        assert_eq!([fails(&mut health), fails(&mut health), fails(&mut health)], [false, false, true]);
        // Nobody took it out: the next one counts as much.
        assert!(fails(&mut health) && health.is_available());
        health.condemn();
        assert!(!fails(&mut health), "it is out already");
    }

    #[test]
    fn whoever_is_on_trial_goes_with_one_fault_and_has_more_to_pass_each_time() {
        let mut health = presumed(&[true]);
        let mut passes = Vec::new();
        for _ in 0..6 {
            health.condemn();
            passes.push((1..).find(|_| {
                health.checked(true);
                health.is_available()
            }));
            assert!(fails(&mut health));
        }
        assert_eq!(passes, [2, 4, 8, 16, 16, 16].map(Some));
        health.answered(now());
        assert!(!fails(&mut health));
        health.condemn();
        assert!(after(health, &[true, true]).is_ready());
    }

    #[test]
    fn what_was_sent_before_a_worker_was_taken_out_decides_no_trial() {
        let (mut health, sent) = (presumed(&[true]), now());
        assert!(!fails(&mut health) && !fails(&mut health));
        health.answered(sent);
        assert!((0..3).map(|_| fails(&mut health)).eq([false, false, true]), "three in a row");
        health.condemn();
        health.answered(sent);
        assert!(!health.is_available() && health.breaker() == "open");
        [true, true].into_iter().for_each(|passed| health.checked(passed));
        assert_eq!(health.breaker(), "trial");
        assert!(!health.failed((sent, now()), 3), "nor does it decide one");
        health.answered(now());
        assert_eq!(health.breaker(), "closed");
    }

    #[test]
    fn whoever_is_needed_serves_on_trial_once_a_check_has_passed() {
        let mut health = presumed(&[true]);
        health.condemn();
        assert!(!health.readmit(), "nobody has looked since");
        health.checked(true);
        assert!(health.readmit() && health.breaker() == "trial");
        assert!(!health.readmit(), "it is there");
        let mut down = presumed(&[true, false, false]);
        assert!(!down.readmit() && !after(down, &[true]).readmit(), "its checks keep it out");
    }
}
