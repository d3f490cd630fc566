//! An immutable picture of the fleet. A change makes a whole new table; readers keep the one they have.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh64::xxh64;

use crate::ids::{Rank, Roll, Slot, WorkerId};
use crate::ledger::Account;
use crate::trust::Trust;
use crate::units::{BlockSize, Blocks};

/// What a worker does for its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

/// The workers of one model.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The model's name.
    pub model: Arc<str>,
    /// Other names of it.
    pub aliases: Vec<Arc<str>>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Its targets, ascending.
    pub targets: Vec<Slot>,
}

/// How much a target holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of its KV cache; unknown until configured or reported. Then the most blocks seen stand in for it, and
    /// never make the target count as full.
    pub blocks: Option<Blocks>,
    /// Sequences that it runs at once (`max_num_seqs`).
    pub sequences: u32,
}

/// How a target that came back gets work: its limit on sequences grows from a few to all of them, evenly with time, so
/// that an engine with a cold cache and cold kernels is not given everything at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// When it came back, or will: until then it is given nothing.
    pub since: Instant,
    /// How long until nothing is held back.
    pub over: Duration,
    /// Sequences at the beginning.
    pub from: u32,
}

/// One routing target: a rank of a worker.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its dense index.
    pub slot: Slot,
    /// The worker.
    pub worker: WorkerId,
    /// The rank inside the worker.
    pub rank: Rank,
    /// What it does.
    pub role: Role,
    /// What it holds at once.
    pub limits: Limits,
    /// Whether new requests may go to it; its health and its operators decide.
    pub available: bool,
    /// Since when it is back, unless it always was there.
    pub ramp: Option<Ramp>,
    /// What is in flight on it; lives on from table to table.
    pub account: Arc<Account>,
    /// How far what is known of its cache can be believed; lives on too.
    pub trust: Arc<Trust>,
}

/// What every placement reads of a target: a row beside those of the others of its pool.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Whose it is.
    pub slot: Slot,
    /// Whether it can be chosen and nothing is held back: what it is given depends on its limits alone.
    pub is_steady: bool,
    /// What it holds at once.
    pub limits: Limits,
    /// What is in flight on it.
    pub account: Arc<Account>,
    /// How far what is known of its cache can be believed.
    pub trust: Arc<Trust>,
}

impl Seat {
    fn of(target: &Target) -> Self {
        Self {
            slot: target.slot,
            is_steady: target.available && target.ramp.is_none(),
            limits: target.limits,
            account: Arc::clone(&target.account),
            trust: Arc::clone(&target.trust),
        }
    }
}

/// The fleet.
#[derive(Clone, Debug, Default)]
pub struct WorkerTable {
    targets: Vec<Option<Target>>,
    pools: Vec<Pool>,
    /// Of each pool.
    seats: Vec<Vec<Seat>>,
    rolls: Vec<Roll>,
    names: HashMap<Arc<str>, usize, foldhash::fast::RandomState>,
}

impl WorkerTable {
    /// A table of these targets. Pools name theirs by slot.
    pub fn new(targets: Vec<Target>, pools: Vec<Pool>) -> Self {
        let slots = targets.iter().map(|target| target.slot.index() + 1).max().unwrap_or(0);
        let mut by_slot = vec![None; slots];
        for target in targets {
            let place = target.slot.index();
            by_slot[place] = Some(target);
        }
        let mut names = HashMap::default();
        for (place, pool) in pools.iter().enumerate() {
            for name in pool.aliases.iter().chain([&pool.model]) {
                names.insert(Arc::clone(name), place);
            }
        }
        let of = |pool: &Pool| members(pool, &by_slot).map(Seat::of).collect();
        let (seats, rolls) = pools.iter().map(|pool| (of(pool), roll(pool, &by_slot))).unzip();
        Self { targets: by_slot, pools, seats, rolls, names }
    }

    /// One more than the highest slot in use.
    pub fn slots(&self) -> usize {
        self.targets.len()
    }

    /// The target in `slot`.
    pub fn get(&self, slot: Slot) -> Option<&Target> {
        self.targets.get(slot.index())?.as_ref()
    }

