//! How far promises count, and what engines say of their load.

use warmpath_core::cost::Standing;
use warmpath_core::engine_load::Beyond;
use warmpath_core::ledger::Said;
use warmpath_core::trust::{Answered, Trust, ViewState};

use super::*;

fn trusted(world: &World, slot: u16) -> &Trust {
    &world.workers.get(Slot(slot)).unwrap().trust
}

/// What a view promises stays what is predicted; what it is worth decides and is reserved.
#[test]
fn a_promise_counts_by_how_far_it_is_believed_and_is_reported_as_it_is() {
    let mut world = World::new(PolicyName::Kv, 2, roomy());
    world.index = Holds(vec![2, 1]);
    let prompt: &[u32] = &[1, 2, 3, 4, 5, 6, 7, 8, 9];
    assert_eq!(world.place(&[prompt]).unwrap().target.slot, Slot(0));
    trusted(&world, 0).set_view(ViewState::Suspect);
    let seen: Vec<_> = world.scratch.candidates().iter().map(|c| (c.cached_tokens, c.new_tokens)).collect();
    assert_eq!(seen, [(Tokens(8), Tokens(1)), (Tokens(4), Tokens(5))]);
    let placement = world.place(&[prompt]).unwrap();
    assert_eq!(
        (placement.target.slot, placement.overlap_tokens, placement.new_tokens),
        (Slot(0), Tokens(8), Tokens(1))
    );
    let seen: Vec<_> = world.scratch.candidates().iter().map(|c| (c.cached_tokens, c.new_tokens)).collect();
    assert_eq!(seen, [(Tokens(4), Tokens(5)), (Tokens(4), Tokens(5))]);
    assert_eq!(placement.target.account.read().prefill_tokens, Tokens(5));
}

/// A view that is no longer believed loses its holder's prompts; where what was sent is known, they come back.
#[test]
fn a_target_whose_view_is_not_believed_goes_by_load_or_by_what_it_was_sent() {
    #[derive(Default)]
    struct Memory(Mutex<Vec<Slot>>);
    impl History for Memory {
        fn recall(&self, asked: Asked<'_>, known: &mut [Known]) {
            let blocks = asked.each().map(|(_, blocks)| u32::try_from(blocks.len()).unwrap()).sum();
            for slot in self.0.lock().unwrap().iter() {
                known[slot.index()].matched = Units(blocks);
            }
        }
        fn learn(&self, _now: Instant, slot: Slot, _asked: Asked<'_>) {
            self.0.lock().unwrap().push(slot);
        }
        fn forget(&self, slot: Slot) {
            self.0.lock().unwrap().retain(|known| *known != slot);
        }
        fn measure(&self, _slot: Slot) -> Measured {
            Measured::default()
        }
    }
    let prompt: &[u32] = &(0..17).collect::<Vec<_>>();
    let mut world = World::new(PolicyName::Kv, 2, roomy());
    world.index = Holds(vec![0, 4]);
    let memory = Arc::new(Memory::default());
    world.scheduler = Scheduler::new(
        Policy::new(PolicyName::Kv, &Weights::default()),
        Policy::new(PolicyName::LeastRequests, &Weights::default()),
        OnAllBusy::Error,
    )
    .with_sent(memory.clone());
    assert_eq!(world.place(&[prompt]).unwrap().target.slot, Slot(1));
    distrust(&world, 1, Tokens(17));
    let placement = world.place(&[prompt]).unwrap();
    assert_eq!((placement.target.slot, placement.overlap_tokens), (Slot(0), Tokens(0)));
    assert_eq!(*memory.0.lock().unwrap(), []);
    world.avoid.insert(Slot(0));
    let placement = world.place(&[prompt]).unwrap();
    assert_eq!((placement.target.slot, placement.overlap_tokens), (Slot(1), Tokens(16)));
    drop(placement);
    world.avoid = SlotSet::new();
    assert_eq!(*memory.0.lock().unwrap(), [Slot(1)]);
    let placement = world.place(&[prompt]).unwrap();
    let candidate = world.scratch.candidates()[1];
    assert_eq!((placement.target.slot, candidate.cached_tokens, candidate.new_tokens), (Slot(1), Tokens(8), Tokens(9)));
    world.scheduler.forget(Slot(1));
    assert_eq!(*memory.0.lock().unwrap(), []);
}

/// Its engine counts a token more in each of so many prompts than were hashed, until nobody believes its view.
fn distrust(world: &World, slot: u16, prompt: Tokens) {
    let now = Instant::now();
    let answered = Answered {
        sent: now,
        sender: None,
        prompt,
        promised: Tokens(0),
        counted: Some(Tokens(prompt.0 + 1)),
        reported: None,
        block_size: BlockSize::new(4).unwrap(),
    };
    (0..32).for_each(|_| trusted(world, slot).answered(now, &answered));
}

/// What a worker promises and nobody believes makes none of its requests short for policies that learn either.
#[test]
fn a_policy_that_learns_believes_no_more_than_the_one_that_decides() {
    for policy in [PolicyName::Predicted, PolicyName::Preble, PolicyName::Product] {
        let mut world = World::new(policy, 2, Limits { blocks: Some(Blocks(1_000_000)), sequences: 256 });
        world.index = Holds(vec![2_496, 0]);
        distrust(&world, 0, Tokens(10_000));
        let prompts = (0..20_u32).map(|at| (at * 10_000..(at + 1) * 10_000).collect::<Vec<_>>());
        let placed: Vec<_> = prompts.map(|prompt| world.place(&[&prompt]).unwrap()).collect();
        let there = placed.iter().filter(|placement| placement.target.slot == Slot(0)).count();
        assert!((8..=12).contains(&there), "{policy}: {there} of 20");
    }
}

/// Others' requests count where they are, fade, and never make anybody full: a metric that is stuck stops nothing.
#[test]
fn what_engines_say_corrects_the_load_and_never_closes_a_worker() {
    let mut world = World::new(PolicyName::LeastRequests, 2, Limits { blocks: Some(Blocks(100)), sequences: 2 });
    let said = Said { running: 50, waiting: 50, blocks: Some(Blocks(1000)) };
    let account = world.workers.get(Slot(0)).unwrap().account.clone();
    (0..2).for_each(|_| account.report(Instant::now(), said, InFlight::default()));
    let placement = world.place(&[&[1, 2, 3, 4, 5]]).unwrap();
    assert_eq!(placement.target.slot, Slot(1));
    let busy = world.scratch.candidates()[0];
    assert_eq!((busy.standing, busy.active_slots, busy.requests, busy.waiting), (Standing::Open, 100, 100, 50));
    assert_eq!((busy.active_blocks, busy.total_blocks), (Blocks(1000), Blocks(100)));
    world.avoid.insert(Slot(1));
    let alone = world.place(&[&[1, 2, 3, 4, 5]]).unwrap();
    assert_eq!((alone.target.slot, alone.decided_by), (Slot(0), DecidedBy::Policy));
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(account.beyond(later, Duration::from_secs(5)), Beyond::default());
}
