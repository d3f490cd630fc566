//! Fields of one event, whatever their order on the wire, and the rules that make an event of them.

use std::sync::Arc;

use smallvec::SmallVec;
use warmpath_core::ids::{EngineHash, TokenId};
use warmpath_core::units::Tier;

use super::cursor::{Cursor, Value};
use super::extra_keys::{self, ExtraKeys};
use super::{DecodeError, MAX_HASHES, MAX_TOKENS, shortened};
use crate::event::{Attention, CacheEvent, Content, Removed, Stored, tier_of_medium};

/// A field that means something here. All others are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Salt,
    CopyCounts,
    Locality,
}

/// Positions after the tag in the array form of `BlockStored`.
pub(super) const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
];

/// Positions after the tag in the array form of `BlockRemoved`.
pub(super) const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

impl Field {
    /// The field of this name in the map form.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"cache_salt" => Self::Salt,
            b"remaining_copy_counts" => Self::CopyCounts,
            b"locality" => Self::Locality,
            _ => return None,
        })
    }
}

type Hashes = SmallVec<[EngineHash; 2]>;

/// What has been read of an event.
#[derive(Default)]
pub(super) struct Fields<'a> {
    hashes: Option<Hashes>,
    parent: Option<EngineHash>,
    tokens: Option<Vec<TokenId>>,
    bigrams: bool,
    block_size: Option<Option<u32>>,
    lora_id: Option<Box<str>>,
    medium: Option<&'a str>,
    locality: Option<&'a str>,
    lora_name: Option<&'a str>,
    /// Read last: an item means something else when it equals the adapter's name.
    extra_keys: Option<Cursor<'a>>,
    group: Option<u32>,
    attention: Attention,
    salt: Option<&'a str>,
    copy_counts: Option<Vec<u32>>,
}

impl<'a> Fields<'a> {
    /// Reads the value of `field` where the cursor stands.
    pub(super) fn read(&mut self, field: Field, cursor: &mut Cursor<'a>) -> Result<(), DecodeError> {
        match field {
            Field::Hashes => self.hashes = Some(hashes(cursor)?),
            Field::Parent => self.parent = hash(cursor, "parent_block_hash")?,
            Field::Tokens => (self.tokens, self.bigrams) = tokens(cursor)?,
            Field::BlockSize => self.block_size = Some(cursor.count("block_size")?),
            Field::LoraId => self.lora_id = lora_id(cursor)?,
            Field::Medium => self.medium = cursor.text("medium")?,
            Field::LoraName => self.read_lora_name(cursor)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*cursor);
                cursor.skip("extra_keys")?;
            }
            Field::Group => self.group = cursor.count("group_idx")?,
            Field::Kind => {
                self.attention = cursor.text("kv_cache_spec_kind")?.map_or_else(Attention::default, Attention::named)
            }
            Field::Salt => self.salt = cursor.text("cache_salt")?,
            Field::CopyCounts => self.copy_counts = copy_counts(cursor)?,
            Field::Locality => self.locality = cursor.text("locality")?,
        }
        Ok(())
    }

    /// SGLang sent a map such as `{"cache_salt": "…"}` where vLLM's array form has the adapter's name.
    fn read_lora_name(&mut self, cursor: &mut Cursor<'a>) -> Result<(), DecodeError> {
        let before = *cursor;
        let Value::Map(pairs) = cursor.value("lora_name")? else {
            *cursor = before;
            self.lora_name = cursor.text("lora_name")?;
            return Ok(());
        };
        for _ in 0..pairs {
            match cursor.value("metadata")? {
                Value::Text(b"cache_salt") => self.salt = cursor.text("cache_salt")?,
                Value::Text(b"lora_name") => self.lora_name = cursor.text("lora_name")?,
                Value::Array(_) | Value::Map(_) => {
                    return Err(DecodeError::WrongType { at: cursor.at(), field: "metadata", found: "a nested key" });
                }
                _ => cursor.skip("metadata")?,
            }
        }
        Ok(())
    }

    fn tier(&self, at: usize) -> Result<Tier, DecodeError> {
        let Some(medium) = self.medium else { return Ok(Tier::Device) };
        let tier =
            tier_of_medium(medium).ok_or_else(|| DecodeError::UnknownMedium { medium: shortened(medium), at })?;
        // By itself a medium such as STORAGE or OBJ says what a store is made of, not whose it is.
        Ok(match self.locality {
            Some("REMOTE") => Tier::External,
            Some("LOCAL") if tier == Tier::External => Tier::Disk,
            _ => tier,
        })
    }

    /// Makes a stored event of the fields; `at` is where it begins.
    pub(super) fn stored(self, at: usize) -> Result<CacheEvent, DecodeError> {
        let missing = |field| DecodeError::MissingField { field, at };
        let tier = self.tier(at)?;
        let mut hashes = self.hashes.ok_or(missing("block_hashes"))?.into_vec();
        let block_size = self.block_size.ok_or(missing("block_size"))?.unwrap_or(0);
        let tokens = self.tokens.ok_or(missing("token_ids"))?;
        refuse_repeats(&hashes, self.parent, at)?;
        let adapter: Option<Arc<str>> = match (named(self.lora_name), self.lora_id) {
            (Some(name), _) => Some(name),
            (None, Some(id)) => Some(format!("#{id}").into()),
            (None, None) => None,
        };
        let named_blocks = hashes.len();
        let content = content(tokens, self.bigrams, block_size, &mut hashes, at)?;
        let ExtraKeys { salt, mut media } = match (self.extra_keys, &content) {
            (Some(cursor), Content::Tokens(_)) => {
                extra_keys::read(cursor, named_blocks, adapter.as_deref(), self.parent.is_none())?
            }
            _ => ExtraKeys::default(),
        };
        media.retain(|medium| medium.block < hashes.len());
        Ok(CacheEvent::from(Stored {
            cut: named_blocks - hashes.len(),
            hashes,
            parent: self.parent,
            content,
            block_size: Some(block_size),
            tier,
            group: self.group,
            attention: self.attention,
            adapter,
            salt: named(self.salt).or(salt),
            media,
        }))
    }

    /// Makes a removed event of the fields; `at` is where it begins. Copy counts that are not aligned with the hashes
    /// count as absent: losing the removal as a whole would leave a prefix that nobody holds.
    pub(super) fn removed(self, at: usize) -> Result<CacheEvent, DecodeError> {
        let tier = self.tier(at)?;
        let hashes = self.hashes.ok_or(DecodeError::MissingField { field: "block_hashes", at })?;
        let remaining_copy_counts = self.copy_counts.filter(|counts| counts.len() == hashes.len());
        Ok(CacheEvent::Removed(Removed { hashes, tier, group: self.group, remaining_copy_counts }))
    }
}