    /// Every target, ascending by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().flatten()
    }

    /// The pool that serves `model`, by its name or an alias.
    pub fn pool(&self, model: &str) -> Option<&Pool> {
        self.pools.get(*self.names.get(model)?)
    }

    /// The targets of `pool`, a pool of this table, ascending by slot.
    pub fn seats(&self, pool: &Pool) -> &[Seat] {
        self.names.get(&pool.model).map_or(&[], |place| &self.seats[*place])
    }

    /// Who the targets of `pool` are, a pool of this table.
    pub fn roll(&self, pool: &Pool) -> Roll {
        self.names.get(&pool.model).map_or(Roll(0), |place| self.rolls[*place])
    }

    /// Every pool.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }
}

fn members<'a>(pool: &'a Pool, targets: &'a [Option<Target>]) -> impl Iterator<Item = &'a Target> {
    pool.targets.iter().filter_map(|slot| targets.get(slot.index())?.as_ref())
}

/// O(targets), once for a table.
fn roll(pool: &Pool, targets: &[Option<Target>]) -> Roll {
    Roll(members(pool, targets).fold(0, |hash, target| {
        let seat = (u64::from(target.slot.0) << 32) | u64::from(target.rank.0);
        xxh64(target.worker.as_str().as_bytes(), hash ^ xxh64(&seat.to_le_bytes(), 0))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn now() -> Instant {
        Instant::now()
    }

    fn table(ids: &[&str], available: bool) -> WorkerTable {
        let targets = ids.iter().zip(0..).map(|(id, slot)| Target {
            slot: Slot(slot),
            worker: WorkerId::from(*id),
            rank: Rank(0),
            role: Role::Both,
            limits: Limits { blocks: None, sequences: 1 },
            available,
            ramp: None,
            account: Arc::default(),
            trust: Arc::default(),
        });
        let slots = (0..).map(Slot).take(ids.len()).collect();
        let block_size = BlockSize::new(16).unwrap();
        let pool = Pool { model: "m".into(), aliases: Vec::new(), block_size, targets: slots };
        WorkerTable::new(targets.collect(), vec![pool])
    }

    #[test]
    fn who_has_come_back_or_is_out_is_not_steady() {
        let ramp = Ramp { since: now(), over: Duration::from_secs(1), from: 1 };
        let steady = |available, ramp| {
            let mut targets: Vec<_> = table(&["a", "b"], available).iter().cloned().collect();
            targets[1].ramp = ramp;
            let pool = table(&["a", "b"], true).pools()[0].clone();
            let table = WorkerTable::new(targets, vec![pool]);
            let seats = table.seats(table.pool("m").unwrap());
            assert_eq!(seats.iter().map(|seat| seat.slot).collect::<Vec<_>>(), [Slot(0), Slot(1)]);
            seats.iter().map(|seat| seat.is_steady).collect::<Vec<_>>()
        };
        assert_eq!(steady(true, None), [true, true]);
        assert_eq!(steady(true, Some(ramp)), [true, false]);
        assert_eq!(steady(false, None), [false, false]);
    }

    #[test]
    fn a_pool_has_seats_of_those_who_are_there() {
        let pool = Pool { targets: [0, 1, 7].map(Slot).to_vec(), ..table(&["a"], true).pools()[0].clone() };
        let table = WorkerTable::new(table(&["a", "b"], true).iter().cloned().collect(), vec![pool.clone()]);
        assert_eq!(table.seats(&pool).len(), 2);
        let other = Pool { model: "other".into(), ..pool };
        assert!(table.seats(&other).is_empty() && table.roll(&other) == Roll(0));
    }

    #[test]
    fn a_roll_tells_who_is_there_and_not_how_they_are() {
        let roll = |ids, available| {
            let table = table(ids, available);
            table.roll(table.pool("m").unwrap())
        };
        assert_eq!(roll(&["a", "b"], true), roll(&["a", "b"], false));
        assert_ne!(roll(&["a", "b"], true), roll(&["b", "a"], true));
        assert_ne!(roll(&["a", "b"], true), roll(&["a"], true));
        assert_ne!(roll(&["ab", "c"], true), roll(&["a", "bc"], true));
    }
}
