//! The queue as its callers see it, and against any sequence of what may happen to it.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a small world may panic, and needs some origin of time"
)]

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use warmpath_core::queue::{Choice, Entry, Lane, Queue, Refusal, Rules, Ticket};
use warmpath_core::shape::{Class, TenantId};
use warmpath_core::units::Tokens;

const FAR: Duration = Duration::from_secs(3_600);

fn rules(waiting: usize, of_tenant: usize) -> Rules {
    Rules { waiting, of_tenant, weights: [16, 4, 1].map(|weight| NonZeroU32::new(weight).unwrap()) }
}

struct World {
    queue: Queue,
    start: Instant,
}

impl World {
    fn new(waiting: usize, of_tenant: usize) -> Self {
        Self { queue: Queue::new(rules(waiting, of_tenant)), start: Instant::now() }
    }

    fn entry(&self, class: i32, tenant: u32) -> Entry {
        let (tenant, choice) = (Some(TenantId(tenant)), Choice::ANY);
        Entry { class: Class(class), tenant, expires: self.start + FAR, returned: false, choice }
    }

    fn enter(&mut self, class: i32, tenant: u32) -> Ticket {
        self.queue.enter(self.start, self.entry(class, tenant)).unwrap().ticket
    }

    /// Admits whoever is next, with so many tokens.
    fn serve(&mut self, tokens: u32) -> Ticket {
        let first = self.queue.first().unwrap();
        self.queue.admit(self.start, first, Tokens(tokens)).unwrap();
        first
    }
}

/// Of ten tokens each, 16 go to high, 4 to normal, 1 to low; among equals the more urgent goes first.
#[test]
fn bands_are_served_by_weight() {
    let mut world = World::new(1_000, 1_000);
    let mut lanes = HashMap::new();
    for _ in 0..100 {
        for (class, lane) in [(1, 'l'), (0, 'n'), (-1, 'h')] {
            lanes.insert(world.enter(class, 1), lane);
        }
    }
    let order: String = (0..42).map(|_| lanes[&world.serve(10)]).collect();
    assert_eq!(order, "hnlhhhhnhhhhnhhhhnhhhhnlhhhhnhhhhnhhhhnhhh");
    assert_eq!(["h", "n", "l"].map(|lane| order.matches(lane).count()), [32, 8, 2]);
}

#[test]
fn an_urgent_request_that_comes_new_is_next() {
    let mut world = World::new(100, 100);
    for _ in 0..20 {
        world.enter(0, 1);
        world.enter(3, 1);
    }
    for _ in 0..10 {
        world.serve(1_000);
    }
    let urgent = world.enter(-5, 2);
    assert_eq!(world.serve(1), urgent);
}

#[test]
fn what_was_admitted_before_goes_first_and_in_its_own_order() {
    let mut world = World::new(2, 2);
    let new = [world.enter(-1, 1), world.enter(0, 1)];
    let returned = Entry { returned: true, choice: Choice::some(7), ..world.entry(7, 1) };
    let back = [(); 2].map(|()| world.queue.enter(world.start, returned).unwrap().ticket);
    assert_eq!(world.queue.enter(world.start, returned), Err(Refusal::Full));
    assert_eq!((world.queue.lengths(), but_of(&mut world, &[returned.choice])), ([2, 1, 1, 0], Some(new[0])));
    assert_eq!([(); 4].map(|()| world.serve(1)), [back[0], back[1], new[0], new[1]]);
}

#[test]
fn a_full_queue_refuses_and_a_tenants_own_share_comes_first() {
    let mut world = World::new(3, 2);
    for _ in 0..2 {
        world.enter(0, 1);
    }
    let enter = |world: &mut World, class, tenant| world.queue.enter(world.start, world.entry(class, tenant));
    assert_eq!(enter(&mut world, -9, 1), Err(Refusal::TenantFull));
    enter(&mut world, 1, 2).unwrap();
    assert!(world.queue.is_full());
    assert_eq!(enter(&mut world, 1, 3), Err(Refusal::Full));
    assert_eq!(enter(&mut world, 0, 1), Err(Refusal::TenantFull));
}

#[test]
fn the_urgent_displace_the_last_of_the_least_urgent() {
    let mut world = World::new(4, 4);
    let low = [world.enter(5, 1), world.enter(1, 2)];
    let normal = [world.enter(0, 1), world.enter(0, 2)];
    let mut displaced = |class| world.queue.enter(world.start, world.entry(class, 3)).map(|entered| entered.displaced);
    assert_eq!([displaced(0), displaced(0), displaced(0)], [Ok(Some(low[1])), Ok(Some(low[0])), Err(Refusal::Full)]);
    assert!(displaced(-1).unwrap().is_some_and(|displaced| !normal.contains(&displaced)));
    assert_eq!(world.queue.lengths(), [0, 1, 3, 0]);
}

