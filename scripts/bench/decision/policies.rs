//! What each policy's choice costs before a large fleet: candidates, cost, pick and the note of what was chosen, where the
//! overlaps are given.

use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::blocks::hash_blocks;
use warmpath_core::ids::{RequestKey, SequenceHash, Slot};
use warmpath_core::observe::{Event, Observation, Side};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{Scheduler, Scratch};
use warmpath_core::shape::{Opening, Prompt, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{Blocks, Tier, Tokens};

use super::world::{BLOCK, World};
use crate::figures::{Figure, Report};
use crate::times::Times;

/// Blocks of the prompt, so few that noting it costs nothing beside choosing.
const PROMPT: u32 = 5;
/// Requests in flight on each worker, half of which have their first token.
const IN_FLIGHT: u64 = 4;
/// Microseconds that a choice may take at the median, under any policy and under the one that predicts.
const TARGETS: (f64, f64) = (10.0, 20.0);

/// Quarters of the fleet hold more and more of every prompt.
struct Quarters(Vec<SlotSet>);

impl Quarters {
    fn new(workers: u16) -> Self {
        Self((0..4).map(|quarter| (workers / 4 * quarter..workers).map(Slot).collect()).collect())
    }
}

impl PrefixIndex for Quarters {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
        let run = if prompt.is_empty() { Blocks(0) } else { Blocks(1) };
        self.0.iter().for_each(|holders| overlaps.push(run, Tier::Device, holders));
    }
}

/// A row for each policy.
pub(super) fn measure(report: &mut Report, world: &World, times: usize) {
    let workers = u16::try_from(world.workers()).expect("slots have 16 bits");
    let index = Quarters::new(workers);
    let prompt: Vec<u32> = (0..PROMPT * BLOCK + BLOCK / 2).collect();
    let mut hashes = Vec::new();
    hash_blocks(&world.root, &prompt, &[], &mut hashes);
    let len = Tokens(PROMPT * BLOCK + BLOCK / 2);
    let prompts = [Prompt::hashed(world.root, &hashes, len)];
    let shape = Shape { opening: Some(Opening(hashes[0].0)), ..world.shape(&prompts) };
    for name in PolicyName::ALL {
        let policy = |name| Policy::new(name, &Weights::default());
        let scheduler = Scheduler::new(policy(name), policy(PolicyName::LeastRequests), OnAllBusy::LeastLoaded);
        // Decisions are kept by default, with their reasons.
        let mut scratch = Scratch::new(1).aloud();
        let mut in_flight = Vec::new();
        for number in 0..IN_FLIGHT * u64::from(workers) {
            let own: Vec<_> = hashes.iter().map(|hash| SequenceHash(hash.0 ^ (number + 1))).collect();
            let prompts = [Prompt::hashed(world.root, &own, len)];
            let mut placement = world.place_under(&scheduler, (number, &prompts), &index, &mut scratch);
            if number % 2 == 0 {
                placement.reservation.first_token(Instant::now());
                let (at, request, slot) = (Instant::now(), RequestKey(number), placement.target.slot);
                scheduler.observe(&Observation { at, request, slot, event: Event::FirstToken });
            }
            in_flight.push(placement);
        }
        let (mut placing, mut choosing) = (Times::default(), Times::default());
        let (mut costs, mut rng) = (Vec::new(), StdRng::seed_from_u64(1));
        for round in 0..times + times / 10 {
            let start = Instant::now();
            let placement = world.place_under(&scheduler, (u64::MAX, &prompts), &index, &mut scratch);
            let placed = start.elapsed();
            let slot = placement.target.slot;
            drop(placement);
            let event = Event::Failed { side: Side::Client };
            scheduler.observe(&Observation { at: Instant::now(), request: RequestKey(u64::MAX), slot, event });
            let start = Instant::now();
            costs.clear();
            let chooser = scheduler.policy();
            let scored = chooser.cost.score(start, &shape, scratch.candidates(), &mut costs);
            std::hint::black_box(
                scored.ok().and_then(|()| chooser.choose(None, scratch.candidates(), &costs, &mut rng)),
            );
            let chosen = start.elapsed();
            if round >= times / 10 {
                placing.push(placed);
                choosing.push(chosen);
            }
        }
        let target = if name == PolicyName::Predicted { TARGETS.1 } else { TARGETS.0 };
        let figures = vec![
            Figure::once("choose_p50", "us", placing.percentile(50)).target(Some(target)),
            Figure::once("choose_p99", "us", placing.percentile(99)),
            Figure::once("score_p50", "us", choosing.percentile(50)),
            Figure::once("score_p99", "us", choosing.percentile(99)),
        ];
        report.row(format!("policy/{name}/{workers}_workers"), figures);
    }
}