/// A name, none if empty.
fn named(name: Option<&str>) -> Option<Arc<str>> {
    name.filter(|name| !name.is_empty()).map(Arc::from)
}

/// How many elements to make room for: what is announced, but never more than bytes are left.
fn room(count: usize, cursor: &Cursor<'_>) -> usize {
    count.min(cursor.left())
}

/// One engine hash: an integer by its bit pattern, or a digest of which the last 8 bytes count. `None` for nil.
fn hash(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Option<EngineHash>, DecodeError> {
    let at = cursor.at();
    Ok(Some(EngineHash(match cursor.value(field)? {
        Value::Nil => return Ok(None),
        Value::Unsigned(hash) => hash,
        Value::Negative(hash) => hash.cast_unsigned(),
        Value::Bytes(digest) => {
            let last = digest.last_chunk().ok_or(DecodeError::OutOfRange { at, field })?;
            u64::from_be_bytes(*last)
        }
        other => return Err(DecodeError::WrongType { at, field, found: other.name() }),
    })))
}

fn hashes(cursor: &mut Cursor<'_>) -> Result<Hashes, DecodeError> {
    let count = cursor.array("block_hashes", MAX_HASHES)?;
    let mut hashes = Hashes::with_capacity(room(count, cursor));
    for _ in 0..count {
        let at = cursor.at();
        let missing = DecodeError::WrongType { at, field: "block_hashes", found: "nil" };
        hashes.push(hash(cursor, "block_hashes")?.ok_or(missing)?);
    }
    Ok(hashes)
}

/// Token ids, and whether they came as EAGLE's pairs: then the first of each pair and the last pair's second.
fn tokens(cursor: &mut Cursor<'_>) -> Result<(Option<Vec<TokenId>>, bool), DecodeError> {
    let before = *cursor;
    if cursor.value("token_ids")? == Value::Nil {
        return Ok((Some(Vec::new()), false));
    }
    *cursor = before;
    let count = cursor.array("token_ids", MAX_TOKENS)?;
    let mut tokens = Vec::with_capacity(room(count, cursor).saturating_add(1));
    let mut last_second = None;
    cursor.numbers(count, &mut tokens);
    for place in tokens.len()..count {
        let at = cursor.at();
        match cursor.value("token_ids")? {
            Value::Unsigned(id) if last_second.is_none() => tokens.push(token(id, at)?),
            Value::Array(2) if place == 0 || last_second.is_some() => {
                tokens.push(pair_half(cursor)?);
                last_second = Some(pair_half(cursor)?);
            }
            Value::Unsigned(_) | Value::Negative(_) => return Err(DecodeError::OutOfRange { at, field: "token_ids" }),
            other => return Err(DecodeError::WrongType { at, field: "token_ids", found: other.name() }),
        }
    }
    tokens.extend(last_second);
    Ok((Some(tokens), last_second.is_some()))
}

fn pair_half(cursor: &mut Cursor<'_>) -> Result<TokenId, DecodeError> {
    let at = cursor.at();
    match cursor.value("token_ids")? {
        Value::Unsigned(id) => token(id, at),
        other => Err(DecodeError::WrongType { at, field: "token_ids", found: other.name() }),
    }
}

fn token(id: u64, at: usize) -> Result<TokenId, DecodeError> {
    TokenId::try_from(id).map_err(|_| DecodeError::OutOfRange { at, field: "token_ids" })
}

/// The deprecated number of an adapter; SGLang has text here. It only keeps such blocks apart from the plain model's.
fn lora_id(cursor: &mut Cursor<'_>) -> Result<Option<Box<str>>, DecodeError> {
    let at = cursor.at();
    match cursor.value("lora_id")? {
        Value::Nil => Ok(None),
        Value::Unsigned(id) => Ok(Some(id.to_string().into())),
        Value::Negative(id) => Ok(Some(id.to_string().into())),
        Value::Text(id) => super::cursor::text(id, "lora_id", at).map(|id| Some(id.into())),
        other => Err(DecodeError::WrongType { at, field: "lora_id", found: other.name() }),
    }
}

fn copy_counts(cursor: &mut Cursor<'_>) -> Result<Option<Vec<u32>>, DecodeError> {
    let before = *cursor;
    if cursor.value("remaining_copy_counts")? == Value::Nil {
        return Ok(None);
    }
    *cursor = before;
    let count = cursor.array("remaining_copy_counts", MAX_HASHES)?;
    let mut counts = Vec::with_capacity(room(count, cursor));
    for _ in 0..count {
        let at = cursor.at();
        let nil = DecodeError::WrongType { at, field: "remaining_copy_counts", found: "nil" };
        counts.push(cursor.count("remaining_copy_counts")?.ok_or(nil)?);
    }
    Ok(Some(counts))
}

/// A chain in which a block occurs twice, or follows itself, would be a circle.
pub(super) fn refuse_repeats(hashes: &[EngineHash], parent: Option<EngineHash>, at: usize) -> Result<(), DecodeError> {
    if let Some(parent) = parent
        && hashes.contains(&parent)
    {
        return Err(DecodeError::RepeatedHash { hash: parent.0, at });
    }
    if hashes.len() < 2 {
        return Ok(());
    }
    let mut sorted: Vec<u64> = hashes.iter().map(|hash| hash.0).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(DecodeError::RepeatedHash { hash: pair[0], at }),
        None => Ok(()),
    }
}

/// Holds tokens against hashes. Where they differ, the leading whole blocks are kept and `hashes` is cut to them.
fn content(
    mut tokens: Vec<TokenId>,
    bigrams: bool,
    block_size: u32,
    hashes: &mut Vec<EngineHash>,
    at: usize,
) -> Result<Content, DecodeError> {
    if tokens.is_empty() {
        return Ok(Content::Nothing);
    }
    let size = usize::try_from(block_size).unwrap_or(usize::MAX);
    let filled = tokens.len().checked_div(size).ok_or(DecodeError::OutOfRange { at, field: "block_size" })?;
    let kept = filled.min(hashes.len());
    if kept == 0 {
        return Err(DecodeError::NoWholeBlock { at });
    }
    hashes.truncate(kept);
    // The second half of the last pair is part of EAGLE's chain, though of none of its blocks.
    let described = kept.saturating_mul(size).saturating_add(usize::from(bigrams));
    tokens.truncate(described);
    Ok(Content::Tokens(tokens))
}
