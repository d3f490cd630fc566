//! Who waits for a worker, and who goes next: a bounded queue, fair between bands of urgency and between senders. It
//! decides and nothing else: time is an argument, waiting is the caller's business.
//!
//! 1. What enters leaves exactly once: admitted, expired, withdrawn, or displaced by something more urgent.
//! 2. No more wait than [`Rules`] allow, and no more of one tenant.
//! 3. Requests that were admitted before and are looking for another worker go before all others, first come, first
//!    served: they have had their turn.
//! 4. While several bands wait, each is given tokens in proportion to its weight; an urgent one that comes new is next.
//!    No band waits for ever. Within a band each tenant is given as much as any other.
//!
//! 5. Where those that are next can go nowhere, others go that may go elsewhere; the order among these stays.
//!
//! Every step is O(log waiting); to pass over others costs O(their senders) each time, and O(their choices) in all of a round.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::shape::{Class, TenantId};
use crate::units::Tokens;
use band::{Band, Sender};
use choice::ByChoice;
pub use choice::{Choice, PassedOver};
use pace::Pace;

mod band;
mod choice;
mod pace;

/// One who waits; numbers rise in the order of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// It was admitted before and looks for another worker.
    Returned,
    /// It is new, and of a class below 0.
    High,
    /// It is new, and of class 0.
    Normal,
    /// It is new, and of a class above 0.
    Low,
}

/// How a queue behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// New requests that may wait, and as many again that were admitted before.
    pub waiting: usize,
    /// New requests of one tenant that may wait.
    pub of_tenant: usize,
    /// What the bands high, normal and low are given of each other's sum.
    pub weights: [NonZeroU32; 3],
}

/// A request that is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its urgency.
    pub class: Class,
    /// Who sent it.
    pub tenant: Option<TenantId>,
    /// When it has waited long enough.
    pub expires: Instant,
    /// Whether it was admitted before and looks for another worker.
    pub returned: bool,
    /// Among whom it may choose.
    pub choice: Choice,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its number.
    pub ticket: Ticket,
    /// Who had to leave for it: the last one that came of the least urgent band.
    pub displaced: Option<Ticket>,
}

/// Why a request may not wait, or not any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many wait as may, none of them less urgent.
    #[error("too many requests are waiting")]
    Full,
    /// As many of its tenant wait as may.
    #[error("too many of your requests are waiting")]
    TenantFull,
    /// Something more urgent took its place.
    #[error("more urgent requests are waiting")]
    Displaced,
    /// It has waited long enough.
    #[error("no worker was free in time")]
    Expired,
}

#[derive(Debug)]
struct Waiting {
    entry: Entry,
    entered: Instant,
}

/// The queue of one pool.
#[derive(Debug)]
pub struct Queue {
    rules: Rules,
    next: u64,
    waiting: HashMap<Ticket, Waiting, foldhash::fast::RandomState>,
    returned: ByChoice<Ticket>,
    /// How many those are.
    returned_len: usize,
    bands: [Band; 3],
    /// For whom there is no room.
    pub passed_over: PassedOver,
    /// Tokens that each band has been given, over its weight.
    given: [u64; 3],
    /// No band that waits has been given less.
    clock: u64,
    /// New requests of each tenant.
    tenants: HashMap<Sender, usize, foldhash::fast::RandomState>,
    /// Requests of each choice.
    choices: HashMap<Choice, usize, foldhash::fast::RandomState>,
    expiries: BTreeSet<(Instant, Ticket)>,
    pace: Pace,
}

impl Lane {
    /// All of them, in the order of their numbers.
    pub const ALL: [Lane; 4] = [Lane::Returned, Lane::High, Lane::Normal, Lane::Low];

    /// The lane's name in labels.
    pub fn label(self) -> &'static str {
        match self {
            Lane::Returned => "returned",
            Lane::High => "high",
            Lane::Normal => "normal",
            Lane::Low => "low",
        }
    }

    /// Its place in [`Lane::ALL`].
    pub fn index(self) -> usize {
        match self {
            Lane::Returned => 0,
            Lane::High => 1,
            Lane::Normal => 2,
            Lane::Low => 3,
        }
    }

    /// The lane of new requests of a class.
    pub fn of(class: Class) -> Self {
        match class.0 {
            ..0 => Lane::High,
            0 => Lane::Normal,
            1.. => Lane::Low,
        }
    }
}

