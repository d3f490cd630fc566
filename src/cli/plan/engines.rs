//! The engines of the fleets that are replayed: as many and as large as each configuration has them.

use std::collections::BTreeSet;
use std::path::Path;

use warmpath_core::units::{BlockSize, Blocks};

use crate::cli::misuse::misuse;
use crate::cli::remark;
use crate::config::{Config, Model, Worker};
use crate::replay::trace::TraceRequest;

/// The engines of one configuration's fleet.
pub(super) struct Engines {
    pub(super) workers: u16,
    /// Requests that one runs at once.
    pub(super) max_num_seqs: u32,
    /// Blocks in the cache of one.
    pub(super) blocks: u32,
}

/// What is said of all of them, whatever the configurations have.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) workers: Option<u16>,
    pub(super) cache_blocks: Option<u32>,
}

/// A configuration and the file that it is from.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) file: &'a Path,
    pub(super) config: &'a Config,
}

/// Blocks in the cache of an engine whose size nobody tells, as for `replay`.
const CACHE_BLOCKS: u32 = 2048;
/// Requests that an engine runs at once where no worker is listed: the default of those that are.
const MAX_NUM_SEQS: u32 = 256;

impl Engines {
    /// Those that serve the trace under this configuration. Simulated ones are all alike: where limits differ, they have the
    /// smallest.
    pub(super) fn of(
        Named { file, config }: Named<'_>,
        trace: &[TraceRequest],
        block_size: BlockSize,
        given: Given,
    ) -> anyhow::Result<Self> {
        let model = asked(trace, config);
        let shown = file.display();
        let unknown = |why: &str| misuse(format!("{shown}: {why}: say with --workers how many engines serve it"));
        if model.is_none() && config.models.len() > 1 && given.workers.is_none() {
            return Err(unknown("has several models, and not all requests of the trace name the same one of them"));
        }
        let workers: Vec<&Worker> = serving(config, model).collect();
        let ranks = workers.iter().map(|worker| worker.dp_ranks.value.get()).fold(0, u16::saturating_add);
        if ranks == 0 && given.workers.is_none() {
            return Err(unknown(
                "lists no worker for the trace's model, and those that are discovered are not known here",
            ));
        }
        if config.discovery.is_used() && given.workers.is_none() {
            let left_out = "workers that are discovered are left out: --workers says how many there are";
            remark(format_args!("warmpath: {shown}: {left_out}\n"));
        }
        let sequences = workers.iter().map(|worker| worker.max_num_seqs.get());
        let blocks = workers.iter().map(|worker| capacity(worker, config, block_size).unwrap_or(CACHE_BLOCKS));
        let unit = format!(" blocks of {} tokens", block_size.get());
        Ok(Self {
            workers: given.workers.unwrap_or(ranks),
            max_num_seqs: smallest(file, "max_num_seqs", "", sequences).unwrap_or(MAX_NUM_SEQS),
            blocks: match given.cache_blocks {
                Some(blocks) => blocks,
                None => smallest(file, "capacity_blocks", &unit, blocks).unwrap_or(CACHE_BLOCKS),
            },
        })
    }
}

/// Makes sure that what the trace asks for is served under both or neither: a name that neither knows is another fleet's.
pub(super) fn compare_models(trace: &[TraceRequest], [old, new]: [Named<'_>; 2]) -> anyhow::Result<()> {
    let names: BTreeSet<&str> = trace.iter().filter_map(TraceRequest::model).collect();
    for name in names {
        let (lacks, has) = match [old, new].map(|of| named(of.config, name).is_some()) {
            [true, false] => (new.file.display(), old.file.display()),
            [false, true] => (old.file.display(), new.file.display()),
            [true, true] | [false, false] => continue,
        };
        let remedy = "name it among the aliases of a model, or leave its requests out of the trace";
        return Err(misuse(format!(
            "{lacks}: has no model `{name}`, which the trace asks for and {has} has: {remedy}"
        )));
    }
    Ok(())
}

/// The model that all requests ask for, if they name one and the configuration has it.
pub(super) fn asked<'c>(trace: &[TraceRequest], config: &'c Config) -> Option<&'c Model> {
    let mut models = trace.iter().map(|request| request.model().and_then(|name| named(config, name)));
    let first = models.next()??;
    models.all(|model| model.is_some_and(|model| *model.name == *first.name)).then_some(first)
}

/// The workers of a model; all where none is asked for.
pub(super) fn serving<'c>(config: &'c Config, model: Option<&'c Model>) -> impl Iterator<Item = &'c Worker> {
    config.workers.iter().filter(move |worker| model.is_none_or(|model| *worker.model == *model.name))
}

/// The model of this name or alias.
fn named<'c>(config: &'c Config, name: &str) -> Option<&'c Model> {
    let is_named = |model: &&Model| *model.name == name || model.aliases.iter().any(|alias| **alias == name);
    config.models.iter().find(is_named)
}

/// Blocks of the trace's size that the worker's cache holds, where that is configured.
fn capacity(worker: &Worker, config: &Config, block_size: BlockSize) -> Option<u32> {
    let configured = Blocks(worker.capacity_blocks?.get());
    let model = config.models.iter().find(|model| *model.name == *worker.model)?;
    Some(configured.tokens(model.block_size).whole_blocks(block_size).0.max(1))
}

/// The smallest of what workers say; that they differ is told.
fn smallest(file: &Path, key: &str, unit: &str, said: impl Iterator<Item = u32> + Clone) -> Option<u32> {
    let (least, most) = (said.clone().min()?, said.max()?);
    if least < most {
        let file = file.display();
        remark(format_args!(
            "warmpath: {file}: workers differ in {key}: all are replayed with the smallest, {least}{unit}\n"
        ));
    }
    Some(least)
}
