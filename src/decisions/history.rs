//! What the decisions that are kept say of the last minutes: hit rate, time to first token, balance, and what becomes of
//! what could be reused.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use warmpath_core::count::{real, real_len};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::shape::TenantId;

use super::{Decision, Decisions, Filter};

/// Points in one answer, at most.
pub const POINTS_MAX: usize = 240;

/// Places of [`History::breakers`].
const BREAKERS_MAX: usize = 20;

/// The last minutes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct History {
    /// Between two points.
    pub step_ms: u64,
    /// The oldest first; the last one is not over yet. None are of a time of which decisions are no longer kept.
    pub points: Vec<Point>,
    /// Since when all decisions are kept, or told of where that is later, in milliseconds since 1970: what follows is of
    /// these.
    pub since_ms: u64,
    /// By model, over all points.
    pub funnel: BTreeMap<Arc<str>, Funnel>,
    /// Where prompts stop having something in common, the costliest places first.
    pub breakers: Vec<Breaker>,
}

/// A place at which prompts of one tenant and one template stopped sharing with all before them. A template is the beginning
/// that its prompts have in common, whatever wrote it: a chat template, a system prompt, a list of tools. No name of it is
/// in a request, and a hash of a system prompt would be another with every time stamp in it, just where it matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breaker {
    /// The model.
    pub model: Arc<str>,
    /// Who sent them, where tenants are told apart.
    pub tenant: Option<TenantId>,
    /// The template: a hash of the tokens up to that place, in 16 hexadecimal digits; none where they share nothing.
    pub template: Option<String>,
    /// Tokens that they had in common with an earlier prompt, told within a sixteenth.
    pub at_tokens: u32,
    /// Prompts that parted there.
    pub requests: u64,
    /// Their tokens behind that place.
    pub tokens_behind: u64,
    /// The number of the last decision of them, to look at one.
    pub last_decision: u64,
}

/// What was decided in one step. What cannot be said is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// When it begins, in milliseconds since 1970.
    pub at_ms: u64,
    /// Decisions.
    pub requests: u64,
    /// Tokens of their prompts whose ids are known: by these, hit rates of several points are weighed.
    pub prompt_tokens: u64,
    /// Promised over prompt tokens.
    pub hit_rate: Option<f64>,
    /// First tokens that were seen: of streams.
    pub first_tokens: u64,
    /// Mean time to them.
    pub ttft_ms: Option<f64>,
    /// The longest.
    pub ttft_max_ms: Option<u32>,
    /// Requests of the worker with the most, over the mean of those that were considered; of the model where it is largest.
    pub requests_max_over_mean: Option<f64>,
}

/// What becomes of what could be reused, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Funnel {
    /// Decisions.
    pub requests: u64,
    /// Tokens of prompts whose ids are known; those of others are guessed, and nothing is promised of them.
    pub prompt_tokens: u64,
    /// Of these, those with which an earlier prompt began, within a sixteenth: what could be reused at all.
    pub reusable_tokens: u64,
    /// Of these, those that some worker held.
    pub reachable_tokens: u64,
    /// Of these, those that the chosen one held.
    pub captured_tokens: u64,
    /// Prompt tokens of answers in which the engine said what it had.
    pub answered_prompt_tokens: u64,
    /// Those that were promised for them.
    pub promised_tokens: u64,
    /// Those that the engine had.
    pub delivered_tokens: u64,
}

#[derive(Default)]
struct Sums {
    requests: u64,
    prompt: u64,
    overlap: u64,
    first_tokens: u64,
    ttft_ms: u64,
    ttft_max_ms: Option<u32>,
    spread: BTreeMap<Arc<str>, Spread>,
}

/// Who got a model's requests.
#[derive(Default)]
struct Spread {
    by_slot: BTreeMap<Slot, u64>,
    considered: usize,
}

impl Decisions {
    /// The last `points` steps of `step_ms` milliseconds up to `now_ms`. Looks at all decisions that are kept and are not
    /// older, a few at a time.
    pub fn history(&self, now_ms: u64, step_ms: u64, points: usize) -> History {
        let (step_ms, points) = (step_ms.max(1), points.clamp(1, POINTS_MAX));
        let last = now_ms / step_ms;
        let first = last.saturating_sub(u64::try_from(points - 1).unwrap_or(0));
        let mut sums: BTreeMap<u64, Sums> = (first..=last).map(|step| (step, Sums::default())).collect();
        let mut funnel: BTreeMap<Arc<str>, Funnel> = BTreeMap::new();
        let mut partings = BTreeMap::new();
        let filter = Filter { since_ms: first * step_ms, limit: usize::MAX, ..Filter::default() };
        self.each(&filter, |decision| {
            let step = (decision.at_ms() / step_ms).min(last);
            if let Some(sums) = sums.get_mut(&step) {
                sums.add(decision);
            }
            funnel.entry(Arc::clone(&decision.model)).or_default().add(decision);
            if let Some((place, behind)) = parting(decision) {
                // The newest come first.
                let parted = partings.entry(place).or_insert(Parted { last: decision.number, ..Parted::default() });
                (parted.requests, parted.tokens) = (parted.requests + 1, parted.tokens + behind);
            }
            true
        });
        // Asked last: meanwhile others were let go.
        let whole_since = self.whole_since_ms();
        let is_whole = |step: u64| self.keeps_any() && (step == last || step * step_ms >= whole_since);
        let points = sums.into_iter().filter(|(step, _)| is_whole(*step));
        let points = points.map(|(step, sums)| sums.point(step * step_ms)).collect();
        let kept_since = if self.keeps_any() { whole_since.max(self.since_ms) } else { now_ms };
        let since_ms = kept_since.max(first * step_ms);
        History { step_ms, points, since_ms, funnel, breakers: breakers(partings) }
    }

