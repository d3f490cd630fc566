//! What a configuration may contain, found out from the very code that reads it: the types are asked to read, and what they
//! ask for is noted. So it cannot differ from what is read.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::place::SPANNED;

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) form: Form,
    /// Whether it may be nothing.
    pub(super) nullable: bool,
    /// What else is asked of it, in words, by those who refused something else.
    pub(super) rules: Vec<String>,
}

/// The form of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Section(Vec<(&'static str, Shape)>),
    List(Box<Shape>),
    /// Names that the file chooses, each with such a value.
    Named(Box<Shape>),
    Choice(&'static [&'static str]),
    Flag,
    Integer {
        least: i128,
        most: i128,
    },
    Number,
    Text,
}

impl Shape {
    /// What lies below it under this key or number.
    pub(super) fn below(&self, step: &str) -> Option<&Shape> {
        match &self.form {
            Form::Section(keys) => keys.iter().find(|(key, _)| *key == step).map(|(_, shape)| shape),
            Form::List(item) | Form::Named(item) => Some(item),
            _ => None,
        }
    }
}

/// Sections lie within each other no deeper than this.
const DEPTH_MAX: usize = 8;

/// The shape of what `T` reads.
pub(super) fn of<T: DeserializeOwned>() -> Shape {
    shape::<T>(&mut Vec::new())
}

fn shape<T: DeserializeOwned>(path: &mut Vec<Step>) -> Shape {
    let first = probe::<T>(path, Fed::Least);
    let below = |step, path: &mut Vec<Step>| {
        path.push(step);
        let shape = shape::<T>(path);
        path.pop();
        shape
    };
    let form = match first.form.unwrap_or(Asked::Text) {
        Asked::Section(keys) if path.len() < DEPTH_MAX => {
            Form::Section(keys.iter().map(|key| (*key, below(Step::Key(key), path))).collect())
        }
        Asked::List if path.len() < DEPTH_MAX => Form::List(Box::new(below(Step::Item, path))),
        Asked::Named if path.len() < DEPTH_MAX => Form::Named(Box::new(below(Step::Key(ANY_NAME), path))),
        Asked::Choice(names) => Form::Choice(names),
        Asked::Flag => Form::Flag,
        Asked::Integer(least, most) => {
            let nonzero = least == 0 && first.refused.as_deref().is_some_and(|said| said.contains("nonzero"));
            Form::Integer { least: if nonzero { 1 } else { least }, most }
        }
        Asked::Number => Form::Number,
        Asked::Section(_) | Asked::List | Asked::Named | Asked::Text => Form::Text,
    };
    let mut rules = Vec::new();
    if matches!(form, Form::Integer { .. } | Form::Number | Form::Text) {
        let most = probe::<T>(path, Fed::Most);
        for said in [first.refused, most.refused].into_iter().flatten().filter(|said| !said.contains("nonzero")) {
            let rule =
                said.split([',', ';']).take_while(|part| !part.starts_with(" got ")).collect::<Vec<_>>().join(",");
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    Shape { form, nullable: first.nullable, rules }
}

/// What `T` asks for at the end of `path`, and what it says to a value at one end of what that could be.
fn probe<T: DeserializeOwned>(path: &[Step], fed: Fed) -> Noted {
    let (form, nullable) = (RefCell::new(None), Cell::new(false));
    let refused = T::deserialize(Probe { path, fed, form: &form, nullable: &nullable }).err();
    let refused = refused.and_then(|refusal| refusal.0);
    Noted { form: form.into_inner(), nullable: nullable.get(), refused }
}

#[derive(Clone, Copy)]
enum Step {
    Key(&'static str),
    Item,
}

/// The value at the end of the path.
#[derive(Clone, Copy)]
enum Fed {
    Least,
    Most,
}

struct Noted {
    form: Option<Asked>,
    nullable: bool,
    refused: Option<String>,
}

#[derive(Clone, Copy)]
enum Asked {
    Section(&'static [&'static str]),
    List,
    Named,
    Choice(&'static [&'static str]),
    Flag,
    Integer(i128, i128),
    Number,
    Text,
}

/// Why reading ended: the value at the end of the path was refused with these words, or nothing more was to be learned.
#[derive(Debug)]
struct Refusal(Option<String>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("enough"))
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self(Some(message.to_string()))
    }

    fn unknown_variant(_variant: &str, expected: &'static [&'static str]) -> Self {
        Self(Some(format!("`{}`", expected.join("` or `"))))
    }
}

/// Leads along the path, and notes what is asked for at its end.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [Step],
    fed: Fed,
    form: &'a RefCell<Option<Asked>>,
    nullable: &'a Cell<bool>,
}

impl<'a> Probe<'a> {
    /// Notes what is asked for, where the path ends here.
    fn note(&self, asked: Asked) -> Result<(), Refusal> {
        if !self.path.is_empty() {
            return Err(Refusal(None));
        }
        *self.form.borrow_mut() = Some(asked);
        Ok(())
    }

    /// One step on; none where the path ends here or goes another way.
    fn next(&self, is_next: impl Fn(Step) -> bool) -> Option<Probe<'a>> {
        let (step, path) = self.path.split_first()?;
        is_next(*step).then_some(Probe { path, ..*self })
    }
}

/// A name as good as any other.
const ANY_NAME: &str = "name";

/// No text that means anything to anybody.
const NONSENSE: &str = "\u{1}";

