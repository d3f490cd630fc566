//! Another scheduler in the place of one that is at work: what is in flight goes on, and what was learned is not forgotten.

use std::sync::Arc;

use super::Scheduler;
use crate::policy::{Policy, PolicyName};

/// What stays as it was set, and so keeps what it has learned.
#[derive(Clone, Copy, Debug)]
pub struct Keeps<'a> {
    /// Policies whose settings are the same.
    pub policies: &'a [PolicyName],
    /// Policies whose histories are bounded the same: other settings of theirs change what is made of these.
    pub histories: &'a [PolicyName],
    /// Whether the rule for sessions is the same.
    pub sessions: bool,
    /// Whether what is remembered of workers without events is bounded the same.
    pub sent: bool,
}

impl Scheduler {
    /// This one in the place of `old`, for the requests to come. Both see what is in flight; requests that `old` has placed
    /// may end under either.
    pub fn succeeding(mut self, old: &Scheduler, keeps: Keeps<'_>) -> Self {
        // Prompts in flight were entered there, and their reservations leave there.
        old.overlay.set_credit(self.overlay.credit());
        self.overlay = Arc::clone(&old.overlay);
        if keeps.sent {
            self.sent = old.sent.clone();
        }
        if keeps.sessions {
            self.sessions.clone_from(&old.sessions);
        }
        let before: Vec<&Policy> = [&old.policy, &old.fallback].into_iter().chain(&old.shadows).collect();
        let mut taken = vec![false; before.len()];
        for policy in [&mut self.policy, &mut self.fallback].into_iter().chain(&mut self.shadows) {
            let same = |at: &usize| before[*at].name == policy.name && !taken[*at];
            let Some(at) = (0..before.len()).find(same) else { continue };
            taken[at] = true;
            if keeps.policies.contains(&policy.name) {
                *policy = before[at].clone();
            } else if keeps.histories.contains(&policy.name) {
                policy.history.clone_from(&before[at].history);
            }
        }
        self.needs =
            self.shadows.iter().fold(self.policy.needs.or(self.fallback.needs), |needs, shadow| needs.or(shadow.needs));
        self
    }
}
