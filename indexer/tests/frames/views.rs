//! Recorded streams through view and index: the index ends where the engine's cache ended.

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::decode;
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::{Applied, ViewSettings};

use crate::recordings::{Prompt, prompts, recording};

struct Engine {
    index: Arc<ConcurrentIndex>,
    writer: Writer<Chains>,
    pool: Namespace,
    sum: Applied,
}

impl Engine {
    fn new(block_size: u32) -> Self {
        let pool = Namespace::plain("tiny", BlockSize::new(block_size).expect("not 0"));
        let index = Arc::new(ConcurrentIndex::new(10_000));
        let settings = ViewSettings { pool: pool.clone(), seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let writer = index.writer(Slot(0), &settings);
        Self { index, writer, pool, sum: Applied::default() }
    }

    fn apply(&mut self, payload: &[u8]) {
        self.sum += self.writer.apply(&decode(payload).expect("a recorded frame").events);
    }

    fn overlap(&self, prompt: &Prompt) -> u32 {
        let namespace = Namespace {
            adapter: (prompt.model != "tiny").then(|| prompt.model.as_str().into()),
            salt: prompt.salt.as_deref().map(Into::into),
            ..self.pool.clone()
        };
        let mut hashes = Vec::new();
        hash_blocks(&Root::new(&namespace, DEFAULT_ROOT_SEED), &prompt.ids, &[], &mut hashes);
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(&hashes, &mut overlaps);
        overlaps.of(Slot(0)).total().0
    }
}

#[test]
fn every_block_is_accounted_for() {
    for (folder, size, reported) in
        [("vllm-0.20.2-array-int64-block16", 16, 0), ("vllm-0.32.0-map-int64-block32", 32, 3)]
    {
        let mut engine = Engine::new(size);
        for message in recording(folder) {
            engine.apply(&message.payload);
        }
        let Applied { stored, copies, removed, .. } = engine.sum;
        // Nothing refused, nothing unknown.
        let expected = Applied { stored, copies, removed, reported, ..Applied::default() };
        assert_eq!(engine.sum, expected, "{folder}");
        assert!(copies >= 3 && removed > 200, "{:?}", engine.sum);
        // After the reset at the end the cache holds the three blocks of one prompt.
        assert_eq!((engine.writer.names(), engine.index.entries(Slot(0)), engine.index.len()), (3, 3, 3));
        for prompt in prompts(folder).iter().filter(|prompt| prompt.step == "prompt_3_blocks") {
            assert_eq!(engine.overlap(prompt), 3, "{folder}");
        }
    }
}

#[test]
fn prompts_are_found_after_their_step_and_in_their_namespace_only() {
    for (folder, size) in [("vllm-0.20.2-array-int64-block16", 16), ("vllm-0.32.0-map-int64-block32", 32)] {
        let prompts = prompts(folder);
        let mut engine = Engine::new(size);
        let mut found = 0;
        let mut salted_before = true;
        let mut last = String::new();
        for message in recording(folder) {
            if message.step != last {
                found += assert_found(&engine, &prompts, &last);
                last.clone_from(&message.step);
            }
            if message.step == "cache_salt" {
                // The same text is cached without its salt.
                salted_before = prompts.iter().any(|prompt| prompt.step == "cache_salt" && engine.overlap(prompt) > 0);
            }
            engine.apply(&message.payload);
        }
        assert_eq!((found, salted_before), (12, false), "{folder}");
    }
}

/// After a step its prompt is cached in full blocks. Returns how many prompts that were.
fn assert_found(engine: &Engine, prompts: &[Prompt], step: &str) -> u32 {
    let mut found = 0;
    for prompt in prompts.iter().filter(|prompt| prompt.step == step) {
        let blocks = u32::try_from(prompt.ids.len()).expect("short") / engine.pool.block_size.get();
        assert_eq!(engine.overlap(prompt), blocks, "{step}");
        found += 1;
    }
    found
}