#[test]
fn whoever_has_waited_long_enough_expires_unless_it_is_being_tried() {
    let mut world = World::new(9, 9);
    let at = |millis| world.start + Duration::from_millis(millis);
    let [at_10, at_20, at_30] = [at(10), at(20), at(30)];
    let mut enter = |expires| world.queue.enter(world.start, Entry { expires, ..world.entry(0, 1) }).unwrap().ticket;
    let [late, early, middle] = [at_30, at_10, at_20].map(&mut enter);
    assert_eq!(world.queue.expire(at_10 - Duration::from_millis(1), None), None);
    assert_eq!(world.queue.expire(at_20, Some(early)), Some(middle));
    assert_eq!(world.queue.expire(at_20, Some(early)), None);
    assert_eq!([(); 2].map(|()| world.queue.expire(at_30, None)), [Some(early), Some(late)]);
    assert!(world.queue.is_empty() && !world.queue.withdraw(late));
}

#[test]
fn the_expected_wait_follows_the_pace_of_admissions() {
    let mut world = World::new(9, 9);
    let tickets: Vec<Ticket> = (0..4).map(|_| world.enter(0, 1)).collect();
    let expected = |world: &World, seconds| world.queue.expected_wait(world.start + Duration::from_secs(seconds));
    assert_eq!(expected(&world, 5), None);
    let waited = |world: &mut World, ticket: usize, seconds| {
        let at = world.start + Duration::from_secs(seconds);
        world.queue.admit(at, tickets[ticket], Tokens(1)).unwrap()
    };
    assert_eq!(waited(&mut world, 0, 10), (Lane::Normal, Duration::from_secs(10)));
    assert_eq!(waited(&mut world, 1, 12), (Lane::Normal, Duration::from_secs(12)));
    // Two seconds each, for two that wait and the one that asks.
    assert_eq!(expected(&world, 12), Some(Duration::from_secs(6)));
    // Nothing has moved for ten seconds.
    assert_eq!(expected(&world, 22), Some(Duration::from_secs(30)));
    waited(&mut world, 2, 22);
    assert_eq!(expected(&world, 22), Some(Duration::from_secs(6)));
    // The last one leaves; that nobody comes for an hour is no pace.
    assert!(world.queue.withdraw(tickets[3]));
    assert_eq!(expected(&world, 3_600), Some(Duration::from_secs(3)));
    world.enter(0, 1);
    assert_eq!(expected(&world, 3_600), Some(Duration::from_secs(6)));
}

/// Those of a sender that can go nowhere neither hold up its others nor change whose turn it is.
#[test]
fn whoever_may_go_elsewhere_is_found_behind_those_that_cannot_and_in_order() {
    let mut world = World::new(20, 20);
    let (adapter, other) = (Choice::some(1), Choice::some(2));
    let mut enter = |tenant, class, choice| {
        let entry = Entry { choice, ..world.entry(class, tenant) };
        world.queue.enter(world.start, entry).unwrap().ticket
    };
    let [a, b, c] = [enter(1, -1, adapter), enter(1, 0, adapter), enter(2, 0, other)];
    let [d, e] = [enter(1, 0, Choice::ANY), enter(1, -1, Choice::ANY)];
    assert_eq!(
        [but_of(&mut world, &[]), but_of(&mut world, &[adapter]), but_of(&mut world, &[other])],
        [a, e, a].map(Some)
    );
    assert_eq!(but_of(&mut world, &[adapter, other, Choice::ANY]), None);
    world.queue.withdraw(e);
    assert_eq!([but_of(&mut world, &[adapter]), but_of(&mut world, &[adapter, other])], [d, d].map(Some));
    world.queue.withdraw(d);
    assert_eq!(but_of(&mut world, &[adapter]), Some(c));
    assert_eq!([(); 3].map(|()| world.serve(1)), [a, b, c]);
}