macro_rules! integers {
    ($($method:ident $visit:ident $kind:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            self.note(Asked::Integer($kind::MIN.into(), $kind::MAX.into()))?;
            visitor.$visit(match self.fed { Fed::Least => $kind::MIN, Fed::Most => $kind::MAX })
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Refusal;

    integers! {
        deserialize_u8 visit_u8 u8 deserialize_u16 visit_u16 u16 deserialize_u32 visit_u32 u32 deserialize_u64 visit_u64 u64
        deserialize_i8 visit_i8 i8 deserialize_i16 visit_i16 i16 deserialize_i32 visit_i32 i32 deserialize_i64 visit_i64 i64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.note(Asked::Flag)?;
        visitor.visit_bool(true)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.note(Asked::Number)?;
        visitor.visit_f64(match self.fed {
            Fed::Least => -1e300,
            Fed::Most => 1e300,
        })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.note(Asked::Text)?;
        visitor.visit_str(NONSENSE)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.nullable.set(self.nullable.get() || self.path.is_empty());
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        if name == SPANNED { visitor.visit_seq(Parts(self, 0)) } else { visitor.visit_newtype_struct(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.next(|step| matches!(step, Step::Item)) {
            Some(next) => visitor.visit_seq(One(Some(next))),
            None => {
                self.note(Asked::List)?;
                Err(Refusal(None))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match (self.path.first(), self.next(|step| matches!(step, Step::Key(_)))) {
            (Some(Step::Key(key)), Some(next)) => visitor.visit_map(Only(key, Some(next), false)),
            _ => {
                self.note(Asked::Section(keys))?;
                Err(Refusal(None))
            }
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.next(|step| matches!(step, Step::Key(_))) {
            Some(next) => visitor.visit_map(Only(ANY_NAME, Some(next), false)),
            None => {
                self.note(Asked::Named)?;
                Err(Refusal(None))
            }
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        names: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.note(Asked::Choice(names))?;
        Err(Refusal(None))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.deserialize_str(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// A list of one item.
struct One<'a>(Option<Probe<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        // Once the item is read nothing more is to be learned.
        let item = self.0.take().ok_or(Refusal(None))?;
        seed.deserialize(item).map(Some)
    }
}

/// A section with one key.
struct Only<'a>(&'static str, Option<Probe<'a>>, bool);

impl<'de> MapAccess<'de> for Only<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        if std::mem::replace(&mut self.2, true) {
            return Err(Refusal(None));
        }
        let key: StrDeserializer<'_, Refusal> = self.0.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        seed.deserialize(self.1.take().ok_or(Refusal(None))?)
    }
}

/// A value with a place: source, line, column, value.
struct Parts<'a>(Probe<'a>, u8);

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        self.1 += 1;
        let number = |one: u32| -> de::value::U32Deserializer<Refusal> { one.into_deserializer() };
        match self.1 {
            1 => seed.deserialize(IntoDeserializer::<Refusal>::into_deserializer("")).map(Some),
            2 | 3 => seed.deserialize(number(1)).map(Some),
            4 => seed.deserialize(self.0).map(Some),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn at(path: &[&str]) -> Shape {
        path.iter().fold(of::<Config>(), |shape, step| match shape.form {
            Form::Section(keys) => keys.into_iter().find(|(key, _)| key == step).unwrap().1,
            Form::List(item) if *step == "[]" => *item,
            form => panic!("{step} is not in {form:?}"),
        })
    }

    #[test]
    fn what_the_types_ask_for_is_what_they_read() {
        let integer = |least, most: u32| Form::Integer { least, most: most.into() };
        for (path, form, nullable, rules) in [
            (
                &["routing", "kv", "gamma"][..],
                Form::Number,
                false,
                &["weight must be finite and at least 0", "weight must be at most 1000000000"][..],
            ),
            (&["routing", "affinity", "match_min"], Form::Number, false, &["a share must be from 0 to 1"]),
            (&["listen", "routing_headers"], Form::Flag, false, &[]),
            (&["usage"], Form::Choice(&["as_asked", "always"]), false, &[]),
            (&["limits", "headers"], integer(1, u32::MAX), false, &[]),
            (&["decisions", "kept"], integer(0, u32::MAX), false, &["must be at most 1000000"]),
            (&["workers", "[]", "capacity_blocks"], integer(1, u32::MAX), true, &[]),
            (&["models", "[]", "aliases", "[]"], Form::Text, false, &[]),
            (&["discovery", "nats", "enabled"], Form::Flag, false, &[]),
            (&["tracing", "sample"], Form::Number, false, &["a share must be from 0 to 1"]),
        ] {
            let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            assert_eq!(at(path), Shape { form, nullable, rules }, "{path:?}");
        }
        let rules = vec!["a header's value is made of visible ASCII characters and spaces".to_owned()];
        let value = Shape { form: Form::Text, nullable: false, rules };
        assert_eq!(at(&["tracing", "headers"]).form, Form::Named(Box::new(value)));
        let total = at(&["timeouts", "total"]);
        assert_eq!(
            (total.form, total.rules.as_slice()),
            (Form::Text, &["expected a duration such as 250ms, 5s, 2m or 1h".to_owned()][..])
        );
        assert!(matches!(at(&["workers", "[]"]).form, Form::Section(keys) if keys.len() == 12));
    }
}
