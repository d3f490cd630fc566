//! The last decisions, for whoever asks why: hashes, counts and costs, never a text.
//!
//! A record holds all that a decision was made of, so that its terms can be told when somebody asks, and not before. A policy
//! that learns could not tell them later: its terms for the chosen worker and the next, or for all of a few, are a part of the
//! record.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use smallvec::SmallVec;
use warmpath_core::cost::{Candidate, Cost, Term};
use warmpath_core::ids::{Rank, Roll, SequenceHash, Slot, WorkerId};
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::{DecidedBy, Placement, Question, Scratch};
use warmpath_core::units::{Blocks, Tokens};
use warmpath_core::workers::{Pool, WorkerTable};

use crate::wall_clock;

mod course;
pub mod history;
mod sharing;
pub mod told;
mod why;

pub use course::{Course, Standing};
use sharing::Sharing;

/// Records that are looked at before others may write again.
const LOOK: usize = 64;

/// The longest name of a request that is kept; those of clients are no longer.
const REQUEST_MAX: usize = 128;

/// The last decisions of one gateway.
pub struct Decisions {
    ring: Mutex<Ring>,
    sharing: Mutex<Sharing>,
    kept: usize,
    bytes_max: usize,
    /// When the first could have been made, in milliseconds since 1970.
    since_ms: u64,
}

#[derive(Default)]
struct Ring {
    /// Numbered one after the other.
    records: VecDeque<Arc<Decision>>,
    /// The number of the last one.
    last: u64,
    /// What all of them were made of takes so many bytes.
    bytes: usize,
    /// Who the candidates of each model are, as long as their roll is the same.
    names: HashMap<Arc<str>, (Roll, Arc<[Name]>)>,
}

/// A candidate's name: slots are given to others when their workers leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its slot then.
    pub slot: Slot,
    /// The worker.
    pub worker: WorkerId,
    /// The rank inside the worker.
    pub rank: Rank,
}

/// A decision as it was made, and what came of it.
#[derive(Debug)]
pub struct Decision {
    /// One more than that of the decision before; the first is 1.
    pub number: u64,
    /// When, since 1970.
    pub at: Duration,
    /// The request's name, as its client and its worker see it.
    pub request: SmallVec<[u8; 40]>,
    /// The pool.
    pub model: Arc<str>,
    /// Workers that had failed the request already, or cannot serve it.
    pub avoided: u32,
    /// What was asked, and with which chance.
    pub asked: (Question, Xoshiro256PlusPlus),
    /// Who decided.
    pub decided_by: DecidedBy,
    /// Whose costs these are.
    pub policy: PolicyName,
    /// Where the request was sent.
    pub chosen: Slot,
    /// What was promised to be cached there.
    pub overlap: Tokens,
    /// The most that any worker promised.
    pub best_overlap: Tokens,
    /// Tokens that were to be computed there.
    pub new_tokens: Tokens,
    /// How much of the prompt, at its beginning, earlier ones had too, wherever they went; none where that is not known.
    pub shared: Option<Tokens>,
    /// Which beginning that is: the hash of its last block with all before it.
    pub beginning: Option<SequenceHash>,
    /// Whom there was to choose from, in the order of their slots.
    pub candidates: Vec<Candidate>,
    /// Their costs; none where no policy was asked.
    pub costs: Vec<Cost>,
    /// What the chosen one's cost and the least of the others are made of, with their places, where the policy learns and
    /// could not tell it later.
    pub terms: Vec<(usize, Term)>,
    /// Their names.
    pub names: Arc<[Name]>,
    /// What came of it.
    pub course: Arc<Course>,
}

/// How much of a prompt earlier ones had, and which beginning that is.
type Shared = (Option<Tokens>, Option<SequenceHash>);

/// A decision that was just made.
pub struct Made<'a> {
    /// The request's name.
    pub request: &'a [u8],
    /// Workers that were not to be chosen.
    pub avoided: u32,
    /// What was decided.
    pub placement: &'a Placement,
    /// Whose costs decided.
    pub policy: PolicyName,
    /// Among whom.
    pub fleet: (&'a WorkerTable, &'a Pool),
    /// With what.
    pub scratch: &'a Scratch,
}

impl Made<'_> {
    /// The longest match of all candidates.
    fn best_overlap(&self) -> Blocks {
        let overlaps = self.scratch.candidates().iter().map(|candidate| candidate.overlap.total());
        overlaps.max().unwrap_or_default()
    }

    /// What a record of it takes at most.
    fn bytes(&self) -> usize {
        bytes_of(self.scratch.candidates().len(), self.scratch.terms().len())
    }
}

