//! vLLM's `extra_keys`: what else than tokens is part of a block's identity, one entry for each block.
//!
//! An entry is nil or an array of untagged items, in vLLM's order: the adapter's name, media, the cache salt (first
//! block of a prompt only), prompt embeddings. Seen in recorded frames of 0.20.2 and 0.32.0: `["tenant-1"]` with the
//! first block for a salt; `["tiny-lora"]` with every block for an adapter; `["tiny-lora", "tenant-1"]` for both. Media
//! are pairs of identifier and offset in current versions and plain text in older ones.
//!
//! An item is therefore read as
//! 1. the adapter, if it is the entry's first item and equals the event's `lora_name`;
//! 2. a medium, if it is an array that begins with text: that text is its identifier;
//! 3. the salt, if it is the last plain text of the first block of an event without parent, and the next block does not
//!    repeat it (a salt stands once, a medium in every block that it fills);
//! 4. a medium, if it is any other text;
//! 5. otherwise (embeddings, or something new) a medium named by its bytes. Such a block matches no prompt: not knowing
//!    costs a hit, never a false one.

use std::fmt::Write;
use std::sync::Arc;

use super::cursor::{Cursor, Value, text};
use super::{DecodeError, MAX_EXTRA_KEYS, MAX_HASHES};
use crate::event::Medium;

/// What the extra keys of an event say.
#[derive(Default)]
pub(super) struct ExtraKeys {
    pub(super) salt: Option<Arc<str>>,
    pub(super) media: Vec<Medium>,
}

/// An item that is not the adapter's name.
enum Item<'a> {
    Plain(&'a str),
    Medium(Box<str>),
}

/// Reads the keys of an event with `blocks` hashes; `first` says that it has no parent.
pub(super) fn read(
    mut cursor: Cursor<'_>,
    blocks: usize,
    adapter: Option<&str>,
    first: bool,
) -> Result<ExtraKeys, DecodeError> {
    let at = cursor.at();
    let before = cursor;
    if cursor.value("extra_keys")? == Value::Nil {
        return Ok(ExtraKeys::default());
    }
    cursor = before;
    let entries = cursor.array("extra_keys", MAX_HASHES)?;
    if entries != blocks {
        return Err(DecodeError::Misaligned { at, field: "extra_keys" });
    }
    let mut items: Vec<(usize, Item<'_>)> = Vec::new();
    for block in 0..entries {
        read_entry(&mut cursor, block, adapter, &mut items)?;
    }
    let salt = if first { take_salt(&mut items) } else { None };
    let media = items.into_iter().map(|(block, item)| Medium {
        block,
        identifier: match item {
            Item::Plain(identifier) => identifier.into(),
            Item::Medium(identifier) => identifier,
        },
    });
    Ok(ExtraKeys { salt, media: media.collect() })
}

fn read_entry<'a>(
    cursor: &mut Cursor<'a>,
    block: usize,
    adapter: Option<&str>,
    items: &mut Vec<(usize, Item<'a>)>,
) -> Result<(), DecodeError> {
    let at = cursor.at();
    let count = match cursor.value("extra_keys")? {
        Value::Nil => return Ok(()),
        Value::Array(count) => usize::try_from(count).unwrap_or(usize::MAX),
        other => return Err(DecodeError::WrongType { at, field: "extra_keys", found: other.name() }),
    };
    if count > MAX_EXTRA_KEYS.saturating_sub(items.len()) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        return Err(DecodeError::TooMany { at, field: "extra_keys", count, limit: MAX_EXTRA_KEYS });
    }
    for place in 0..count {
        let item = read_item(cursor)?;
        let is_adapter = place == 0 && matches!(item, Item::Plain(name) if Some(name) == adapter);
        if !is_adapter {
            items.push((block, item));
        }
    }
    Ok(())
}