#[test]
fn when_workers_serve_something_else_each_speaks_for_itself_until_it_is_told_among_whom_it_may_choose() {
    let mut world = World::new(9, 9);
    let (some, other) = (Choice::some(1), Choice::some(u64::MAX));
    let mut enter = |choice, returned| {
        let entry = Entry { choice, returned, ..world.entry(0, 1) };
        world.queue.enter(world.start, entry).unwrap().ticket
    };
    let [a, b, c, any] = [enter(some, false), enter(some, false), enter(some, true), enter(Choice::ANY, false)];
    assert_eq!(but_of(&mut world, &[some]), Some(any));
    world.queue.tell_apart();
    assert_eq!((but_of(&mut world, &[some]), world.queue.is_ahead_of(Choice::ANY)), (Some(c), true));
    world.queue.rechoose(c, other);
    assert_eq!(but_of(&mut world, &[other]), Some(a));
    world.queue.rechoose(a, other);
    assert_eq!([but_of(&mut world, &[other]), but_of(&mut world, &[some])], [b, c].map(Some));
    world.queue.rechoose(b, other);
    assert_eq!((but_of(&mut world, &[other]), world.queue.lengths()), (Some(any), [1, 0, 3, 0]));
    assert_eq!([(); 4].map(|()| world.serve(1)), [c, a, b, any]);
    assert!(!world.queue.rechoose(a, some));
    assert!(world.queue.is_empty() && !world.queue.is_ahead_of(some));
}

fn but_of(world: &mut World, passed_over: &[Choice]) -> Option<Ticket> {
    others(&mut world.queue, passed_over)
}

/// Who goes next in a round in which these were passed over.
fn others(queue: &mut Queue, passed_over: &[Choice]) -> Option<Ticket> {
    queue.passed_over.clear();
    passed_over.iter().for_each(|choice| queue.passed_over.add(*choice));
    queue.first_open()
}

/// What may happen to a queue.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter { class: i32, tenant: u32, returned: bool, choice: u64, patience_ms: u64 },
    Serve { tokens: u32 },
    Withdraw { which: usize },
    Rechoose { which: usize, choice: u64 },
    Wait { ms: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let enter = (-2..=2_i32, 0..4_u32, prop::bool::weighted(0.1), 0..3_u64, 1..500_u64).prop_map(
        |(class, tenant, returned, choice, patience_ms)| Step::Enter { class, tenant, returned, choice, patience_ms },
    );
    let step = prop_oneof![
        6 => enter,
        4 => (0..5_000_u32).prop_map(|tokens| Step::Serve { tokens }),
        1 => (0..64_usize).prop_map(|which| Step::Withdraw { which }),
        2 => (0..64_usize, 0..3_u64).prop_map(|(which, choice)| Step::Rechoose { which, choice }),
        1 => (1..60_u64).prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..300)
}

/// All that waits, by a model that only counts.
type Present = BTreeMap<Ticket, Entry>;

fn enter(queue: &mut Queue, now: Instant, entry: Entry, present: &mut Present) {
    let fresh = present.values().filter(|waiting| !waiting.returned).count();
    let of_tenant = present.values().filter(|waiting| !waiting.returned && waiting.tenant == entry.tenant).count();
    let less_urgent = |lane: Lane| present.values().any(|waiting| waiting.lane().index() > lane.index());
    match queue.enter(now, entry) {
        Ok(entered) => {
            if let Some(displaced) = entered.displaced {
                assert_eq!(fresh, 16);
                let lane = present.remove(&displaced).unwrap().lane();
                assert!(lane.index() > entry.lane().index());
                assert!(present.values().all(|waiting| waiting.lane().index() <= lane.index()));
            }
            assert_eq!(present.insert(entered.ticket, entry), None);
        }
        Err(Refusal::TenantFull) => assert!(!entry.returned && of_tenant == 6),
        Err(Refusal::Full) if entry.returned => assert_eq!(present.len() - fresh, 16),
        Err(other) => assert!(other == Refusal::Full && fresh == 16 && !less_urgent(entry.lane())),
    }
}

/// Whoever is passed over is of the choice that is; the round that the last of them began goes on until this is asked again.
fn of_choices(queue: &mut Queue, present: &Present) -> Result<(), TestCaseError> {
    let last = Choice::some(2);
    // What came and went since the round began.
    let in_round = queue.first_open();
    for choice in [Choice::ANY, Choice::some(1), last] {
        let has = |choice| present.values().any(|entry| entry.choice == choice);
        prop_assert_eq!(queue.is_ahead_of(choice), has(Choice::ANY) || has(choice));
        // Whoever is passed over is of that choice; and while anybody else waits, somebody is found.
        let other = others(queue, &[choice]);
        prop_assert_eq!(other.is_some(), present.values().any(|entry| entry.choice != choice));
        prop_assert!(other.is_none_or(|other| present[&other].choice != choice));
        prop_assert!(choice != last || other == in_round);
    }
    Ok(())
}

