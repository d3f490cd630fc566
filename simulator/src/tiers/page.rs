//! What the tiers know of a page.

use std::sync::Arc;

use warmpath_core::ids::EngineHash;
use warmpath_indexer::event::Content;

use crate::naming::Digest;

/// A page that the GPU or the host holds.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) parent: Option<EngineHash>,
    pub(super) content: Content,
    pub(super) salt: Option<Arc<str>>,
    pub(super) adapter: Option<Arc<str>>,
    /// What its name in shared storage is taken from; none if a page before it was unknown.
    pub(super) key: Option<Digest>,
    /// Pages before it.
    pub(super) depth: usize,
    /// Copies on the GPU.
    pub(super) device: usize,
    pub(super) uses: u32,
    /// Whether it holds generated tokens that no prompt has repeated yet.
    pub(super) output: bool,
}
