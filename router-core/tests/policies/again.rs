//! Decisions made again from what is kept of them, and schedulers in the place of others.

use warmpath_core::ids::{Roll, Slot};
use warmpath_core::observe::Enrolled;
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::Keeps;
use warmpath_core::units::{Blocks, Tier};

use super::{WORKERS, World, prompt};

/// From what is kept of a decision a scheduler that knows nothing else comes to the same choice, but for policies that
/// learn; other policies choose as if they had been asked.
#[test]
fn what_was_decided_can_be_decided_again() {
    for name in PolicyName::ALL {
        let mut world = World::new(name);
        world.index.0[2] = (3, Tier::Device);
        let learns = world.scheduler.policy().learn.is_some();
        let mut held = Vec::new();
        for number in 0..20 {
            let placed = world.place(&prompt(number % 5, 4), None);
            let (question, chance) = world.scratch.asked().unwrap().clone();
            let again = World::scheduler(name);
            let targets = (0..WORKERS).filter_map(|slot| world.workers.get(Slot(slot)));
            let enrolled = targets.map(|at| Enrolled { slot: at.slot, worker: &at.worker, rank: at.rank });
            again.enrol(Roll(1), enrolled);
            let told = again.review(world.start, (&question, &chance), world.scratch.candidates()).unwrap();
            if !learns {
                assert_eq!((told.chosen, told.decided_by), (placed.target.slot, placed.decided_by), "{name}");
            }
            let other = World::scheduler(PolicyName::LeastRequests);
            let other = other.review(world.start, (&question, &chance), world.scratch.candidates()).unwrap();
            let fewest = other.considered.iter().min_by_key(|at| at.candidate.requests).unwrap();
            assert_eq!((other.policy, other.chosen), (PolicyName::LeastRequests, fewest.candidate.slot));
            held.push(placed.reservation);
        }
    }
}

/// Round robin remembers whose turn it is, and prompts in flight count as cached wherever they were placed.
#[test]
fn a_successor_knows_what_is_in_flight_and_what_was_learned_where_it_is_set_alike() {
    let mut world = World::new(PolicyName::RoundRobin);
    let first = world.place(&prompt(1, 8), None);
    let keeps = |policies| Keeps { policies, histories: &[], sessions: true, sent: true };
    let kept = World::scheduler(PolicyName::RoundRobin).succeeding(&world.scheduler, keeps(&[PolicyName::RoundRobin]));
    let fresh = World::scheduler(PolicyName::RoundRobin).succeeding(&world.scheduler, keeps(&[]));
    let by_cache = World::scheduler(PolicyName::Kv).succeeding(&world.scheduler, keeps(&PolicyName::ALL));
    assert_eq!(first.target.slot, Slot(0));
    for (scheduler, slot, overlap) in [(kept, 1, 0), (fresh, 0, 7), (by_cache, 0, 7)] {
        world.scheduler = scheduler;
        let explained = world.explain(&prompt(1, 8), None);
        assert_eq!(explained.chosen, Slot(slot));
        assert_eq!(explained.considered[usize::from(slot)].candidate.overlap.total(), Blocks(overlap));
    }
    drop(first);
    assert_eq!(world.workers.get(Slot(0)).unwrap().account.read().requests, 0);
    assert_eq!(world.explain(&prompt(1, 8), None).considered[0].candidate.overlap.total(), Blocks(0));
}
