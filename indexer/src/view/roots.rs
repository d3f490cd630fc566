//! Where the chains of each namespace begin.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use warmpath_core::blocks::Root;
use warmpath_core::ids::SequenceHash;
use warmpath_core::namespace::Namespace;

/// Roots that are remembered. Salts come from clients, so their number has no natural bound.
const REMEMBERED: usize = 1024;

type Names = (Option<Arc<str>>, Option<Arc<str>>);

/// Computes the roots of one pool's namespaces and remembers them.
pub(super) struct Roots {
    pool: Namespace,
    seed: u64,
    plain: Root,
    named: HashMap<Names, Root, RandomState>,
}

impl Roots {
    /// Roots below `pool`, whose own adapter and salt do not count.
    pub(super) fn new(pool: Namespace, seed: u64) -> Self {
        let pool = Namespace { adapter: None, salt: None, ..pool };
        let plain = Root::new(&pool, seed);
        Self { pool, seed, plain, named: HashMap::default() }
    }

    /// Bytes of heap: salts are as long as clients make them.
    pub(super) fn bytes(&self) -> usize {
        let lengths = self.named.keys().flat_map(|(adapter, salt)| [adapter, salt]).flatten().map(|name| name.len());
        self.named.capacity() * size_of::<(Names, Root)>() + lengths.sum::<usize>()
    }

    pub(super) fn block_size(&self) -> u32 {
        self.pool.block_size.get()
    }

    /// The root without adapter and salt.
    pub(super) fn plain(&self) -> SequenceHash {
        self.plain.sequence
    }

    /// The root of an adapter and a salt.
    pub(super) fn get(&mut self, adapter: Option<&Arc<str>>, salt: Option<&Arc<str>>) -> Root {
        if adapter.is_none() && salt.is_none() {
            return self.plain;
        }
        let names = (adapter.cloned(), salt.cloned());
        if let Some(&root) = self.named.get(&names) {
            return root;
        }
        if self.named.len() >= REMEMBERED {
            self.named.clear();
        }
        let namespace = Namespace { adapter: names.0.clone(), salt: names.1.clone(), ..self.pool.clone() };
        let root = Root::new(&namespace, self.seed);
        self.named.insert(names, root);
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_core::blocks::DEFAULT_ROOT_SEED;
    use warmpath_core::units::BlockSize;

    #[test]
    fn many_salts_do_not_fill_the_memory_and_get_equal_roots_again() {
        let mut roots = Roots::new(Namespace::plain("m", BlockSize::new(4).unwrap()), DEFAULT_ROOT_SEED);
        assert_eq!(roots.get(None, None).sequence.0, 18_369_467_139_933_072_015);
        for salt in 0..3000 {
            roots.get(None, Some(&salt.to_string().into()));
            assert!(roots.named.len() <= REMEMBERED);
        }
        let before = roots.bytes();
        roots.get(None, Some(&"s".repeat(100_000).into()));
        assert!(roots.bytes() >= before + 100_000);
        assert_eq!(roots.get(None, Some(&"t".into())).sequence.0, 1_281_507_338_165_246_293);
        assert_eq!(roots.get(Some(&"a".into()), None).sequence.0, 2_587_364_774_796_886_495);
    }
}
