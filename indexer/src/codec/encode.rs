//! The sending side: batches as vLLM writes them, for the simulated engine.

use rmp::encode::{self, ByteBuf};
use warmpath_core::ids::EngineHash;

use crate::event::{Attention, CacheEvent, Content, EventBatch, Removed, Stored, medium_of_tier};

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Arrays, as vLLM 0.20: with extra keys and group, without the kind of attention.
    Array,
    /// Maps, as vLLM 0.32.
    Map,
}

/// How block hashes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashForm {
    /// Unsigned integers, vLLM's default.
    Int,
    /// Digests of 32 bytes, of which the last 8 are the hash.
    Bytes,
}

/// Why a batch cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Engine events carry tokens; this one has only their hashes.
    #[error("event {index} has block hashes in place of tokens")]
    NoTokens {
        /// The event's place in the batch.
        index: usize,
    },
    /// A list is longer than MessagePack can say.
    #[error("event {index} is too long")]
    TooLong {
        /// The event's place in the batch.
        index: usize,
    },
}

/// Writes a batch. The namespace goes where vLLM puts it: the adapter as `lora_name` and with every block's extra keys,
/// the salt with the first block of an event without parent, media as pairs of identifier and offset. Rejected events
/// are not written.
///
/// # Errors
/// [`EncodeError`] names the first event that has no such form.
pub fn encode(batch: &EventBatch, form: Form, hashes: HashForm) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer { out: ByteBuf::new(), hashes };
    let too_long = EncodeError::TooLong { index: batch.events.len() };
    out.array(if batch.dp_rank.is_some() { 3 } else { 2 }).ok_or(too_long)?;
    match batch.ts {
        Some(ts) => out.float(ts),
        None => out.nil(),
    }
    out.array(batch.events.len()).ok_or(too_long)?;
    for (index, event) in batch.events.iter().enumerate() {
        if let CacheEvent::Stored(stored) = event
            && matches!(stored.content, Content::Hashes(_))
        {
            return Err(EncodeError::NoTokens { index });
        }
        out.event(event, form).ok_or(EncodeError::TooLong { index })?;
    }
    if let Some(rank) = batch.dp_rank {
        out.uint(u64::from(rank));
    }
    Ok(out.out.into_vec())
}

/// Writes values. Methods that write a length give `None` when it does not fit.
struct Writer {
    out: ByteBuf,
    hashes: HashForm,
}

const ENDLESS: &str = "a growing buffer takes all that is written";

impl Writer {
    fn array(&mut self, len: usize) -> Option<()> {
        encode::write_array_len(&mut self.out, u32::try_from(len).ok()?).expect(ENDLESS);
        Some(())
    }

    fn map(&mut self, len: u32) {
        encode::write_map_len(&mut self.out, len).expect(ENDLESS);
    }

    fn nil(&mut self) {
        encode::write_nil(&mut self.out).expect(ENDLESS);
    }

    fn float(&mut self, number: f64) {
        encode::write_f64(&mut self.out, number).expect(ENDLESS);
    }

    fn uint(&mut self, number: u64) {
        encode::write_uint(&mut self.out, number).expect(ENDLESS);
    }

    fn text(&mut self, text: &str) -> Option<()> {
        u32::try_from(text.len()).ok()?;
        encode::write_str(&mut self.out, text).expect(ENDLESS);
        Some(())
    }

    fn text_or_nil(&mut self, text: Option<&str>) -> Option<()> {
        match text {
            Some(text) => self.text(text),
            None => {
                self.nil();
                Some(())
            }
        }
    }

    fn hash(&mut self, hash: EngineHash) {
        match self.hashes {
            HashForm::Int => self.uint(hash.0),
            HashForm::Bytes => {
                let mut digest = [0; 32];
                digest[24..].copy_from_slice(&hash.0.to_be_bytes());
                encode::write_bin(&mut self.out, &digest).expect(ENDLESS);
            }
        }
    }

    fn hash_list(&mut self, hashes: &[EngineHash]) -> Option<()> {
        self.array(hashes.len())?;
        for &hash in hashes {
            self.hash(hash);
        }
        Some(())
    }

