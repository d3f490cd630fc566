//! What must be equal before two prompts may share a prefix.

use std::sync::Arc;

use crate::units::BlockSize;

/// Model, adapter, salt and block size. Prefixes never match across namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The model's name, as its pool is called; aliases are resolved before.
    pub model: Arc<str>,
    /// The LoRA adapter's name.
    pub adapter: Option<Arc<str>>,
    /// The cache salt.
    pub salt: Option<Arc<str>>,
    /// Tokens in a block; belongs to the pool.
    pub block_size: BlockSize,
}

impl Namespace {
    /// The namespace of plain prompts: no adapter, no salt.
    pub fn plain(model: impl Into<Arc<str>>, block_size: BlockSize) -> Self {
        Self { model: model.into(), adapter: None, salt: None, block_size }
    }
}
