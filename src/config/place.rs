//! Where a value of the configuration was written.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// The name by which [`Spanned`] asks the document's deserializer for the place of a value.
pub(super) const SPANNED: &str = "__warmpath_spanned";

/// A place in a file, or in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file as it was named on the command line, or the variable's name.
    pub source: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Place {
    /// The first character of `source`.
    pub(super) fn start(source: impl Into<Arc<str>>) -> Self {
        Self { source: source.into(), line: 1, column: 1 }
    }

    /// This place as a message at `other` names it: without the source if that is the same.
    pub(super) fn seen_from(&self, other: &Place) -> String {
        if self.source == other.source { format!("{}:{}", self.line, self.column) } else { self.to_string() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source, self.line, self.column)
    }
}

/// A value and where it was written, so that rules across fields can name both places. Equal where the values are:
/// the place is not part of what is configured.
#[derive(Clone)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it was written; `None` for defaults and for values that a program made.
    pub place: Option<Place>,
}

impl<T> From<T> for Spanned<T> {
    fn from(value: T) -> Self {
        Self { value, place: None }
    }
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
            type Value = Spanned<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its place")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                T::deserialize(deserializer).map(Spanned::from)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let missing = || de::Error::custom("the place of a value is missing");
                let source: String = parts.next_element()?.ok_or_else(missing)?;
                let line = parts.next_element()?.ok_or_else(missing)?;
                let column = parts.next_element()?.ok_or_else(missing)?;
                let value = parts.next_element()?.ok_or_else(missing)?;
                Ok(Spanned { value, place: Some(Place { source: source.into(), line, column }) })
            }
        }

        deserializer.deserialize_newtype_struct(SPANNED, Parts(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_in_full_only_from_another_source() {
        let here = Place { source: "a.yaml".into(), line: 3, column: 7 };
        assert_eq!(here.to_string(), "a.yaml:3:7");
        assert_eq!(here.seen_from(&Place::start("a.yaml")), "3:7");
        assert_eq!(here.seen_from(&Place::start("WARMPATH__LISTEN__DATA")), "a.yaml:3:7");
    }

    #[test]
    fn values_are_equal_wherever_they_were_written() {
        let written = Spanned { value: 5, place: Some(Place::start("a.yaml")) };
        assert_eq!(written, Spanned::from(5));
        assert_ne!(written, Spanned::from(6));
    }
}