    fn event(&mut self, event: &CacheEvent, form: Form) -> Option<()> {
        match (event, form) {
            (CacheEvent::Cleared, Form::Array) => {
                self.array(1)?;
                self.text("AllBlocksCleared")
            }
            (CacheEvent::Cleared, Form::Map) => {
                self.map(1);
                self.text("type")?;
                self.text("AllBlocksCleared")
            }
            (CacheEvent::Removed(removed), _) => self.removed(removed, form),
            (CacheEvent::Stored(stored), _) => self.stored(stored, form),
        }
    }

    fn key(&mut self, form: Form, name: &str) -> Option<()> {
        if form == Form::Map { self.text(name) } else { Some(()) }
    }

    fn removed(&mut self, removed: &Removed, form: Form) -> Option<()> {
        let counts = removed.remaining_copy_counts.as_deref().filter(|_| form == Form::Map);
        let fields = 3 + usize::from(removed.group.is_some());
        match form {
            Form::Array => self.array(fields)?,
            Form::Map => self.map(u32::try_from(fields + usize::from(counts.is_some())).ok()?),
        }
        self.key(form, "type")?;
        self.text("BlockRemoved")?;
        self.key(form, "block_hashes")?;
        self.hash_list(&removed.hashes)?;
        self.key(form, "medium")?;
        self.text(medium_of_tier(removed.tier))?;
        self.group(form, removed.group)?;
        if let Some(counts) = counts {
            self.text("remaining_copy_counts")?;
            self.array(counts.len())?;
            for &count in counts {
                self.uint(u64::from(count));
            }
        }
        Some(())
    }

    fn group(&mut self, form: Form, group: Option<u32>) -> Option<()> {
        if let Some(group) = group {
            self.key(form, "group_idx")?;
            self.uint(u64::from(group));
        }
        Some(())
    }

    fn stored(&mut self, stored: &Stored, form: Form) -> Option<()> {
        let kind = match stored.attention {
            Attention::Unstated => None,
            Attention::Prefix => Some("full_attention"),
            Attention::Other => Some("sliding_window"),
        };
        let kind = kind.filter(|_| form == Form::Map);
        let fields = 9 + usize::from(stored.group.is_some()) + usize::from(kind.is_some());
        match form {
            Form::Array => self.array(fields)?,
            Form::Map => self.map(u32::try_from(fields).ok()?),
        }
        let tokens = if let Content::Tokens(tokens) = &stored.content { tokens.as_slice() } else { &[] };
        self.key(form, "type")?;
        self.text("BlockStored")?;
        self.key(form, "block_hashes")?;
        self.hash_list(&stored.hashes)?;
        self.key(form, "parent_block_hash")?;
        match stored.parent {
            Some(parent) => self.hash(parent),
            None => self.nil(),
        }
        self.key(form, "token_ids")?;
        self.array(tokens.len())?;
        for &token in tokens {
            self.uint(u64::from(token));
        }
        self.key(form, "block_size")?;
        self.uint(u64::from(stored.block_size.unwrap_or(0)));
        self.key(form, "lora_id")?;
        self.nil();
        self.key(form, "medium")?;
        self.text(medium_of_tier(stored.tier))?;
        self.key(form, "lora_name")?;
        self.text_or_nil(stored.adapter.as_deref())?;
        self.key(form, "extra_keys")?;
        self.extra_keys(stored)?;
        self.group(form, stored.group)?;
        if let Some(kind) = kind {
            self.text("kv_cache_spec_kind")?;
            self.text(kind)?;
        }
        Some(())
    }

    fn extra_keys(&mut self, stored: &Stored) -> Option<()> {
        self.array(stored.hashes.len())?;
        let salt = stored.salt.as_deref().filter(|_| stored.parent.is_none());
        for block in 0..stored.hashes.len() {
            let media = || stored.media.iter().filter(|medium| medium.block == block);
            let salt = salt.filter(|_| block == 0);
            let items = usize::from(stored.adapter.is_some()) + media().count() + usize::from(salt.is_some());
            if items == 0 {
                self.nil();
                continue;
            }
            self.array(items)?;
            if let Some(adapter) = &stored.adapter {
                self.text(adapter)?;
            }
            for medium in media() {
                self.array(2)?;
                self.text(&medium.identifier)?;
                self.uint(0);
            }
            if let Some(salt) = salt {
                self.text(salt)?;
            }
        }
        Some(())
    }
}