fn read_item<'a>(cursor: &mut Cursor<'a>) -> Result<Item<'a>, DecodeError> {
    let at = cursor.at();
    let before = *cursor;
    match cursor.value("extra_keys")? {
        Value::Text(bytes) => return text(bytes, "extra_keys", at).map(Item::Plain),
        Value::Array(2..) => {
            if let Value::Text(bytes) = cursor.value("extra_keys")? {
                let identifier = text(bytes, "extra_keys", at)?;
                *cursor = before;
                cursor.skip("extra_keys")?;
                return Ok(Item::Medium(identifier.into()));
            }
        }
        _ => {}
    }
    *cursor = before;
    let bytes = cursor.skipped("extra_keys")?;
    Ok(Item::Medium(named_by_bytes(bytes)))
}

/// A name for an item that has none. Long ones are cut: what matters is that no medium of a prompt is called so.
fn named_by_bytes(bytes: &[u8]) -> Box<str> {
    let mut name = String::from("0x");
    for byte in bytes.iter().take(64) {
        write!(name, "{byte:02x}").expect("a String takes all that is written");
    }
    name.into()
}

/// Takes the salt out of the items of a prompt's beginning.
fn take_salt(items: &mut Vec<(usize, Item<'_>)>) -> Option<Arc<str>> {
    let place = items.iter().rposition(|(block, item)| *block == 0 && matches!(item, Item::Plain(_)))?;
    let (_, Item::Plain(salt)) = items[place] else { return None };
    let repeated =
        |(block, item): &(usize, Item<'_>)| *block == 1 && matches!(item, Item::Plain(text) if *text == salt);
    if salt.is_empty() || items.iter().any(repeated) {
        return None;
    }
    items.remove(place);
    Some(salt.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(
        message: &[u8],
        blocks: usize,
        adapter: Option<&str>,
        first: bool,
    ) -> (Option<String>, Vec<(usize, String)>) {
        let keys = read(Cursor::new(message), blocks, adapter, first).unwrap();
        let media = keys.media.into_iter().map(|medium| (medium.block, medium.identifier.into())).collect();
        (keys.salt.map(|salt| salt.to_string()), media)
    }

    const A: [u8; 2] = [0xa1, b'a'];
    const S: [u8; 2] = [0xa1, b's'];
    const IMAGE: [u8; 4] = [0x92, 0xa1, b'i', 0xfd];

    #[test]
    fn a_text_of_the_first_block_is_the_salt() {
        let message = [&[0x92, 0x91][..], &S, &[0xc0]].concat();
        assert_eq!(keys(&message, 2, None, true), (Some("s".into()), vec![]));
        assert_eq!(keys(&message, 2, None, false), (None, vec![(0, "s".into())]));
    }

    #[test]
    fn the_adapter_is_told_from_the_salt_even_if_they_are_equal() {
        let message = [&[0x92, 0x92][..], &A, &S, &[0x91], &A].concat();
        assert_eq!(keys(&message, 2, Some("a"), true), (Some("s".into()), vec![]));
        let message = [&[0x91, 0x92][..], &A, &A].concat();
        assert_eq!(keys(&message, 1, Some("a"), true), (Some("a".into()), vec![]));
    }

    #[test]
    fn media_stand_before_the_salt_and_in_later_blocks() {
        let message = [&[0x92, 0x93][..], &A, &IMAGE, &S, &[0x92], &A, &IMAGE].concat();
        let media = vec![(0, "i".into()), (1, "i".into())];
        assert_eq!(keys(&message, 2, Some("a"), true), (Some("s".into()), media));
    }

    #[test]
    fn a_text_that_goes_on_in_the_next_block_is_a_medium() {
        let message = [&[0x92, 0x91][..], &S, &[0x91], &S].concat();
        assert_eq!(keys(&message, 2, None, true), (None, vec![(0, "s".into()), (1, "s".into())]));
    }

    #[test]
    fn an_item_of_an_unknown_kind_keeps_the_block_apart() {
        let message = [0x91, 0x91, 0xc4, 2, 7, 255];
        assert_eq!(keys(&message, 1, None, true), (None, vec![(0, "0xc40207ff".into())]));
    }

    #[test]
    fn entries_that_are_not_one_for_each_block_are_refused() {
        let read = read(Cursor::new(&[0x91, 0xc0]), 2, None, true);
        assert_eq!(read.err(), Some(DecodeError::Misaligned { at: 0, field: "extra_keys" }));
    }
}
