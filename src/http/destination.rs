//! Who serves what a client calls a model: a pool, for an adapter those of its workers that have it.

use std::sync::Arc;

use warmpath_core::blocks::Root;
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;

use super::gateway::Gateway;
use crate::error::GatewayError;
use crate::fleet::PoolState;

/// The most of a name that is repeated to whoever sent it.
const NAME_SHOWN: usize = 200;

/// Where a request can go.
pub(super) struct Destination {
    pub(super) pool: Arc<PoolState>,
    /// The LoRA adapter that was asked for.
    pub(super) adapter: Option<Arc<str>>,
    /// The other name of the model that was asked for, which its workers need not know.
    pub(super) alias: Option<Arc<str>>,
}

impl Destination {
    /// The pool of the model, alias or adapter of this name. Without a name, the only pool there is: as engines do, with
    /// one model there is nothing to choose.
    ///
    /// # Errors
    /// When nobody has the name, or there are several pools and none is named.
    pub(super) fn of(gateway: &Gateway, model: Option<&str>) -> Result<Self, GatewayError> {
        let roster = gateway.fleet.roster();
        let table = roster.table();
        let pool = match (model, table.pools()) {
            (Some(model), _) => table.pool(model),
            (None, [only]) => Some(only),
            (None, _) => return Err(GatewayError::bad_request("`model` is missing", Some("model"))),
        };
        let found = match (pool, model) {
            (Some(pool), _) => gateway.fleet.pool(&pool.model).map(|pool| (pool, None)),
            (None, Some(name)) => gateway.fleet.catalogue().adapter(name).and_then(|adapter| {
                let pool = gateway.fleet.pool(&adapter.model)?;
                Some((pool, Some(Arc::clone(&adapter.id))))
            }),
            (None, None) => None,
        };
        match found {
            Some((pool, adapter)) => {
                let alias = model.filter(|name| adapter.is_none() && *name != &*pool.model).map(Arc::from);
                Ok(Self { pool, adapter, alias })
            }
            None => Err(unknown_model(model.unwrap_or_default())),
        }
    }

    /// The same with the LoRA adapter that is named beside the model, unless the model's name says one. A name that no
    /// worker of the pool has said is for the engine to judge: most do not read it.
    pub(super) fn adapted(self, gateway: &Gateway, name: Option<&str>) -> Self {
        let Some(name) = name.filter(|_| self.adapter.is_none()) else { return self };
        let catalogue = gateway.fleet.catalogue();
        let named = catalogue.adapter(name).filter(|adapter| adapter.model == self.pool.model);
        Self { adapter: named.map(|adapter| Arc::clone(&adapter.id)), ..self }
    }

    /// Where the chains of its prompts begin.
    pub(super) fn root(&self, salt: Option<&str>, block_size: BlockSize, seed: u64) -> Root {
        let mut namespace = Namespace::plain(Arc::clone(&self.pool.model), block_size);
        namespace.adapter.clone_from(&self.adapter);
        namespace.salt = salt.map(Into::into);
        Root::new(&namespace, seed)
    }
}

/// Nobody serves `name`.
pub(super) fn unknown_model(name: &str) -> GatewayError {
    GatewayError::UnknownModel { model: name.chars().take(NAME_SHOWN).collect() }
}
