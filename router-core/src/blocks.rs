//! Token ids -> a sequence hash for each full block. The definition, with golden values, is part of the product:
//! routers that share an index must agree on it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ids::{BlockHash, SequenceHash, TokenId};
use crate::namespace::Namespace;
use crate::units::{BlockSize, Tokens};

/// Seed of every block hash, as in the JSON events of Dynamo 0.1; an adapter shifts it.
const BLOCK_SEED: u64 = 1337;

/// Seed of the root where `index.seed` does not say otherwise.
pub const DEFAULT_ROOT_SEED: u64 = 1337;

/// An image, a sound or another medium that stands among the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSpan {
    /// Index of the first token that stands for it.
    pub start: Tokens,
    /// How many tokens stand for it.
    pub len: Tokens,
    /// Hash of its identifier: [`media_hash`].
    pub hash: BlockHash,
}

impl MediaSpan {
    /// Whether any of its tokens lies in the block that covers `first..end`.
    fn lies_in(&self, first: u32, end: u32) -> bool {
        self.start.0 < end && self.start.0.saturating_add(self.len.0.max(1)) > first
    }
}

/// Where a namespace's chains begin, and the seed of its blocks. Computed once for a namespace, then `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// What block 0 follows.
    pub sequence: SequenceHash,
    seed: u64,
    block_size: BlockSize,
}

impl Root {
    /// The root of `namespace`. `seed` is `index.seed`: replicas that share an index share it.
    pub fn new(namespace: &Namespace, seed: u64) -> Self {
        let adapter = namespace.adapter.as_deref().unwrap_or("");
        let salt = namespace.salt.as_deref().unwrap_or("");
        let mut bytes = Vec::with_capacity(namespace.model.len() + adapter.len() + salt.len() + 16);
        for name in [&namespace.model, adapter, salt] {
            let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.extend_from_slice(&namespace.block_size.get().to_le_bytes());
        let shift = if adapter.is_empty() { 0 } else { xxh3_64(adapter.as_bytes()) };
        Self {
            sequence: SequenceHash(xxh3_64_with_seed(&bytes, seed)),
            seed: BLOCK_SEED.wrapping_add(shift),
            block_size: namespace.block_size,
        }
    }

    /// Tokens in a block of this namespace.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Hash of one block's tokens. O(block).
    pub fn block_hash(&self, tokens: &[TokenId]) -> BlockHash {
        #[cfg(target_endian = "little")]
        let hash = xxh3_64_with_seed(bytemuck::cast_slice(tokens), self.seed);
        #[cfg(target_endian = "big")]
        let hash = {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            xxh3_64_with_seed(&bytes, self.seed)
        };
        BlockHash(hash)
    }
}

/// Hash of a medium's identifier, as it enters the sequence hash of every block in which the medium lies.
pub fn media_hash(identifier: &str) -> BlockHash {
    BlockHash(xxh3_64_with_seed(identifier.as_bytes(), BLOCK_SEED))
}

/// Continues the chain `previous` by `block`: a folded 128-bit product, as cheap as it is well mixed.
pub fn step(previous: SequenceHash, block: BlockHash) -> SequenceHash {
    let a = u128::from(previous.0 ^ 0x9e37_79b9_7f4a_7c15);
    let b = u128::from(block.0 ^ 0xd6e8_feb8_6659_fd93);
    let product = (a * b).to_le_bytes();
    let (low, high) = product.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("16 bytes split in two halves of 8"));
    SequenceHash(half(low) ^ half(high))
}

/// Appends one sequence hash for each full block of `tokens` to `hashes`. O(tokens); allocates only while `hashes`
/// grows.
pub fn hash_blocks(root: &Root, tokens: &[TokenId], media: &[MediaSpan], hashes: &mut Vec<SequenceHash>) {
    let size = root.block_size.len();
    hashes.reserve(tokens.len() / size);
    let mut sequence = root.sequence;
    if media.is_empty() {
        for block in tokens.chunks_exact(size) {
            sequence = step(sequence, root.block_hash(block));
            hashes.push(sequence);
        }
        return;
    }
    let mut first = 0_u32;
    for block in tokens.chunks_exact(size) {
        let end = first.saturating_add(root.block_size.get());
        sequence = step(sequence, root.block_hash(block));
        for medium in media.iter().filter(|medium| medium.lies_in(first, end)) {
            sequence = step(sequence, medium.hash);
        }
        hashes.push(sequence);
        first = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(adapter: Option<&str>, salt: Option<&str>) -> Namespace {
        Namespace {
            model: "m".into(),
            adapter: adapter.map(Into::into),
            salt: salt.map(Into::into),
            block_size: BlockSize::new(4).unwrap(),
        }
    }

    fn sequence(root: &Root, media: &[MediaSpan]) -> Vec<u64> {
        let mut hashes = Vec::new();
        hash_blocks(root, &[1, 2, 3, 4, 5, 6, 7, 8, 9], media, &mut hashes);
        hashes.iter().map(|hash| hash.0).collect()
    }

    #[test]
    fn golden_plain() {
        let root = Root::new(&namespace(None, None), DEFAULT_ROOT_SEED);
        assert_eq!(root.sequence, SequenceHash(18_369_467_139_933_072_015));
        assert_eq!(root.block_hash(&[1, 2, 3, 4]), BlockHash(14_643_705_804_678_351_452));
        assert_eq!(root.block_hash(&[5, 6, 7, 8]), BlockHash(16_777_012_769_546_811_212));
        assert_eq!(sequence(&root, &[]), [15_342_114_700_230_605_370, 8_259_717_594_593_986_827]);
    }

    #[test]
    fn golden_event_hash_of_sixteen_tokens() {
        let size = BlockSize::new(16).unwrap();
        let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
        let tokens: Vec<u32> = (0..16).collect();
        assert_eq!(root.block_hash(&tokens), BlockHash(15_310_707_395_893_867_146));
    }

    #[test]
    fn golden_media_in_the_first_block() {
        let root = Root::new(&namespace(None, None), DEFAULT_ROOT_SEED);
        let image = MediaSpan { start: Tokens(1), len: Tokens(2), hash: media_hash("img-1") };
        assert_eq!(sequence(&root, &[image]), [8_678_537_934_081_002_394, 12_088_104_925_583_975_618]);
    }

    #[test]
    fn golden_adapter() {
        let root = Root::new(&namespace(Some("a"), None), DEFAULT_ROOT_SEED);
        assert_eq!(root.sequence, SequenceHash(2_587_364_774_796_886_495));
        assert_eq!(root.block_hash(&[1, 2, 3, 4]), BlockHash(17_680_866_786_467_819_158));
        assert_eq!(root.block_hash(&[5, 6, 7, 8]), BlockHash(10_751_596_618_610_180_438));
        assert_eq!(sequence(&root, &[]), [17_542_875_502_588_591_661, 9_589_232_978_847_074_572]);
    }

    #[test]
    fn golden_salt() {
        let root = Root::new(&namespace(None, Some("t")), DEFAULT_ROOT_SEED);
        assert_eq!(root.sequence, SequenceHash(1_281_507_338_165_246_293));
        assert_eq!(sequence(&root, &[]), [3_454_982_680_716_148_609, 2_985_202_229_040_273_636]);
    }

    #[test]
    fn a_medium_touches_each_block_in_which_it_lies() {
        let span = MediaSpan { start: Tokens(3), len: Tokens(2), hash: BlockHash(0) };
        assert!(span.lies_in(0, 4));
        assert!(span.lies_in(4, 8));
        assert!(!span.lies_in(8, 12));
    }
}
