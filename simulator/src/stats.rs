//! What an engine counts.

/// What runs, waits and is in use at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Levels {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    /// Share of the blocks in use, 0 to 1; cached but idle blocks are free.
    pub kv_usage: f64,
}

/// What an engine has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Tokens of admitted prompts that were looked up in the cache. A preempted request counts once.
    pub prefix_queries: usize,
    /// Those of them that were found.
    pub prefix_hits: usize,
    /// Those of the found ones that were loaded from the tiers below.
    pub loaded: usize,
    /// Prompt tokens of requests that got their first token.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generation_tokens: usize,
    /// Requests that ended by themselves.
    pub finished: usize,
    /// Times that a request lost its blocks to another.
    pub preemptions: usize,
    /// Requests that were aborted.
    pub aborted: usize,
}

/// What an engine tells of itself, for its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// As it is now.
    pub levels: Levels,
    /// The blocks in use.
    pub kv_blocks: usize,
    /// Since its start.
    pub totals: Totals,
}
