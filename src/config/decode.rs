//! A document's tree -> values, with messages for people who write configurations.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::document::{Content, Entry, Node, Scalar, Value};
use super::fault::hint;
use super::place::{Place, SPANNED};

/// Decodes the whole document. A key without a value counts as not given.
///
/// # Errors
/// The first value or key that does not fit.
pub(super) fn decode<T: DeserializeOwned>(root: &Node) -> Result<T, Misfit> {
    T::deserialize(root).map_err(|misfit| misfit.at(root))
}

/// A value or key that does not fit.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) message: String,
    /// Where; set by the innermost node that sees the error pass.
    pub(super) place: Option<Place>,
    /// The way to the node, its last step first.
    steps: Vec<usize>,
    /// The key that is missing, where that is the fault.
    pub(super) missing: Option<&'static str>,
}

impl Misfit {
    fn new(message: String) -> Self {
        Self { message, place: None, steps: Vec::new(), missing: None }
    }

    /// The way from the root to the node that is at fault.
    pub(super) fn path(&self) -> Vec<usize> {
        self.steps.iter().rev().copied().collect()
    }

    /// Points at `node` unless a node below it is already known to be at fault. What was substituted is not shown.
    fn at(mut self, node: &Node) -> Self {
        if self.place.is_none() {
            self.place = Some(node.place.clone());
            if let (Some(origin), Content::Scalar(scalar)) = (&node.origin, &node.content) {
                self.message = with_origin(&self.message, &scalar.text, origin);
            }
        }
        self
    }

    fn below(mut self, step: usize) -> Self {
        self.steps.push(step);
        self
    }
}

/// `message` with where `text` is from in its place, where that is quoted or is what was got. The rest of a message is ours,
/// though it may have the same letters in it.
fn with_origin(message: &str, text: &str, origin: &str) -> String {
    let quoted = message.replace(&format!("`{text}`"), &format!("`{origin}`"));
    match quoted.strip_suffix(text).filter(|before| before.ends_with(", got ")) {
        Some(before) => format!("{before}{origin}"),
        None => quoted,
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_value(got: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        match got {
            de::Unexpected::Unsigned(0) => Self::new("must be at least 1, got 0".to_owned()),
            _ => Self::new(format!("expected {expected}, got {got}")),
        }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("unknown value `{variant}`{}", hint(variant, expected)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Self::new(format!("key `{field}` is missing")) }
    }
}

/// What a message calls a node.
struct Got<'a>(&'a Node);

impl fmt::Display for Got<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.content {
            Content::List(_) => f.write_str("a list"),
            Content::Map(_) => f.write_str("a section"),
            Content::Scalar(Scalar { value: Value::Nothing, .. }) => f.write_str("nothing"),
            Content::Scalar(scalar) => write!(f, "`{}`", scalar.text),
        }
    }
}

impl Node {
    fn misfit(&self, expected: impl fmt::Display) -> Misfit {
        Misfit::new(format!("expected {expected}, got {}", Got(self)))
    }

    /// The text of a scalar, whatever YAML takes it for.
    fn text(&self) -> Result<&str, Misfit> {
        match &self.content {
            Content::Scalar(scalar) if scalar.value != Value::Nothing => Ok(&scalar.text),
            _ => Err(self.misfit("text")),
        }
    }