impl Entry {
    /// Where it waits.
    pub fn lane(&self) -> Lane {
        if self.returned { Lane::Returned } else { Lane::of(self.class) }
    }
}

impl Queue {
    /// An empty queue.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            next: 0,
            waiting: HashMap::default(),
            returned: ByChoice::default(),
            returned_len: 0,
            bands: Default::default(),
            passed_over: PassedOver::default(),
            given: [0; 3],
            clock: 0,
            tenants: HashMap::default(),
            choices: HashMap::default(),
            expiries: BTreeSet::new(),
            pace: Pace::default(),
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Requests that wait, by lane.
    pub fn lengths(&self) -> [usize; 4] {
        let [high, normal, low] = self.bands.each_ref().map(Band::len);
        [self.returned_len, high, normal, low]
    }

    /// Whether no further new request finds room, unless it is more urgent than one that waits.
    pub fn is_full(&self) -> bool {
        self.len() - self.returned_len >= self.rules.waiting
    }

    /// Lets a request wait, if need be in the place of a less urgent one.
    ///
    /// # Errors
    /// [`Refusal::TenantFull`] before [`Refusal::Full`]: the first is the client's own doing.
    pub fn enter(&mut self, now: Instant, entry: Entry) -> Result<Entered, Refusal> {
        let displaced = if entry.returned {
            if self.returned_len >= self.rules.waiting {
                return Err(Refusal::Full);
            }
            None
        } else {
            if self.tenants.get(&entry.tenant).is_some_and(|waiting| *waiting >= self.rules.of_tenant) {
                return Err(Refusal::TenantFull);
            }
            if self.is_full() { Some(self.less_urgent(entry.class).ok_or(Refusal::Full)?) } else { None }
        };
        if let Some(displaced) = displaced {
            self.remove(displaced, None);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.expiries.insert((entry.expires, ticket));
        *self.choices.entry(entry.choice).or_default() += 1;
        self.waiting.insert(ticket, Waiting { entry, entered: now });
        match band_of(entry.lane()) {
            None => {
                self.returned.insert(entry.choice, ticket);
                self.returned_len += 1;
            }
            Some(band) => {
                if self.bands[band].is_empty() {
                    self.given[band] = self.given[band].max(self.clock);
                }
                self.bands[band].enter(ticket, entry.tenant, (entry.class, entry.choice));
                *self.tenants.entry(entry.tenant).or_default() += 1;
            }
        }
        Ok(Entered { ticket, displaced })
    }

    /// The last one that came of the least urgent band, if that is less urgent than `class`.
    fn less_urgent(&self, class: Class) -> Option<Ticket> {
        let own = band_of(Lane::of(class))?;
        self.bands[own + 1..].iter().rev().find_map(Band::newest)
    }

    /// Who goes next.
    pub fn first(&self) -> Option<Ticket> {
        self.returned.first().or_else(|| self.turns().into_iter().find_map(|band| self.bands[band].first()))
    }

    /// Who goes next of those that are not passed over.
    pub fn first_open(&mut self) -> Option<Ticket> {
        let turns = self.turns();
        let Self { returned, bands, passed_over, .. } = self;
        let returned = returned.first_but(passed_over);
        returned.or_else(|| turns.into_iter().find_map(|band| bands[band].first_but(passed_over)))
    }

    /// The bands in the order of their turns.
    fn turns(&self) -> [usize; 3] {
        let mut bands = [0, 1, 2];
        bands.sort_by_key(|band| self.given[*band]);
        bands
    }

    /// Whether somebody waits who may go wherever a request of this choice may: then it has to wait, too.
    pub fn is_ahead_of(&self, choice: Choice) -> bool {
        [Choice::ANY, choice].iter().any(|choice| self.choices.contains_key(choice))
    }

    /// A request that waits may choose among others than before. Its place stays. Returns whether it waits.
    pub fn rechoose(&mut self, ticket: Ticket, choice: Choice) -> bool {
        let Some(waiting) = self.waiting.get_mut(&ticket) else { return false };
        let Entry { class, tenant, choice: before, .. } = waiting.entry;
        waiting.entry.choice = choice;
        less(&mut self.choices, before);
        *self.choices.entry(choice).or_default() += 1;
        match band_of(waiting.entry.lane()) {
            None => {
                self.returned.remove(before, ticket);
                self.returned.insert(choice, ticket);
            }
            Some(band) => self.bands[band].rechoose(ticket, tenant, class, (before, choice)),
        }
        true
    }

    /// What workers serve has changed: of those that may not go everywhere none speaks for another, until each is told
    /// again among whom it may choose. O(waiting).
    pub fn tell_apart(&mut self) {
        let some = self.waiting.iter().filter(|(_, waiting)| waiting.entry.choice != Choice::ANY);
        for ticket in some.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.rechoose(ticket, Choice::alone(ticket));
        }
    }

