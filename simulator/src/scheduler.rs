//! vLLM's scheduler (v1) over a cache: a queue, the running requests, and one step at a time.

mod picture;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use foldhash::fast::FixedState;
use warmpath_core::count::real_len;

use super::blocks::{BlockEvent, CacheInUse};
use super::cache::Cache;
use super::clock::Ms;
use super::engine_config::{ConfigError, EngineConfig};
use super::job::{Job, Place};
use super::request::{FirstToken, Refused, RequestId, SimRequest, TokenOut};
use super::stats::{Levels, Totals};
use super::tiers::{Beside, Hierarchy, SharedTier};
use super::timing::{Chunk, StepLoad};

/// What one step did.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How long it lasts. Its tokens come at its end; the next step begins then.
    pub duration: Ms,
    /// The generated tokens, at most one a request, in order of admission.
    pub tokens: Vec<TokenOut>,
    /// What changed in the cache by the step's end, in the order in which it happened. vLLM's cache names a block when it
    /// is scheduled, before it is computed; SGLang's when it is.
    pub events: Vec<BlockEvent>,
}

/// A simulated engine. Deterministic: the same calls give the same results.
///
/// The number of waiting requests has no bound of its own, as in the real engine; whoever submits them bounds it.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    cache: Cache,
    waiting: BTreeMap<Place, Job>,
    /// In order of admission.
    running: Vec<Job>,
    places: HashMap<RequestId, Place, FixedState>,
    arrivals: u64,
    totals: Totals,
    load: StepLoad,
    scheduled: Levels,
    tiers: Option<Box<Hierarchy>>,
    /// Shared storage that no other engine refers to.
    own: Option<Box<SharedTier>>,
}