    fn integer<T: TryFrom<i128>>(&self) -> Option<T> {
        match &self.content {
            Content::Scalar(Scalar { value: Value::Int(number), .. }) => T::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// Whether a type has no zero: such types say so in what they expect.
fn is_nonzero(expected: &dyn de::Expected) -> bool {
    expected.to_string().contains("nonzero")
}

macro_rules! integers {
    ($($method:ident $visit:ident $kind:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
            let Some(number) = self.integer() else {
                let least = if is_nonzero(&visitor) { 1 } else { $kind::MIN };
                return Err(self.misfit(format_args!("a whole number from {least} to {}", $kind::MAX)));
            };
            visitor.$visit(number)
        })*
    };
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Misfit;

    integers! {
        deserialize_u8 visit_u8 u8 deserialize_u16 visit_u16 u16 deserialize_u32 visit_u32 u32 deserialize_u64 visit_u64 u64
        deserialize_i8 visit_i8 i8 deserialize_i16 visit_i16 i16 deserialize_i32 visit_i32 i32 deserialize_i64 visit_i64 i64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::Scalar(Scalar { value: Value::Bool(value), .. }) => visitor.visit_bool(*value),
            _ => Err(self.misfit("true or false")),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::Scalar(Scalar { value: Value::Float(number), .. }) => visitor.visit_f64(*number),
            // By way of the digits: the conversion that rounds to nearest.
            Content::Scalar(Scalar { value: Value::Int(number), .. }) => {
                visitor.visit_f64(number.to_string().parse().map_err(|_| self.misfit("a number"))?)
            }
            _ => Err(self.misfit("a number")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::Scalar(Scalar { value: Value::Nothing, .. }) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Misfit> {
        if name == SPANNED {
            visitor.visit_seq(Parts { node: self, next: 0 })
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::List(list) => visitor.visit_seq(Items { items: &list.items, next: 0 }),
            _ => Err(self.misfit("a list")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::Map(map) => visitor.visit_map(Entries { entries: &map.entries, keys: Some(keys), next: 0 }),
            _ => Err(self.misfit("a section with keys")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.content {
            Content::Map(map) => visitor.visit_map(Entries { entries: &map.entries, keys: None, next: 0 }),
            _ => Err(self.misfit("a section with keys")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let text: StrDeserializer<'_, Misfit> = self.text()?.into_deserializer();
        visitor.visit_enum(text)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// The items of a list.
struct Items<'de> {
    items: &'de [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let step = self.next;
        let Some(item) = self.items.get(step) else { return Ok(None) };
        self.next += 1;
        seed.deserialize(item).map(Some).map_err(|misfit| misfit.at(item).below(step))
    }
}

/// The keys of a section. Keys without a value are passed over: they keep their default.
struct Entries<'de> {
    entries: &'de [Entry],
    /// Those that there are; none: names that whoever reads them judges.
    keys: Option<&'static [&'static str]>,
    next: usize,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        while let Some(entry) = self.entries.get(self.next) {
            let at_key = |misfit| Misfit { place: Some(entry.place.clone()), ..misfit }.below(self.next);
            if let Some(keys) = self.keys.filter(|keys| !keys.contains(&entry.key.as_str())) {
                let message = format!("unknown key `{}`{}", entry.key, hint(&entry.key, keys));
                return Err(at_key(Misfit::new(message)));
            }
            if !matches!(&entry.node.content, Content::Scalar(Scalar { value: Value::Nothing, .. })) {
                let key: StrDeserializer<'_, Misfit> = entry.key.as_str().into_deserializer();
                return seed.deserialize(key).map(Some).map_err(at_key);
            }
            self.next += 1;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Misfit> {
        let step = self.next;
        let entry = self.entries.get(step).ok_or_else(|| Misfit::new("a value without a key".to_owned()))?;
        self.next += 1;
        seed.deserialize(&entry.node).map_err(|misfit| misfit.at(&entry.node).below(step))
    }
}

/// A value and its place, for `Spanned`: source, line, column, value.
struct Parts<'de> {
    node: &'de Node,
    next: u8,
}

impl<'de> SeqAccess<'de> for Parts<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let place = &self.node.place;
        self.next += 1;
        match self.next {
            1 => seed.deserialize(place.source.as_ref().into_deserializer()).map(Some),
            2 => seed.deserialize(place.line.into_deserializer()).map(Some),
            3 => seed.deserialize(place.column.into_deserializer()).map(Some),
            4 => seed.deserialize(self.node).map(Some),
            _ => Ok(None),
        }
    }
}
