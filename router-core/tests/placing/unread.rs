//! Requests that nobody has read: they have a worker like others, and teach nothing.

use warmpath_core::cost::Weight;
use warmpath_core::observe::{Learn, Observation};
use warmpath_core::session::{SessionRule, Sessions};
use warmpath_core::shape::AffinityKey;

use super::*;

/// Takes note of whom it hears of.
#[derive(Default)]
struct Heard(Mutex<Vec<RequestKey>>);

impl Learn for Heard {
    fn observe(&self, observation: &Observation) {
        self.0.lock().unwrap().push(observation.request);
    }
}

/// Where this request of a session goes.
fn placed(world: &mut World, key: u64, unread: bool) -> u16 {
    let size = BlockSize::new(4).unwrap();
    let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
    let prompt = [Prompt::of(root, &[1, 2, 3, 4, 5])];
    let shape = Shape { affinity: Some(AffinityKey(7)), unread, ..Shape::of(Tokens(5), size) };
    let prompts = if unread { &[][..] } else { &prompt };
    let request = Request { key: RequestKey(key), shape, prompts, texts: &[], avoid: &world.avoid };
    let fleet = (&world.workers, world.workers.pool("m").unwrap());
    let placed = world.scheduler.place(Instant::now(), &request, &world.index, fleet, &mut world.scratch).unwrap();
    placed.target.slot.0
}

#[test]
fn policies_hear_nothing_of_a_request_that_nobody_has_read_but_those_that_take_turns() {
    let mut world = World::new(PolicyName::Kv, 3, roomy());
    let (heard, weights) = (Arc::new(Heard::default()), Weights::default());
    let policy = Policy { learn: Some(heard.clone()), ..Policy::new(PolicyName::Kv, &weights) };
    let turns = Policy::new(PolicyName::RoundRobin, &weights);
    world.scheduler = Scheduler::new(policy, turns, OnAllBusy::Error);
    let slots: Vec<u16> = (1..=4).map(|key| placed(&mut world, key, true)).collect();
    assert_eq!((slots, heard.0.lock().unwrap().as_slice()), (vec![0, 1, 2, 0], &[][..]));
    placed(&mut world, 5, false);
    assert_eq!(heard.0.lock().unwrap().as_slice(), [RequestKey(5)]);
}

fn world_of_sessions(policy: PolicyName) -> World {
    let mut world = World::new(policy, 2, roomy());
    let rule = SessionRule { weight: Weight::try_from(1.0).unwrap(), ttl: Duration::from_secs(60), sessions_max: 100 };
    world.scheduler = world.scheduler.with_sessions(Sessions::new(rule));
    world
}

/// Clients of `/v1/responses` and `/v1/messages` send nothing else.
#[test]
fn a_session_of_which_nothing_is_read_begins_where_its_first_request_went_and_stays_there() {
    let mut world = world_of_sessions(PolicyName::RoundRobin);
    world.avoid = [Slot(0)].into_iter().collect();
    assert_eq!(placed(&mut world, 1, true), 1);
    world.avoid = [Slot(1)].into_iter().collect();
    assert_eq!(placed(&mut world, 2, true), 0);
    world.avoid = SlotSet::new();
    assert_eq!([3, 4, 5].map(|key| placed(&mut world, key, true)), [1; 3]);
}

#[test]
fn a_session_stays_where_its_prompts_went() {
    let mut world = world_of_sessions(PolicyName::LeastRequests);
    world.avoid = [Slot(0)].into_iter().collect();
    assert_eq!(placed(&mut world, 1, false), 1);
    world.avoid = [Slot(1)].into_iter().collect();
    assert_eq!(placed(&mut world, 2, true), 0);
    world.avoid = SlotSet::new();
    assert_eq!(placed(&mut world, 3, false), 1);
}