impl Engine {
    /// An engine with an empty cache. O(blocks).
    ///
    /// # Errors
    /// [`ConfigError`] if nothing could ever run.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let load = StepLoad { max_running: config.max_num_seqs, ..StepLoad::default() };
        let plan = config.tiers;
        let own = plan.map(|plan| plan.own_shared_pages).filter(|pages| *pages > 0);
        Ok(Self {
            tiers: plan.map(|plan| Box::new(Hierarchy::new(plan, config.block_size, config.seed))),
            own: plan
                .zip(own)
                .map(|(plan, pages)| Box::new(SharedTier::with(pages, plan.eviction, config.seed).untold())),
            cache: Cache::new(&config),
            config,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            places: HashMap::default(),
            arrivals: 0,
            totals: Totals::default(),
            load,
            scheduled: Levels::default(),
        })
    }

    /// Queues a request that arrives at `now`. O(prompt): names its blocks.
    ///
    /// # Errors
    /// [`Refused`] if it could never run, or if one of its name is here already.
    pub fn submit(&mut self, now: Ms, request: SimRequest) -> Result<(), Refused> {
        let mut own = self.own.take();
        let result = self.enqueue(now, request, own.as_deref_mut());
        self.own = own;
        result
    }

    /// As [`submit`](Self::submit), with the storage that the fleet shares instead of the engine's own.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(&mut self, now: Ms, request: SimRequest, shared: &mut SharedTier) -> Result<(), Refused> {
        self.enqueue(now, request, Some(shared))
    }

    fn enqueue(&mut self, now: Ms, request: SimRequest, shared: Beside<'_>) -> Result<(), Refused> {
        let (tokens, limit) = (request.prompt.len(), self.config.longest());
        if tokens == 0 {
            return Err(Refused::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(Refused::NoOutput);
        }
        if tokens > limit {
            return Err(Refused::TooLong { tokens, limit });
        }
        if self.places.contains_key(&request.id) {
            return Err(Refused::Duplicate { id: request.id });
        }
        let place = (request.priority, self.arrivals);
        self.arrivals += 1;
        self.places.insert(request.id, place);
        let queued = Job {
            id: request.id,
            place,
            sequence: self.cache.sequence(request.prompt, request.salt, request.adapter),
            seed: request.seed,
            stop: request.stop,
            max_tokens: request.max_tokens,
            generated: 0,
            computed: 0,
            cached: 0,
            scheduled: 0,
            submitted: now,
            first: None,
        };
        if let (Some(tiers), Some(shared)) = (&mut self.tiers, shared) {
            let found = self.cache.lookup(&queued.sequence, self.config.block_size.len());
            tiers.arrive(now, queued.id, &queued.sequence, found / self.config.block_size.len(), shared);
        }
        self.waiting.insert(place, queued);
        Ok(())
    }

    /// Ends a request early and frees its blocks, which stay cached. Returns false if there is none of this name.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
        if let Some(tiers) = &mut self.tiers {
            tiers.leave(id);
        }
        if self.waiting.remove(&place).is_none()
            && let Some(at) = self.running.iter().position(|request| request.id == id)
        {
            let mut job = self.running.remove(at);
            self.cache.finish(&mut job.sequence, job.computed);
        }
        self.totals.aborted += 1;
        true
    }

    /// Runs the step that begins at `now`; none while there is nothing to do. When it returns, the engine is as it is at
    /// the step's end: what finished in it is gone.
    pub fn step(&mut self, now: Ms) -> Option<Step> {
        let mut own = self.own.take();
        let step = self.step_beside(now, own.as_deref_mut());
        self.own = own;
        step
    }

    /// As [`step`](Self::step), with the storage that the fleet shares instead of the engine's own.
    pub fn step_with(&mut self, now: Ms, shared: &mut SharedTier) -> Option<Step> {
        self.step_beside(now, Some(shared))
    }

    fn step_beside(&mut self, now: Ms, mut shared: Beside<'_>) -> Option<Step> {
        if self.is_idle() {
            return None;
        }
        self.load.admitted = 0;
        self.load.cached_tokens = 0;
        if let Some(tiers) = &mut self.tiers {
            // What was generated by a request that was aborted, or a reset.
            tiers.absorb(now, self.cache.take_events(), 0, shared.as_deref_mut());
        }
        if let Some(budget) = self.schedule_running(now, shared.as_deref_mut()) {
            self.admit(now, budget, shared.as_deref_mut());
        }
        self.scheduled = self.levels();
        let duration = self.weigh(now);
        let tokens = self.finish_step(now, shared);
        let events = match &mut self.tiers {
            Some(tiers) => tiers.take_events(),
            None => self.cache.take_events(),
        };
        Some(Step { duration, tokens, events })
    }

    /// Whether no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Resets the cache, as vLLM's `/reset_prefix_cache` does. The event leaves with the next step.
    ///
    /// # Errors
    /// [`CacheInUse`] while any request runs.
    pub fn clear(&mut self) -> Result<(), CacheInUse> {
        self.cache.clear()
    }

    /// Gives the running requests their tokens and blocks, in order of admission. Returns the budget that is left, none
    /// if a request had to be preempted: then nothing is admitted in this step.
    fn schedule_running(&mut self, now: Ms, mut shared: Beside<'_>) -> Option<usize> {
        let mut budget = self.config.max_num_batched_tokens;
        let (mut at, mut preempted) = (0, false);
        while budget > 0
            && let Some(request) = self.running.get_mut(at)
        {
            let want = self.config.chunk(request.sequence.len() - request.computed).min(budget);
            let fits = self.cache.grow(&mut request.sequence, request.computed + want).is_ok();
            if fits || !self.config.realism.preemption {
                request.scheduled = want;
                budget -= want;
                at += 1;
                if let Some(tiers) = &mut self.tiers {
                    tiers.absorb(now, self.cache.take_events(), request.prompt_len(), shared.as_deref_mut());
                }
            } else {
                self.preempt(at);
                preempted = true;
            }
        }
        (!preempted).then_some(budget)
    }

    /// Sends the last of the running requests, of those from `from` on, back to the queue. With priorities it is the last
    /// of the lowest priority, which may be the one that asked for room; one that has its tokens for this step stays. The
    /// last is who was admitted last, which is who arrived last but where requests wait for storage.
    fn preempt(&mut self, from: usize) {
        let last = (from..self.running.len()).max_by_key(|&at| (self.running[at].place.0, at));
        let Some(at) = last else { return };
        let mut request = self.running.remove(at);
        self.cache.release(&mut request.sequence);
        request.computed = 0;
        self.totals.preemptions += 1;
        self.waiting.insert(request.place, request);
    }

    /// Admits from the front of the queue while there is room; skips only those that wait for storage.
    fn admit(&mut self, now: Ms, mut budget: usize, mut shared: Beside<'_>) {
        let size = self.config.block_size.len();
        let mut behind = Bound::Unbounded;
        while budget > 0
            && self.running.len() < self.config.max_num_seqs
            && let Some((&place, request)) = self.waiting.range_mut((behind, Bound::Unbounded)).next()
        {
            if let Some(tiers) = &mut self.tiers
                && !tiers.ready(now, request.id, &request.sequence)
            {
                behind = Bound::Excluded(place);
                continue;
            }
            let found = self.cache.lookup(&request.sequence, size);
            let below = self.tiers.as_ref().map_or(0, |tiers| tiers.below(now, &request.sequence, found / size));
            // One token is computed even where none would have to be: the next one comes from it.
            let cached = (found + below * size).min(request.sequence.len() - 1);
            let want = self.config.chunk(request.sequence.len() - cached);
            if want > budget && !self.config.chunked_prefill {
                break;
            }
            let want = want.min(budget);
            if self.cache.admit(&mut request.sequence, cached + want).is_err() {
                break;
            }
            if let Some(tiers) = &mut self.tiers {
                tiers.admitted(now, &request.sequence, (found / size, below), shared.as_deref_mut());
                tiers.absorb(now, self.cache.take_events(), request.prompt_len(), shared.as_deref_mut());
            }
            let Some(mut request) = self.waiting.remove(&place) else { break };
            (request.computed, request.cached, request.scheduled) = (cached, cached, want);
            budget -= want;
            self.count_admitted(now, &mut request, (cached, below * size));
            self.running.push(request);
        }
    }

    fn count_admitted(&mut self, now: Ms, request: &mut Job, (cached, loaded): (usize, usize)) {
        self.load.admitted += 1;
        self.load.cached_tokens += cached;
        if request.first.is_none() {
            request.first = Some(FirstToken { cached_tokens: cached, queued: now - request.submitted });
            if self.config.prefix_caching {
                self.totals.prefix_queries += request.sequence.len();
                self.totals.prefix_hits += cached;
                self.totals.loaded += loaded;
            }
        }
    }

    /// Sums up what the step at hand has to compute. Returns how long that and what it loads take together; or how long to
    /// wait where all requests wait for storage.
    fn weigh(&mut self, now: Ms) -> Ms {
        let load = &mut self.load;
        load.number += 1;
        load.chunks.clear();
        load.decodes.clear();
        load.running = self.running.len();
        load.emitting = 0;
        let mut emitting_context = 0;
        for request in self.running.iter().filter(|request| request.scheduled > 0) {
            if request.decodes() {
                load.decodes.push(request.sequence.len());
            } else {
                let free = if self.config.realism.hit_attention { 0 } else { request.cached };
                load.chunks.push(Chunk { tokens: request.scheduled, context: request.computed - free });
            }
            if request.emits() {
                load.emitting += 1;
                emitting_context += request.sequence.len();
            }
        }
        let capacity = f64::from(self.config.blocks) * f64::from(self.config.block_size.get());
        load.kv_use = (real_len(emitting_context) / capacity).min(1.0);
        let duration = self.config.duration(load);
        match &mut self.tiers {
            Some(tiers) if self.running.is_empty() => tiers.wait(now),
            Some(tiers) => tiers.overlapped(duration),
            None => duration,
        }
    }

    /// Ends the step: what reached its length gives a token, what gave its last is gone.
    fn finish_step(&mut self, now: Ms, mut shared: Beside<'_>) -> Vec<TokenOut> {
        let mut tokens = Vec::with_capacity(self.load.emitting);
        let (config, cache, places, totals) = (&self.config, &mut self.cache, &mut self.places, &mut self.totals);
        let tiers = &mut self.tiers;
        self.running.retain_mut(|request| {
            let (emits, decodes) = (request.emits(), request.decodes());
            request.computed += std::mem::take(&mut request.scheduled);
            if !decodes {
                cache.computed(&mut request.sequence, request.computed);
            }
            let prompt = request.prompt_len();
            let mut absorb = |cache: &mut Cache| {
                if let Some(tiers) = tiers {
                    tiers.absorb(now, cache.take_events(), prompt, shared.as_deref_mut());
                }
            };
            absorb(cache);
            if !emits {
                return true;
            }
            let out = request.generate(config);
            tokens.push(out);
            totals.generation_tokens += 1;
            if out.index == 0 {
                totals.prompt_tokens += request.sequence.len() - 1;
            }
            if out.finished.is_none() {
                return true;
            }
            totals.finished += 1;
            places.remove(&request.id);
            cache.finish(&mut request.sequence, request.computed);
            absorb(cache);
            false
        });
        tokens
    }
}

