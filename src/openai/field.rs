//! One field's raw JSON to a value, with errors that name the field. `None` is a field that is absent or `null`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::{BadRequest, Raw, lax};

/// A text, borrowed from the body unless it has escapes.
pub(super) fn text<'a>(param: &'static str, raw: Option<Raw<'a>>) -> Result<Option<Cow<'a, str>>, BadRequest> {
    let text: Result<Option<Text<'a>>, _> = value(param, "a string", raw);
    // The scan has seen that it is JSON: nothing else can be wrong with a string.
    let is_string = raw.is_some_and(|raw| raw.get().starts_with('"'));
    let halved = || BadRequest::field(param, format!("`{param}` has half of a surrogate pair"));
    Ok(text.map_err(|error| if is_string { halved() } else { error })?.map(|text| text.0))
}

/// A boolean, or what engines take for one.
pub(super) fn flag(param: &'static str, raw: Option<Raw<'_>>) -> Result<Option<bool>, BadRequest> {
    let Some(raw) = raw else { return Ok(None) };
    let flag = match raw.get() {
        "true" => Some(true),
        "false" => Some(false),
        other => lax::flag(other),
    };
    flag.map(Some).ok_or_else(|| BadRequest::field(param, format!("`{param}` must be a boolean")))
}

/// An integer, or what engines take for one.
pub(super) fn integer(param: &'static str, raw: Option<Raw<'_>>) -> Result<Option<i64>, BadRequest> {
    let Some(raw) = raw else { return Ok(None) };
    let integer = raw.get().parse().ok().or_else(|| lax::integer(raw.get()));
    integer.map(Some).ok_or_else(|| BadRequest::field(param, format!("`{param}` must be an integer")))
}

/// A count of tokens; more than `u32` holds counts as its maximum, since no engine takes that many.
pub(super) fn count(param: &'static str, raw: Option<Raw<'_>>) -> Result<Option<u32>, BadRequest> {
    match integer(param, raw)? {
        None => Ok(None),
        Some(count) if count < 0 => Err(BadRequest::field(param, format!("`{param}` must be at least 0, got {count}"))),
        Some(count) => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
    }
}

/// Raw JSON that starts with `open`: an array or an object.
pub(super) fn shaped<'a>(param: &'static str, open: u8, raw: Option<Raw<'a>>) -> Result<Option<Raw<'a>>, BadRequest> {
    match raw {
        Some(raw) if raw.get().as_bytes().first() != Some(&open) => {
            let shape = if open == b'[' { "an array" } else { "an object" };
            Err(BadRequest::field(param, format!("`{param}` must be {shape}")))
        }
        _ => Ok(raw),
    }
}

/// A value of any type; the error says that the field must be `expected`.
pub(super) fn value<'a, T: Deserialize<'a>>(
    param: &'static str,
    expected: &str,
    raw: Option<Raw<'a>>,
) -> Result<Option<T>, BadRequest> {
    let Some(raw) = raw else { return Ok(None) };
    let value = serde_json::from_str(raw.get());
    value.map(Some).map_err(|_| BadRequest::field(param, format!("`{param}` must be {expected}")))
}

/// A list of at most `limit` elements, each `expected` to be something. What stands there instead is not said: it may be as
/// long as a body, and is nothing for others to read.
pub(super) fn list<'a, T: Deserialize<'a>>(
    param: &'static str,
    limit: usize,
    expected: &'static str,
    raw: Raw<'a>,
) -> Result<Vec<T>, BadRequest> {
    let mut json = serde_json::Deserializer::from_str(raw.get());
    AtMost { limit, expected, element: PhantomData }.deserialize(&mut json).map_err(|error| {
        let error = error.to_string();
        let fault = error.split(" at line ").next().unwrap_or_default();
        BadRequest::field(param, format!("`{param}` {fault}"))
    })
}

/// A string that borrows where it can.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A token's id. What is none is refused without a word: serde would write out whatever stands there.
pub(super) struct TokenId(pub(super) u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = TokenId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<TokenId, E> {
        u32::try_from(id).map(TokenId).map_err(|_| E::custom("no token id"))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<TokenId, E> {
        // Below 2^52 a whole number is what lies behind the point of one that is so much larger.
        let is_id = id.trunc() == id && (0.0..=f64::from(u32::MAX)).contains(&id);
        let id = is_id.then(|| (id + 4_503_599_627_370_496.0).to_bits() & u64::from(u32::MAX));
        id.and_then(|id| u32::try_from(id).ok()).map(TokenId).ok_or_else(|| E::custom("no token id"))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<TokenId, E> {
        Err(E::custom("no token id"))
    }
}

/// A list of token ids, refused in the same way.
pub(super) struct TokenIds(pub(super) Vec<u32>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdsVisitor)
    }
}

struct IdsVisitor;

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = TokenIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<TokenIds, A::Error> {
        let mut ids = Vec::new();
        while let Some(TokenId(id)) = elements.next_element()? {
            ids.push(id);
        }
        Ok(TokenIds(ids))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<TokenIds, E> {
        Err(E::custom("no token ids"))
    }
}

/// Reads a list and stops at the first element too many.
struct AtMost<T> {
    limit: usize,
    expected: &'static str,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for AtMost<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.limit)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        loop {
            let before = list.len();
            match elements.next_element() {
                Ok(Some(_)) if before == self.limit => {
                    return Err(A::Error::custom(format_args!("may have at most {} elements", self.limit)));
                }
                Ok(Some(element)) => list.push(element),
                Ok(None) => return Ok(list),
                Err(_) => {
                    let expected = self.expected;
                    return Err(A::Error::custom(format_args!("has a bad element {before}: expected {expected}")));
                }
            }
        }
    }
}