    fn next_band(&self) -> Option<usize> {
        (0..3).filter(|band| !self.bands[*band].is_empty()).min_by_key(|band| self.given[*band])
    }

    /// A request got a worker, on which `tokens` have to be computed. Returns how long it waited and where; none if it
    /// does not wait.
    pub fn admit(&mut self, now: Instant, ticket: Ticket, tokens: Tokens) -> Option<(Lane, Duration)> {
        let Waiting { entry, entered } = self.remove(ticket, Some(tokens))?;
        self.pace.admitted(now, self.waiting.is_empty());
        Some((entry.lane(), now.saturating_duration_since(entered)))
    }

    /// A request waits no longer: its client has left, or no worker will ever come. Returns whether it did.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        let has_waited = self.remove(ticket, None).is_some();
        self.pace.rests_if(self.waiting.is_empty());
        has_waited
    }

    /// Takes out one that has waited long enough at `now`, other than `spared`, who is just being tried.
    pub fn expire(&mut self, now: Instant, spared: Option<Ticket>) -> Option<Ticket> {
        let over = self.expiries.iter().take_while(|(expires, _)| *expires <= now);
        let (_, ticket) = over.copied().find(|(_, ticket)| Some(*ticket) != spared)?;
        self.remove(ticket, None);
        self.pace.rests_if(self.waiting.is_empty());
        Some(ticket)
    }

    /// How long one that comes now would wait, by the pace of the last admissions, or by how long there has been none; none
    /// while there is no pace.
    pub fn expected_wait(&self, now: Instant) -> Option<Duration> {
        let ahead = u32::try_from(self.len()).unwrap_or(u32::MAX).saturating_add(1);
        Some(self.pace.between(now)?.saturating_mul(ahead))
    }

    fn remove(&mut self, ticket: Ticket, tokens: Option<Tokens>) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        let entry = &waiting.entry;
        self.expiries.remove(&(entry.expires, ticket));
        less(&mut self.choices, entry.choice);
        let Some(band) = band_of(entry.lane()) else {
            self.returned.remove(entry.choice, ticket);
            self.returned_len -= 1;
            return Some(waiting);
        };
        less(&mut self.tenants, entry.tenant);
        let tokens = tokens.map(|tokens| u64::from(tokens.0.max(1)));
        if let Some(tokens) = tokens {
            let least = self.next_band().map_or(0, |next| self.given[next]);
            self.clock = self.clock.max(least);
            let weighted = tokens.saturating_mul(UNIT) / u64::from(self.rules.weights[band].get());
            self.given[band] = self.given[band].saturating_add(weighted);
        }
        self.bands[band].remove(ticket, entry.tenant, (entry.class, entry.choice), tokens);
        if self.bands.iter().all(Band::is_empty) {
            (self.given, self.clock) = ([0; 3], 0);
        }
        Some(waiting)
    }
}

/// One less of `key`, which is forgotten with the last.
fn less<K: Eq + Hash>(counts: &mut HashMap<K, usize, foldhash::fast::RandomState>, key: K) {
    let std::collections::hash_map::Entry::Occupied(mut count) = counts.entry(key) else { return };
    *count.get_mut() -= 1;
    if *count.get() == 0 {
        count.remove();
    }
}

/// Parts of a token that bands are reckoned in, so that a weight divides even one token.
const UNIT: u64 = 1 << 16;

/// A lane's place among the bands; the returned ones are none.
fn band_of(lane: Lane) -> Option<usize> {
    lane.index().checked_sub(1)
}