fn bytes_of(candidates: usize, terms: usize) -> usize {
    candidates * (size_of::<Candidate>() + size_of::<Cost>()) + terms * size_of::<(usize, Term)>()
}

/// Which decisions are asked for; what is not given does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this model.
    pub model: Option<String>,
    /// For this worker.
    pub worker: Option<String>,
    /// Of this request: its name, or a part of it.
    pub request: Option<String>,
    /// Only those with higher numbers.
    pub after: u64,
    /// Only those that are not older, in milliseconds since 1970.
    pub since_ms: u64,
    /// So many at most, the newest.
    pub limit: usize,
}

impl Filter {
    fn takes(&self, decision: &Decision) -> bool {
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        is(&self.model, &decision.model)
            && is(&self.worker, decision.worker().map_or("", |name| name.worker.as_str()))
            && self.request.as_deref().is_none_or(|part| decision.request_id().contains(part))
    }
}

impl Decision {
    /// The request's name as text.
    pub fn request_id(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.request)
    }

    /// When, in milliseconds since 1970.
    pub fn at_ms(&self) -> u64 {
        u64::try_from(self.at.as_millis()).unwrap_or(u64::MAX)
    }

    /// Who was chosen.
    pub fn worker(&self) -> Option<&Name> {
        self.name(self.chosen)
    }

    /// Who was in `slot`.
    pub fn name(&self, slot: Slot) -> Option<&Name> {
        self.names.binary_search_by_key(&slot, |name| name.slot).ok().map(|at| &self.names[at])
    }

    /// What it was made of.
    fn bytes(&self) -> usize {
        bytes_of(self.candidates.len(), self.terms.len())
    }

    fn write(&mut self, number: u64, made: &Made<'_>, best: Blocks, (shared, beginning): Shared, names: Arc<[Name]>) {
        let Placement { target, overlap_tokens, new_tokens, decided_by, .. } = made.placement;
        if let Some(asked) = made.scratch.asked() {
            self.asked.clone_from(asked);
        }
        self.number = number;
        self.at = wall_clock::now();
        self.request.clear();
        self.request.extend_from_slice(&made.request[..made.request.len().min(REQUEST_MAX)]);
        self.model = Arc::clone(&made.fleet.1.model);
        (self.avoided, self.decided_by, self.policy) = (made.avoided, *decided_by, made.policy);
        (self.chosen, self.overlap, self.new_tokens) = (target.slot, *overlap_tokens, *new_tokens);
        self.best_overlap = best.tokens(self.asked.0.shape.block_size);
        (self.shared, self.beginning) = (shared, beginning);
        self.candidates.clear();
        self.candidates.extend_from_slice(made.scratch.candidates());
        self.costs.clear();
        self.costs.extend_from_slice(made.scratch.costs());
        self.terms.clear();
        self.terms.extend_from_slice(made.scratch.terms());
        self.names = names;
        self.course = Arc::default();
    }

    fn new(made: &Made<'_>) -> Option<Self> {
        Some(Self {
            number: 0,
            at: Duration::ZERO,
            request: SmallVec::new(),
            model: Arc::clone(&made.fleet.1.model),
            avoided: 0,
            asked: made.scratch.asked()?.clone(),
            decided_by: made.placement.decided_by,
            policy: made.policy,
            chosen: made.placement.target.slot,
            overlap: Tokens(0),
            best_overlap: Tokens(0),
            new_tokens: Tokens(0),
            shared: None,
            beginning: None,
            candidates: Vec::with_capacity(made.scratch.candidates().len()),
            costs: Vec::with_capacity(made.scratch.costs().len()),
            terms: Vec::new(),
            names: Arc::new([]),
            course: Arc::default(),
        })
    }
}

impl Decisions {
    /// The last `kept`, or fewer where what they were made of takes more than `bytes`.
    pub fn new(kept: usize, bytes: usize) -> Self {
        let records = VecDeque::with_capacity(kept);
        Self {
            ring: Mutex::new(Ring { records, ..Ring::default() }),
            sharing: Mutex::default(),
            kept,
            bytes_max: bytes,
            since_ms: wall_clock::now_ms(),
        }
    }

    /// When they began to be counted, in milliseconds since 1970.
    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Whether any is kept.
    pub fn keeps_any(&self) -> bool {
        self.kept > 0
    }