    /// Since when all are kept, in milliseconds since 1970; 0 while none has been let go.
    fn whole_since_ms(&self) -> u64 {
        let ring = self.ring();
        ring.records.front().filter(|oldest| oldest.number > 1).map_or(0, |oldest| oldest.at_ms())
    }
}

/// A model, a tenant, a number of tokens, and which beginning they are.
type Place = (Arc<str>, Option<TenantId>, u32, Option<SequenceHash>);

/// Prompts that parted at one place, and their tokens behind it.
#[derive(Clone, Copy, Default)]
struct Parted {
    requests: u64,
    tokens: u64,
    last: u64,
}

/// Where a prompt parted from all before it, and its tokens behind that place; none where that is not known.
fn parting(decision: &Decision) -> Option<(Place, u64)> {
    let shape = &decision.asked.0.shape;
    let shared = decision.shared?;
    let behind = u64::from(shape.prompt.0.saturating_sub(shared.0));
    Some(((Arc::clone(&decision.model), shape.tenant, shared.0, decision.beginning), behind))
}

/// The places where the most tokens lie behind, among those where more than one prompt parted.
fn breakers(partings: BTreeMap<Place, Parted>) -> Vec<Breaker> {
    let several = partings.into_iter().filter(|(_, parted)| parted.requests > 1 && parted.tokens > 0);
    let mut breakers: Vec<Breaker> = several
        .map(|((model, tenant, at_tokens, beginning), parted)| Breaker {
            model,
            tenant,
            template: beginning.map(|hash| format!("{:016x}", hash.0)),
            at_tokens,
            requests: parted.requests,
            tokens_behind: parted.tokens,
            last_decision: parted.last,
        })
        .collect();
    breakers.sort_by_key(|breaker| std::cmp::Reverse(breaker.tokens_behind));
    breakers.truncate(BREAKERS_MAX);
    breakers
}

/// Whether its prompt's tokens were read: those of others are guessed.
fn knows_tokens(decision: &Decision) -> bool {
    let question = &decision.asked.0;
    question.has_tokens && !question.unread
}

impl Sums {
    fn add(&mut self, decision: &Decision) {
        self.requests += 1;
        if knows_tokens(decision) {
            self.prompt += u64::from(decision.asked.0.shape.prompt.0);
            self.overlap += u64::from(decision.overlap.0);
        }
        if let Some(ms) = decision.course.first_token_ms() {
            self.first_tokens += 1;
            self.ttft_ms += u64::from(ms);
            self.ttft_max_ms = self.ttft_max_ms.max(Some(ms));
        }
        let spread = self.spread.entry(Arc::clone(&decision.model)).or_default();
        *spread.by_slot.entry(decision.chosen).or_default() += 1;
        spread.considered = spread.considered.max(decision.candidates.len());
    }

    fn point(&self, at_ms: u64) -> Point {
        let share = |part: u64, whole: u64| (whole > 0).then(|| real(part) / real(whole));
        Point {
            at_ms,
            requests: self.requests,
            prompt_tokens: self.prompt,
            hit_rate: share(self.overlap, self.prompt),
            first_tokens: self.first_tokens,
            ttft_ms: share(self.ttft_ms, self.first_tokens),
            ttft_max_ms: self.ttft_max_ms,
            requests_max_over_mean: self.spread.values().filter_map(Spread::max_over_mean).reduce(f64::max),
        }
    }
}

impl Spread {
    fn max_over_mean(&self) -> Option<f64> {
        let (most, all) = (self.by_slot.values().max()?, self.by_slot.values().sum::<u64>());
        Some(real(*most) * real_len(self.considered.max(1)) / real(all))
    }
}

impl Funnel {
    fn add(&mut self, decision: &Decision) {
        self.requests += 1;
        if !knows_tokens(decision) {
            return;
        }
        let prompt = u64::from(decision.asked.0.shape.prompt.0);
        self.prompt_tokens += prompt;
        self.reusable_tokens += u64::from(decision.shared.unwrap_or_default().max(decision.best_overlap).0);
        self.reachable_tokens += u64::from(decision.best_overlap.0);
        self.captured_tokens += u64::from(decision.overlap.0);
        if let Some(reported) = decision.course.reported() {
            self.answered_prompt_tokens += prompt;
            self.promised_tokens += u64::from(decision.overlap.0);
            self.delivered_tokens += u64::from(reported).min(prompt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of one model has nothing to do with the requests of another.
    #[test]
    fn balance_is_each_models_own() {
        let spread = |requests: &[(u16, u64)]| Spread {
            by_slot: requests.iter().map(|(slot, count)| (Slot(*slot), *count)).collect(),
            considered: 2,
        };
        let both = [("a", spread(&[(0, 10), (1, 10)])), ("b", spread(&[(2, 15), (3, 5)]))];
        let sums =
            Sums { requests: 40, spread: both.map(|(model, spread)| (model.into(), spread)).into(), ..Sums::default() };
        assert_eq!(sums.point(0).requests_max_over_mean, Some(1.5));
        assert_eq!(Sums::default().point(0).requests_max_over_mean, None);
    }
}
