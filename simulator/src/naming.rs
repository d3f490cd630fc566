//! What engines and storage call blocks.

use sha2::{Digest as _, Sha256};
use warmpath_core::ids::{BlockHash, EngineHash, TokenId};
use warmpath_core::units::BlockSize;
use warmpath_indexer::event::Content;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How an engine, or storage, names blocks: a chained hash over (all before it, tokens), rooted in adapter and salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// Whose names.
    pub scheme: Scheme,
    /// Tokens in a block.
    pub block_size: BlockSize,
}

/// Whose names of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Quick ones. Two engines with different seeds name equal content differently, as real engines do whose start value is
    /// random.
    Seeded(u64),
    /// vLLM's `sha256_cbor` with `PYTHONHASHSEED=0`: of (digest before, tokens, extra keys) in CBOR the low 64 bits. Extra keys
    /// are the adapter and, in the first block, the salt, as up to 0.20.
    VllmSha256,
    /// SGLang's: of (digest before, tokens) the first 64 bits. The first block follows nothing, or where there is a salt or
    /// an adapter what is made of them.
    SglangSha256,
}

/// What a name is taken from, and the next block's digest made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// What makes equal prompts different.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras<'a> {
    pub(super) salt: Option<&'a str>,
    pub(super) adapter: Option<&'a str>,
}

/// What a block holds: its tokens, or as much as is known of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Block<'a> {
    Tokens(&'a [TokenId]),
    Hash(BlockHash),
}

/// What vLLM's first blocks follow: the digest of the seed as text, `"0"`.
const VLLM_ROOT: Digest = Digest([
    0x4e, 0x11, 0x95, 0xdf, 0x02, 0x0d, 0xe5, 0x9e, 0x0d, 0x65, 0xa3, 0x3a, 0x42, 0x79, 0xf1, 0x18, 0x3e, 0x7a, 0xe4,
    0xe5, 0xd9, 0x80, 0xe3, 0x09, 0xf8, 0xb5, 0x5a, 0xdf, 0xf2, 0xe6, 0x1c, 0x3e,
]);

/// What stands for nothing before the first block.
const NOTHING: Digest = Digest([0; 32]);

impl Naming {
    /// What the first block of a prompt with this adapter and salt follows.
    pub(super) fn root(self, extras: Extras<'_>) -> Digest {
        match self.scheme {
            Scheme::Seeded(seed) => short(xxh3_64_with_seed(&tagged(extras), seed)),
            Scheme::VllmSha256 => VLLM_ROOT,
            Scheme::SglangSha256 if extras.salt.is_none() && extras.adapter.is_none() => NOTHING,
            Scheme::SglangSha256 => Digest(sha256(&tagged(extras))),
        }
    }

    /// The digest of a block behind `before`, which is that of the block before it or a root. O(tokens).
    pub(super) fn next(self, before: Digest, extras: Extras<'_>, block: Block<'_>) -> Digest {
        match self.scheme {
            Scheme::Seeded(seed) => {
                let Digest(before) = before;
                short(match block {
                    Block::Tokens(tokens) => xxh3_64_with_seed(&joined(&before[..8], tokens), seed),
                    Block::Hash(block) => {
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&before[..8]);
                        bytes[8..].copy_from_slice(&block.0.to_le_bytes());
                        xxh3_64_with_seed(&bytes, seed)
                    }
                })
            }
            Scheme::VllmSha256 => Digest(sha256(&cbor(before, extras, block))),
            Scheme::SglangSha256 => {
                let before: &[u8] = if before == NOTHING { &[] } else { &before.0 };
                Digest(sha256(&match block {
                    Block::Tokens(tokens) => joined(before, tokens),
                    Block::Hash(block) => [before, &block.0.to_le_bytes()].concat(),
                }))
            }
        }
    }

    /// The same of a block that holds this; none of one that holds nothing.
    pub(super) fn next_of(self, before: Digest, extras: Extras<'_>, content: &Content) -> Option<Digest> {
        match content {
            Content::Tokens(tokens) => Some(self.next(before, extras, Block::Tokens(tokens))),
            Content::Hashes(hashes) => Some(self.next(before, extras, Block::Hash(*hashes.first()?))),
            Content::Nothing => None,
        }
    }

    /// What a block with this digest is called.
    pub fn name(self, Digest(digest): Digest) -> EngineHash {
        let [first, .., last] = digest.as_chunks::<8>().0 else { return EngineHash(0) };
        EngineHash(match self.scheme {
            Scheme::Seeded(_) => u64::from_le_bytes(*first),
            Scheme::VllmSha256 => u64::from_be_bytes(*last),
            Scheme::SglangSha256 => u64::from_be_bytes(*first),
        })
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn short(hash: u64) -> Digest {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&hash.to_le_bytes());
    Digest(digest)
}