    /// Writes a decision down, in the place of the oldest. None where none is kept, or one takes more than all may. One
    /// short lock and a copy of the candidates; once the ring is full, no allocation but for records that somebody still
    /// reads.
    pub fn record(&self, made: &Made<'_>) -> Option<Arc<Decision>> {
        let bytes = made.bytes();
        if self.kept == 0 || bytes > self.bytes_max {
            return None;
        }
        let best = made.best_overlap();
        let shared = self.shared(made, best);
        let mut ring = self.ring();
        let mut spare = None;
        while ring.records.len() >= self.kept || ring.bytes + bytes > self.bytes_max {
            let Some(oldest) = ring.records.pop_front() else { break };
            ring.bytes = ring.bytes.saturating_sub(oldest.bytes());
            spare = Some(oldest);
        }
        let names = ring.names_of(made.fleet);
        let number = ring.last + 1;
        let mut record = match spare.filter(|spare| Arc::strong_count(spare) == 1) {
            Some(spare) => spare,
            None => Arc::new(Decision::new(made)?),
        };
        Arc::get_mut(&mut record)?.write(number, made, best, shared, names);
        ring.last = number;
        ring.bytes += record.bytes();
        ring.records.push_back(Arc::clone(&record));
        Some(record)
    }

    /// How much of the prompt earlier ones had, and from now on this one has; `cached` of it is in the index.
    fn shared(&self, made: &Made<'_>, cached: Blocks) -> Shared {
        let Some((question, _)) = made.scratch.asked() else { return (None, None) };
        let Some(prompt) = made.scratch.only_prompt().filter(|_| question.has_tokens) else { return (None, None) };
        let mut sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let (blocks, beginning) = sharing.add(prompt, cached);
        (Some(blocks.tokens(question.shape.block_size)), beginning)
    }

    /// The number of the last decision; 0 before the first.
    pub fn last(&self) -> u64 {
        self.ring().last
    }

    /// Those that `filter` takes, the newest first. Looks at all that are kept, a few at a time.
    pub fn find(&self, filter: &Filter) -> Vec<Arc<Decision>> {
        let mut found = Vec::new();
        self.each(filter, |decision| {
            if found.len() < filter.limit {
                found.push(Arc::clone(decision));
            }
            found.len() < filter.limit
        });
        found
    }

    /// Shows `see` those that `filter` takes, the newest first, until it has seen enough.
    fn each(&self, filter: &Filter, mut see: impl FnMut(&Arc<Decision>) -> bool) {
        let mut below = u64::MAX;
        loop {
            let some = self.before(below);
            let Some(oldest) = some.last() else { return };
            below = oldest.number;
            for decision in &some {
                if decision.number <= filter.after || decision.at_ms() < filter.since_ms {
                    return;
                }
                if filter.takes(decision) && !see(decision) {
                    return;
                }
            }
        }
    }

    /// The last decision of the request of this name, or else the one of this number: clients choose names, and who asks by
    /// one that is a number must not be told of another's request.
    pub fn get(&self, id: &str) -> Option<Arc<Decision>> {
        let filter = Filter { request: Some(id.to_owned()), limit: self.kept, ..Filter::default() };
        let by_name = self.find(&filter).into_iter().find(|decision| decision.request_id() == id);
        by_name.or_else(|| self.numbered(id.parse().ok()?))
    }

    /// The decision of this number.
    pub fn numbered(&self, number: u64) -> Option<Arc<Decision>> {
        let ring = self.ring();
        let first = ring.records.front()?.number;
        ring.records.get(usize::try_from(number.checked_sub(first)?).ok()?).cloned()
    }

    /// Some of those with lower numbers than this one, the newest first.
    fn before(&self, number: u64) -> Vec<Arc<Decision>> {
        let ring = self.ring();
        let Some(first) = ring.records.front().map(|oldest| oldest.number) else { return Vec::new() };
        let len = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX).min(ring.records.len());
        ring.records.range(len.saturating_sub(LOOK)..len).rev().cloned().collect()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// Whom the slots of this pool name.
    fn names_of(&mut self, (table, pool): (&WorkerTable, &Pool)) -> Arc<[Name]> {
        let roll = table.roll(pool);
        match self.names.get(&pool.model) {
            Some((known, names)) if *known == roll => Arc::clone(names),
            _ => {
                let names: Arc<[Name]> = names(table, pool).collect();
                self.names.insert(Arc::clone(&pool.model), (roll, Arc::clone(&names)));
                names
            }
        }
    }
}

/// Whom the slots of this pool name, ascending.
pub fn names<'a>(table: &'a WorkerTable, pool: &'a Pool) -> impl Iterator<Item = Name> + 'a {
    let targets = pool.targets.iter().filter_map(|slot| table.get(*slot));
    targets.map(|target| Name { slot: target.slot, worker: target.worker.clone(), rank: target.rank })
}

#[cfg(test)]
mod tests;