#[cfg(test)]
mod stress;

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use warmpath_core::units::BlockSize;

    use super::*;
    use crate::blocks::BlockPool;
    use crate::check::Replica;
    use crate::request::{FinishReason, output_token};
    use crate::stats::EngineStats;
    use crate::tiers::Tiers;
    use crate::timing::Timing;

    /// A small engine: blocks of 4, no null block, one millisecond a computed token.
    fn engine_with(blocks: u32, change: impl FnOnce(&mut EngineConfig)) -> Engine {
        let mut config = EngineConfig {
            block_size: BlockSize::new(4).unwrap(),
            blocks,
            null_block: false,
            timing: Timing::Linear { computed: Ms(1.0), cached: Ms(0.0) },
            ..EngineConfig::default()
        };
        change(&mut config);
        Engine::new(config).unwrap()
    }

    fn engine(blocks: u32) -> Engine {
        engine_with(blocks, |_| ())
    }

    fn request(id: u64, prompt: std::ops::Range<u32>, max_tokens: usize) -> SimRequest {
        SimRequest { seed: id, ..SimRequest::new(RequestId(id), prompt.collect::<Vec<_>>(), max_tokens) }
    }

    fn submit(engine: &mut Engine, requests: impl IntoIterator<Item = SimRequest>) {
        for request in requests {
            engine.submit(Ms::ZERO, request).unwrap();
        }
    }

    /// Steps until nothing is left to do.
    fn run(engine: &mut Engine) -> Vec<Step> {
        let mut now = Ms::ZERO;
        std::iter::from_fn(|| {
            let step = engine.step(now)?;
            now += step.duration;
            Some(step)
        })
        .collect()
    }

    fn tokens_of(steps: &[Step], id: u64) -> Vec<TokenOut> {
        steps.iter().flat_map(|step| &step.tokens).filter(|out| out.id == RequestId(id)).copied().collect()
    }

    fn running(engine: &Engine) -> Vec<u64> {
        engine.running.iter().map(|request| request.id.0).collect()
    }

    fn waiting(engine: &Engine) -> Vec<u64> {
        engine.waiting.values().map(|request| request.id.0).collect()
    }

    fn pool(engine: &Engine) -> &BlockPool {
        let Cache::Blocks { pool, .. } = &engine.cache else { panic!("vLLM's cache") };
        pool
    }

    fn free(engine: &Engine) -> Vec<u32> {
        pool(engine).free_blocks().map(|id| id.0).collect()
    }

    fn chunks(engine: &Engine) -> Vec<(usize, usize)> {
        engine.load.chunks.iter().map(|chunk| (chunk.tokens, chunk.context)).collect()
    }

    #[test]
    fn a_lone_request_gets_a_token_a_step_and_is_gone_after_its_last() {
        let mut engine = engine(10);
        engine.submit(Ms(2.0), request(1, 0..10, 3)).unwrap();
        let first = engine.step(Ms(5.0)).unwrap();
        assert_eq!(first.duration, Ms(10.0));
        let told = Some(FirstToken { cached_tokens: 0, queued: Ms(3.0) });
        let token = |index| output_token(1, index, &(0..32_000));
        assert_eq!(
            first.tokens,
            [TokenOut { id: RequestId(1), token: token(0), index: 0, first: told, finished: None }]
        );
        let rest = run(&mut engine);
        assert_eq!(rest.iter().map(|step| step.duration).collect::<Vec<_>>(), [Ms(1.0), Ms(1.0)]);
        let [second, third] = tokens_of(&rest, 1)[..] else { panic!("two more tokens") };
        assert_eq!((second.token, second.first, second.finished), (token(1), None, None));
        assert_eq!((third.token, third.index, third.finished), (token(2), 2, Some(FinishReason::Length)));
        assert!(engine.is_idle());
        assert_eq!(engine.step(Ms(9.0)), None);
    }

    #[test]
    fn a_long_prompt_is_computed_in_chunks_beside_the_decodes() {
        let mut engine = engine_with(20, |config| config.max_num_batched_tokens = 8);
        submit(&mut engine, [request(1, 0..4, 4), request(2, 100..110, 1)]);
        let mut seen = Vec::new();
        while let Some(step) = engine.step(Ms::ZERO) {
            seen.push((chunks(&engine), engine.load.decodes.clone(), step.tokens.len()));
        }
        let expected =
            [(vec![(4, 0), (4, 0)], vec![], 1), (vec![(6, 4)], vec![5], 2), (vec![], vec![6], 1), (vec![], vec![7], 1)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_threshold_keeps_one_long_prompt_from_taking_the_whole_step() {
        let mut engine = engine_with(20, |config| config.long_prefill_token_threshold = 6);
        submit(&mut engine, [request(1, 0..14, 1), request(2, 100..104, 1)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(chunks(&engine), [(6, 0), (4, 0)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(chunks(&engine), [(6, 6)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((chunks(&engine), engine.is_idle()), (vec![(2, 12)], true));
    }

    #[test]
    fn without_chunks_a_prompt_waits_for_a_step_that_has_room_for_all_of_it() {
        let mut engine = engine_with(20, |config| {
            config.chunked_prefill = false;
            config.max_num_batched_tokens = 8;
        });
        submit(&mut engine, [request(1, 0..4, 1), request(2, 100..105, 1), request(3, 200..202, 1)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((chunks(&engine), waiting(&engine)), (vec![(4, 0)], vec![2, 3]));
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(chunks(&engine), [(5, 0), (2, 0)]);
        let too_long = engine.submit(Ms::ZERO, request(4, 0..9, 1));
        assert_eq!(too_long, Err(Refused::TooLong { tokens: 9, limit: 8 }));
    }

    #[test]
    fn nobody_is_admitted_past_a_request_that_finds_no_room() {
        let mut engine = engine(4);
        submit(&mut engine, [request(1, 0..8, 2), request(2, 100..112, 1), request(3, 200..204, 1)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((running(&engine), waiting(&engine)), (vec![1], vec![2, 3]));
        engine.step(Ms::ZERO).unwrap();
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(engine.totals.finished, 3, "both fit once the first is gone");
    }

    #[test]
    fn no_more_run_than_may() {
        let mut engine = engine_with(20, |config| config.max_num_seqs = 2);
        submit(&mut engine, (1..=3).map(|id| request(id, 0..4, 2)));
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((running(&engine), waiting(&engine)), (vec![1, 2], vec![3]));
        let levels = engine.levels();
        assert_eq!((levels.running, levels.waiting), (2, 1));
    }

    /// Two requests of 8 prompt tokens in 6 blocks, run until the first needs a block that only the second can give.
    /// What nobody takes would grow for ever.
    #[test]
    fn of_storage_of_its_own_an_engine_has_nothing_to_tell() {
        let tiers = Tiers { host_pages: 50, own_shared_pages: 100, ..Tiers::default() };
        let mut engine = engine_with(40, |config| config.tiers = Some(tiers));
        submit(&mut engine, (0..20).map(|id| request(u64::from(id), 100 * id..100 * id + 24, 2)));
        run(&mut engine);
        let mut own = engine.own.take().unwrap();
        assert_eq!((own.keys().count(), own.take_events()), (100, vec![]));
    }

    fn until_preemption(engine: &mut Engine) {
        submit(engine, [request(1, 0..8, 8), request(2, 100..108, 8)]);
        for _ in 0..5 {
            engine.step(Ms::ZERO).unwrap();
        }
        assert_eq!((free(engine), engine.totals.preemptions), (vec![], 0));
        engine.step(Ms::ZERO).unwrap();
    }

    #[test]
    fn the_last_running_request_is_preempted_and_comes_back_with_what_was_left_of_it() {
        let mut engine = engine(6);
        until_preemption(&mut engine);
        assert_eq!((running(&engine), waiting(&engine), engine.totals.preemptions), (vec![1], vec![2], 1));
        let table: Vec<u32> = engine.running[0].sequence.table().iter().map(|id| id.0).collect();
        assert_eq!((table, free(&engine)), (vec![0, 1, 4, 5], vec![3, 2]), "it got the newest of the other's");
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((running(&engine), waiting(&engine)), (vec![1], vec![2]), "no room yet");
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(engine.totals.finished, 1);
        let again = engine.step(Ms::ZERO).unwrap();
        assert_eq!((chunks(&engine), engine.load.cached_tokens), (vec![(5, 8)], 8), "2 hits, then 5 of its 13 tokens");
        assert_eq!((again.tokens[0].index, again.tokens[0].first), (5, None), "its 6th token, not another first");
        let steps = run(&mut engine);
        assert_eq!(tokens_of(&steps, 2).len(), 2);
        let totals = engine.totals;
        assert_eq!((totals.prompt_tokens, totals.generation_tokens), (16, 16));
        assert_eq!((totals.prefix_queries, totals.prefix_hits), (16, 0), "a preempted request counts once");
    }

    #[test]
    fn a_step_that_preempted_admits_nobody() {
        let mut engine = engine_with(6, |config| {
            config.prefix_caching = false;
            config.long_prefill_token_threshold = 8;
        });
        until_preemption(&mut engine);
        assert_eq!((engine.load.admitted, waiting(&engine), free(&engine)), (0, vec![2], vec![3, 2]));
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((engine.load.admitted, running(&engine)), (1, vec![1, 2]), "a chunk of 8 had room all the time");
    }

    #[test]
    fn a_lower_priority_number_goes_first_and_is_preempted_last() {
        let mut engine = engine(6);
        let urgent = SimRequest { priority: -1, ..request(2, 100..108, 8) };
        submit(&mut engine, [request(1, 0..8, 8), urgent]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(running(&engine), [2, 1]);
        submit(&mut engine, [request(3, 200..208, 8), SimRequest { priority: -1, ..request(4, 300..308, 8) }]);
        assert_eq!(waiting(&engine), [4, 3]);
        for _ in 0..5 {
            engine.step(Ms::ZERO).unwrap();
        }
        assert_eq!((running(&engine), waiting(&engine)), (vec![2], vec![4, 1, 3]));
    }

    #[test]
    fn a_request_of_low_priority_preempts_itself_rather_than_one_that_matters_more() {
        let mut engine = engine(6);
        submit(&mut engine, [request(1, 0..8, 8)]);
        engine.step(Ms::ZERO).unwrap();
        submit(&mut engine, [SimRequest { priority: -1, ..request(2, 100..108, 8) }]);
        while engine.totals.preemptions == 0 {
            engine.step(Ms::ZERO).unwrap();
        }
        assert_eq!((running(&engine), waiting(&engine)), (vec![2], vec![1]));
    }

    #[test]
    fn generated_tokens_become_cached_blocks_for_the_next_turn() {
        let mut engine = engine(20);
        submit(&mut engine, [request(1, 0..6, 7)]);
        let turn = run(&mut engine);
        let mut prompt: Vec<u32> = (0..6).collect();
        prompt.extend(tokens_of(&turn, 1).iter().map(|out| out.token));
        prompt.extend([900, 901, 902]);
        submit(&mut engine, [SimRequest::new(RequestId(2), prompt, 1)]);
        let next = engine.step(Ms::ZERO).unwrap();
        let told = next.tokens[0].first.unwrap();
        assert_eq!(told.cached_tokens, 12, "of 13 tokens the last was never computed");
        assert_eq!(next.duration, Ms(4.0));
        assert_eq!((engine.totals.prefix_queries, engine.totals.prefix_hits), (22, 12));
    }

    #[test]
    fn a_hit_shortens_the_prefill_and_never_the_decode() {
        let mut engine = engine_with(200, |config| config.timing = "roofline:8b-h100".parse().unwrap());
        let mut times = Vec::new();
        for id in [1, 2] {
            submit(&mut engine, [SimRequest { seed: 1, ..request(id, 0..500, 40) }]);
            let steps = run(&mut engine);
            times.push((steps[0].duration, steps[1..].iter().map(|step| step.duration).sum::<Ms>()));
        }
        let [(cold, decode), (warm, decode_after_hit)] = times[..] else { panic!("two requests") };
        assert!(warm < cold);
        assert_eq!(decode, decode_after_hit);
    }

    #[test]
    fn blocks_are_announced_by_the_step_that_schedules_them() {
        let mut engine = engine_with(20, |config| config.max_num_batched_tokens = 8);
        submit(&mut engine, [request(1, 0..14, 1)]);
        let steps = run(&mut engine);
        let stored: Vec<Vec<usize>> = steps
            .iter()
            .map(|step| {
                step.events
                    .iter()
                    .map(|event| match event {
                        BlockEvent::Stored { hashes, .. } => hashes.len(),
                        BlockEvent::Removed { .. } | BlockEvent::Cleared => panic!("only stores"),
                    })
                    .collect()
            })
            .collect();
        assert_eq!(stored, [[2], [1]], "one event a request and step");
    }

    #[test]
    fn without_prefix_caching_nothing_is_hit_announced_or_counted() {
        let mut engine = engine_with(20, |config| config.prefix_caching = false);
        submit(&mut engine, (1..=2).map(|id| request(id, 0..12, 5)));
        let steps = run(&mut engine);
        assert!(steps.iter().all(|step| step.events.is_empty()));
        assert_eq!(tokens_of(&steps, 2)[0].first.unwrap().cached_tokens, 0);
        assert_eq!((engine.totals.prefix_queries, engine.totals.prefix_hits), (0, 0));
    }

    #[test]
    fn a_reset_waits_for_nothing_running_and_is_announced_by_the_next_step() {
        let mut engine = engine(20);
        submit(&mut engine, [request(1, 0..9, 2)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!(engine.clear(), Err(CacheInUse { used: 3 }));
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((engine.clear(), engine.cached().count()), (Ok(()), 0));
        submit(&mut engine, [request(2, 0..9, 1)]);
        let step = engine.step(Ms::ZERO).unwrap();
        assert_eq!(step.events[0], BlockEvent::Cleared);
        assert!(matches!(step.events[1..], [BlockEvent::Stored { .. }]));
        assert_eq!(step.tokens[0].first.unwrap().cached_tokens, 0);
    }

    #[test]
    fn an_aborted_request_is_gone_at_once_wherever_it_is() {
        let mut engine = engine_with(20, |config| config.max_num_seqs = 1);
        submit(&mut engine, [request(1, 0..8, 50), request(2, 100..108, 50)]);
        engine.step(Ms::ZERO).unwrap();
        assert!(engine.abort(RequestId(2)), "waiting");
        assert!(engine.abort(RequestId(1)), "running");
        assert!(!engine.abort(RequestId(1)));
        let EngineStats { levels, totals, .. } = engine.stats();
        assert_eq!((totals.aborted, totals.finished, levels.kv_usage, engine.is_idle()), (2, 0, 0.0, true));
        submit(&mut engine, [request(1, 0..8, 1)]);
        assert_eq!(engine.step(Ms::ZERO).unwrap().tokens[0].first.unwrap().cached_tokens, 4, "its blocks stay cached");
    }

    #[test]
    fn a_stop_token_ends_a_request_and_is_given_out() {
        let mut engine = engine(20);
        let stop = output_token(1, 2, &(0..32_000));
        submit(&mut engine, [SimRequest { stop: vec![7, stop], ..request(1, 0..8, 50) }]);
        let tokens = tokens_of(&run(&mut engine), 1);
        assert_eq!((tokens.len(), tokens[2].token, tokens[2].finished), (3, stop, Some(FinishReason::Stop)));
    }

    #[test]
    fn a_request_ends_where_the_engine_can_hold_no_more() {
        let mut engine = engine(4);
        submit(&mut engine, [request(1, 0..10, 1000)]);
        let steps = run(&mut engine);
        assert_eq!(tokens_of(&steps, 1).last().unwrap().finished, Some(FinishReason::Length));
        assert_eq!(steps.len(), 6, "16 tokens fill its 4 blocks");
        submit(&mut engine, [request(2, 0..16, 1000)]);
        assert_eq!(run(&mut engine).len(), 1, "the longest prompt still gets its first token");
    }

    #[test]
    fn what_can_never_run_is_refused_with_the_reason() {
        let mut engine = engine(4);
        let refused = |engine: &mut Engine, request| engine.submit(Ms::ZERO, request).unwrap_err().to_string();
        assert_eq!(
            refused(&mut engine, request(1, 0..17, 1)),
            "the prompt has 17 tokens and this engine can hold 16 at most"
        );
        assert_eq!(refused(&mut engine, request(1, 0..0, 1)), "the prompt is empty");
        assert_eq!(refused(&mut engine, request(1, 0..4, 0)), "max_tokens must be at least 1");
        submit(&mut engine, [request(1, 0..4, 1)]);
        assert_eq!(refused(&mut engine, request(1, 0..4, 1)), "request 1 is queued or runs already");
        assert_eq!(engine.stats().levels.waiting, 1);
    }

    #[test]
    fn cache_use_counts_the_contexts_of_those_who_emit() {
        let mut engine = engine(10);
        submit(&mut engine, [request(1, 0..10, 2), request(2, 0..10, 2)]);
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((engine.load.emitting, engine.load.kv_use), (2, 0.5), "2 × 10 of 40, the shared ones twice");
        engine.step(Ms::ZERO).unwrap();
        assert_eq!((engine.load.decodes.as_slice(), engine.load.kv_use), ([11, 11].as_slice(), 0.55));
    }

    #[test]
    fn two_engines_name_equal_blocks_differently() {
        let names = |seed| {
            let mut engine = engine_with(20, |config| config.seed = seed);
            submit(&mut engine, [request(1, 0..9, 1)]);
            run(&mut engine);
            engine.cached().map(|(hash, _)| hash).collect::<Vec<_>>()
        };
        let (one, two) = (names(1), names(2));
        assert_eq!((one.len(), two.len()), (2, 2));
        assert!(one.iter().all(|hash| !two.contains(hash)));
    }

    /// A random workload under pressure: shared prefixes, priorities, aborts and resets. Checks every invariant after
    /// every step; returns all steps.
    fn stress(seed: u64) -> (Vec<Step>, EngineStats) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut engine = engine_with(20, |config| {
            config.null_block = true;
            config.max_num_seqs = 6;
            config.chunked_prefill = seed.is_multiple_of(2);
            config.max_num_batched_tokens = if config.chunked_prefill { 16 } else { 64 };
            config.long_prefill_token_threshold = if seed.is_multiple_of(3) { 7 } else { 0 };
        });
        let (mut replica, mut steps, mut now) = (Replica::default(), Vec::new(), Ms::ZERO);
        for id in 0..400 {
            let family = rng.random_range(0..4) * 1000;
            let length = rng.random_range(1..=16);
            let mut wanted = request(id, family..family + length, rng.random_range(1..40));
            wanted.priority = rng.random_range(0..2);
            wanted.salt = rng.random_bool(0.2).then(|| "salt".into());
            engine.submit(now, wanted).unwrap();
            if rng.random_bool(0.1) {
                engine.abort(RequestId(rng.random_range(id.saturating_sub(3)..=id)));
            }
            if rng.random_bool(0.05) {
                assert_eq!(engine.clear().is_ok(), engine.running.is_empty());
            }
            for _ in 0..rng.random_range(0..30) {
                let Some(step) = engine.step(now) else { break };
                now += step.duration;
                assert!(step.duration > Ms::ZERO, "every step computes something");
                let owners: Vec<_> = engine.running.iter().map(|request| &request.sequence).collect();
                engine.cache.check(&mut replica, &step.events, &owners);
                steps.push(step);
            }
        }
        steps.extend(run(&mut engine));
        (steps, engine.stats())
    }

    #[test]
    fn under_pressure_every_invariant_holds_and_every_request_ends() {
        for seed in 0..6 {
            let (steps, stats) = stress(seed);
            let EngineStats { levels, totals, .. } = stats;
            assert_eq!(totals.finished + totals.aborted, 400, "seed {seed}");
            assert_eq!(levels, Levels::default(), "seed {seed}");
            assert!(totals.preemptions > 20 && totals.prefix_hits > 0, "seed {seed} exerts no pressure: {stats:?}");
            let mut next: HashMap<RequestId, usize> = HashMap::new();
            for out in steps.iter().flat_map(|step| &step.tokens) {
                let index = next.entry(out.id).or_default();
                assert_eq!((out.index, out.first.is_some()), (*index, *index == 0), "seed {seed}");
                assert_eq!(out.token, output_token(out.id.0, out.index, &(0..32_000)), "seed {seed}");
                *index += 1;
            }
        }
    }

    #[test]
    fn the_same_calls_give_the_same_steps() {
        assert_eq!(stress(1), stress(1));
        assert_ne!(stress(1).1, stress(2).1);
    }

    #[test]
    fn with_constant_service_and_random_arrivals_the_mean_wait_is_that_of_an_m_d_1_queue() {
        let mut engine = engine_with(8, |config| {
            config.max_num_seqs = 1;
            config.prefix_caching = false;
        });
        let (service, load, requests) = (4.0, 0.7, 400_000);
        let mut rng = StdRng::seed_from_u64(1);
        let (mut arrival, mut now, mut waited) = (0.0, Ms::ZERO, 0.0);
        for id in 0..requests {
            arrival -= (1.0 - rng.random::<f64>()).ln() * service / load;
            while now.0 < arrival
                && let Some(step) = engine.step(now)
            {
                waited += step.tokens[0].first.unwrap().queued.0;
                now += step.duration;
            }
            now = Ms(now.0.max(arrival));
            engine.submit(Ms(arrival), request(id, 0..4, 1)).unwrap();
        }
        let (mean, expected) = (waited / f64::from(400_000), load * service / (2.0 * (1.0 - load)));
        assert!((mean / expected - 1.0).abs() < 0.02, "mean wait {mean}, expected {expected}");
    }
}