fn joined(before: &[u8], tokens: &[TokenId]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(before.len() + size_of_val(tokens));
    bytes.extend_from_slice(before);
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    bytes
}

/// Adapter and salt, each with its length, so that no two pairs are alike.
fn tagged(extras: Extras<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [extras.adapter, extras.salt] {
        let text = part.unwrap_or("");
        bytes.push(u8::from(part.is_some()));
        bytes.extend_from_slice(&text.len().to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// `[before, [tokens…], [keys…] or null]` in canonical CBOR.
fn cbor(before: Digest, extras: Extras<'_>, block: Block<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    head(&mut bytes, ARRAY, 3);
    head(&mut bytes, BYTES, 32);
    bytes.extend_from_slice(&before.0);
    match block {
        Block::Tokens(tokens) => {
            head(&mut bytes, ARRAY, u64::try_from(tokens.len()).unwrap_or(u64::MAX));
            tokens.iter().for_each(|token| head(&mut bytes, NUMBER, u64::from(*token)));
        }
        Block::Hash(hash) => head(&mut bytes, NUMBER, hash.0),
    }
    let salt = extras.salt.filter(|_| before == VLLM_ROOT);
    let keys = || [extras.adapter, salt].into_iter().flatten();
    match keys().count() {
        0 => bytes.push(NULL),
        count => head(&mut bytes, ARRAY, u64::try_from(count).unwrap_or(u64::MAX)),
    }
    for key in keys() {
        head(&mut bytes, TEXT, u64::try_from(key.len()).unwrap_or(u64::MAX));
        bytes.extend_from_slice(key.as_bytes());
    }
    bytes
}

/// CBOR's kinds of things, as they stand in the first three bits.
const NUMBER: u8 = 0;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const NULL: u8 = 0xf6;

/// A kind of thing and its count, in as few bytes as that takes.
fn head(bytes: &mut Vec<u8>, kind: u8, count: u64) {
    let short = (u8::try_from(count), u16::try_from(count), u32::try_from(count));
    match short {
        (Ok(count), ..) if count < 24 => bytes.push(kind | count),
        (Ok(count), ..) => bytes.extend([kind | 24, count]),
        (_, Ok(count), _) => bytes.extend([&[kind | 25][..], &count.to_be_bytes()].concat()),
        (.., Ok(count)) => bytes.extend([&[kind | 26][..], &count.to_be_bytes()].concat()),
        _ => bytes.extend([&[kind | 27][..], &count.to_be_bytes()].concat()),
    }
}

#[cfg(test)]
impl Digest {
    /// A digest that is no other number's.
    pub(super) fn numbered(number: u8) -> Self {
        Self([number; 32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockEvent;
    use crate::cache::Profile;
    use crate::clock::Ms;
    use crate::engine_config::EngineConfig;
    use crate::request::{RequestId, SimRequest};
    use crate::scheduler::Engine;

    const PLAIN: Extras<'_> = Extras { salt: None, adapter: None };

    fn names(scheme: Scheme, extras: Extras<'_>, blocks: &[&[TokenId]]) -> Vec<u64> {
        let naming = Naming { scheme, block_size: BlockSize::new(4).unwrap() };
        let mut digest = naming.root(extras);
        let of = |block: &&[TokenId]| {
            digest = naming.next(digest, extras, Block::Tokens(block));
            naming.name(digest).0
        };
        blocks.iter().map(of).collect()
    }

    #[test]
    fn vllm_names_blocks_by_the_low_bits_of_a_digest_of_cbor() {
        let (first, second): (Vec<u32>, Vec<u32>) = ((0..16).collect(), (16..32).collect());
        let plain = names(Scheme::VllmSha256, PLAIN, &[&first, &second]);
        assert_eq!(plain, [12_687_895_063_098_490_012, 1_814_341_696_565_857_452]);
        let salted = Extras { salt: Some("salt"), ..PLAIN };
        let salted = names(Scheme::VllmSha256, salted, &[&first, &second]);
        assert_eq!(salted[0], 8_471_034_540_256_156_344);
        let adapted = names(Scheme::VllmSha256, Extras { adapter: Some("salt"), ..PLAIN }, &[&first, &second]);
        assert!(adapted[0] == salted[0] && adapted[1] != salted[1], "the salt is a key of the first block alone");
        assert_eq!(VLLM_ROOT, Digest(sha256(b"\x610")));
    }

    #[test]
    fn sglang_names_pages_by_the_first_bits_of_a_chain_of_digests() {
        let plain = names(Scheme::SglangSha256, PLAIN, &[&[1, 2, 3, 4], &[5, 6, 7, 8]]);
        assert_eq!(
            plain.iter().map(|name| name.cast_signed()).collect::<Vec<_>>(),
            [-3_488_128_144_981_237_669, 5_674_439_469_042_975_057]
        );
        let salted = names(Scheme::SglangSha256, Extras { salt: Some("t"), ..PLAIN }, &[&[1, 2, 3, 4], &[5, 6, 7, 8]]);
        assert!(salted.iter().all(|name| !plain.contains(name)));
    }

    #[test]
    fn every_scheme_tells_prefixes_adapters_and_salts_apart() {
        let block: &[TokenId] = &[1, 2, 3, 70_000];
        for scheme in [Scheme::Seeded(3), Scheme::VllmSha256, Scheme::SglangSha256] {
            let extras = |salt, adapter| Extras { salt, adapter };
            let kinds = [PLAIN, extras(Some("a"), None), extras(None, Some("b")), extras(Some("a"), Some("b"))];
            let mut all: Vec<u64> = kinds.iter().flat_map(|extras| names(scheme, *extras, &[block, block])).collect();
            all.sort_unstable();
            all.dedup();
            // The salt is no key of vLLM's later blocks, which hang on the first all the same.
            assert_eq!(all.len(), 8, "{scheme:?}");
        }
    }

    #[test]
    fn an_engine_announces_blocks_under_the_names_that_it_was_given() {
        let golden = [
            (Profile::Vllm, Scheme::VllmSha256, 16, 12_687_895_063_098_490_012, 0..17),
            (Profile::SglangRadix, Scheme::SglangSha256, 4, (-3_488_128_144_981_237_669_i64).cast_unsigned(), 1..6),
        ];
        for (profile, scheme, size, name, prompt) in golden {
            let block_size = BlockSize::new(size).unwrap();
            let config = EngineConfig { profile, block_size, names: Some(scheme), ..EngineConfig::default() };
            let mut engine = Engine::new(config).unwrap();
            engine.submit(Ms::ZERO, SimRequest::new(RequestId(1), prompt.collect::<Vec<_>>(), 1)).unwrap();
            let events = engine.step(Ms::ZERO).unwrap().events;
            let [BlockEvent::Stored { hashes, parent: None, .. }] = &events[..] else { panic!("{events:?}") };
            assert_eq!(hashes, &[EngineHash(name)]);
        }
    }

    #[test]
    fn counts_take_as_few_bytes_as_they_need() {
        let headed = |count| {
            let mut bytes = Vec::new();
            head(&mut bytes, NUMBER, count);
            bytes.len()
        };
        let counts = [23, 24, 255, 256, 65_535, 65_536, u64::from(u32::MAX), u64::from(u32::MAX) + 1];
        assert_eq!(counts.map(headed), [1, 2, 2, 3, 3, 5, 5, 9]);
    }
}