proptest! {
    /// Each enters once and leaves once; nobody waits beyond the bounds or the time; nobody is lost.
    #[test]
    fn what_enters_leaves_once(steps in steps()) {
        let start = Instant::now();
        let (mut queue, mut present, mut now) = (Queue::new(rules(16, 6)), Present::new(), start);
        others(&mut queue, &[Choice::some(2)]);
        for step in steps {
            match step {
                Step::Enter { class, tenant, returned, choice, patience_ms } => {
                    let choice = if choice == 0 { Choice::ANY } else { Choice::some(choice) };
                    let expires = now + Duration::from_millis(patience_ms);
                    let entry = Entry { class: Class(class), tenant: Some(TenantId(tenant)), expires, returned, choice };
                    enter(&mut queue, now, entry, &mut present);
                }
                Step::Serve { tokens } => {
                    prop_assert_eq!(queue.first().is_none(), present.is_empty());
                    if let Some(first) = queue.first() {
                        let left = queue.admit(now, first, Tokens(tokens));
                        prop_assert_eq!(left.map(|(lane, _)| lane), present.remove(&first).map(|entry| entry.lane()));
                        prop_assert_eq!(queue.admit(now, first, Tokens(tokens)), None);
                    }
                }
                Step::Withdraw { which } => {
                    let ticket = present.keys().nth(which).copied();
                    prop_assert!(ticket.is_none_or(|ticket| queue.withdraw(ticket) && !queue.withdraw(ticket)));
                    ticket.map(|ticket| present.remove(&ticket));
                }
                Step::Rechoose { which, choice } => {
                    let first = queue.first();
                    if let Some((ticket, entry)) = present.iter_mut().nth(which) {
                        entry.choice = if choice == 0 { Choice::ANY } else { Choice::some(choice) };
                        prop_assert!(queue.rechoose(*ticket, entry.choice));
                    }
                    prop_assert_eq!(queue.first(), first);
                }
                Step::Wait { ms } => now += Duration::from_millis(ms),
            }
            while let Some(expired) = queue.expire(now, None) {
                prop_assert!(present.remove(&expired).is_some_and(|entry| entry.expires <= now));
            }
            prop_assert!(present.values().all(|entry| entry.expires > now));
            prop_assert_eq!(queue.len(), present.len());
            let lane = |lane: Lane| present.values().filter(|entry| entry.lane() == lane).count();
            prop_assert_eq!(queue.lengths(), Lane::ALL.map(lane));
            prop_assert!(queue.len() <= 32 && queue.len() - queue.lengths()[0] <= 16);
            if let Some(returned) = present.iter().find(|(_, entry)| entry.returned) {
                prop_assert_eq!(queue.first(), Some(*returned.0));
            }
            of_choices(&mut queue, &present)?;
        }
        while let Some(first) = queue.first() {
            prop_assert!(queue.withdraw(first) && present.remove(&first).is_some());
        }
        prop_assert!(present.is_empty() && queue.is_empty());
    }

    /// Tenants that always wait differ by less than two of the largest requests in what they are given, whatever they ask
    /// for; and so do bands, once their weights are reckoned in.
    #[test]
    fn whoever_always_waits_gets_its_share(sizes in prop::collection::vec(1..10_000_u32, 12), rounds in 1..400_usize) {
        let mut world = World::new(1_000, 1_000);
        let mut owners: HashMap<Ticket, usize> = HashMap::new();
        let mut given = [0_u64; 12];
        // Twelve flows: four tenants in each band, each with requests of a size of its own.
        let enter = |world: &mut World, owners: &mut HashMap<Ticket, usize>, flow: usize| {
            let class = i32::try_from(flow / 4).unwrap() - 1;
            let ticket = world.enter(class, u32::try_from(flow).unwrap());
            owners.insert(ticket, flow);
        };
        for flow in (0..12).chain(0..12) {
            enter(&mut world, &mut owners, flow);
        }
        for _ in 0..rounds {
            let first = world.queue.first().unwrap();
            let flow = owners.remove(&first).unwrap();
            world.queue.admit(world.start, first, Tokens(sizes[flow])).unwrap();
            given[flow] += u64::from(sizes[flow]);
            enter(&mut world, &mut owners, flow);
        }
        let largest = |flows: std::ops::Range<usize>| u64::from(*sizes[flows].iter().max().unwrap());
        for band in 0..3 {
            let flows = band * 4..band * 4 + 4;
            let (least, most) = (given[flows.clone()].iter().min().unwrap(), given[flows.clone()].iter().max().unwrap());
            prop_assert!(most - least <= 2 * largest(flows), "{:?}", given);
        }
        let per_weight: Vec<u64> = [16, 4, 1].iter().zip(given.chunks(4)).map(|(weight, band)| band.iter().sum::<u64>() * 16 / weight).collect();
        let bound = 16 * 2 * largest(0..12);
        let (least, most) = (per_weight.iter().min().unwrap(), per_weight.iter().max().unwrap());
        prop_assert!(most - least <= bound, "{:?}", per_weight);
    }
}
