//! A YAML document as a tree in which each key and value knows its place. Overrides and secrets are put in here, before
//! anything is decoded, and faulty nodes are taken out, so that the rest can still be judged.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{DefaultMessageFormatter, Error, Location, MessageFormatter, Options};

use super::fault::Fault;
use super::place::Place;

/// How often a document is read again after a fault was taken out of it.
pub(super) const ROUNDS_MAX: usize = 64;

/// A value with its place.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) content: Content,
    /// The text before substitution, which messages show instead of a secret.
    pub(super) origin: Option<String>,
}

/// What a node holds.
pub(super) enum Content {
    Scalar(Scalar),
    List(List),
    Map(Map),
}

/// A sequence, and whether a faulty element was taken out.
#[derive(Default)]
pub(super) struct List {
    pub(super) items: Vec<Node>,
    pub(super) damaged: bool,
}

/// A mapping in the order of the document, and the keys whose faulty values were taken out.
#[derive(Default)]
pub(super) struct Map {
    pub(super) entries: Vec<Entry>,
    pub(super) removed: Vec<String>,
}

/// A key with its value.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) node: Node,
}

/// A scalar: what it says, and what YAML takes it for. Which of the two counts is decided by the field.
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) value: Value,
}

/// What YAML takes a scalar for. Quoted scalars are text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text,
}

impl Scalar {
    /// Text, whatever it looks like.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: Value::Text }
    }

    /// What YAML makes of `text`, if that is one scalar other than text, and the text itself otherwise.
    pub(super) fn guess(text: &str) -> Self {
        match serde_saphyr::from_str_with_options(text, options()) {
            Ok(Raw::Scalar { value, .. }) if value != Value::Text => Self { text: text.to_owned(), value },
            _ => Self::text(text),
        }
    }
}

impl Node {
    /// A mapping without entries.
    pub(super) fn empty_map(place: Place) -> Self {
        Self { place, content: Content::Map(Map::default()), origin: None }
    }

    /// A scalar.
    pub(super) fn scalar(place: Place, scalar: Scalar) -> Self {
        Self { place, content: Content::Scalar(scalar), origin: None }
    }

    /// A list without items.
    pub(super) fn empty_list(place: Place) -> Self {
        Self { place, content: Content::List(List::default()), origin: None }
    }

    /// A list or a section that is written as one value at `place`, as YAML has it on one line; none where `text` is
    /// neither.
    pub(super) fn flow(text: &str, place: &Place) -> Option<Self> {
        let raw = serde_saphyr::from_str_with_options::<serde_saphyr::Spanned<Raw>>(text, options()).ok()?;
        let node = Builder { source: &place.source, text, repeated: &[] }.node(raw);
        (!matches!(node.content, Content::Scalar(_))).then_some(node)
    }

    /// The value of `key`, if this is a mapping that has it.
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.content {
            Content::Map(map) => map.entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Whether nothing was taken out of the node or below it.
    pub(super) fn is_whole(&self) -> bool {
        match &self.content {
            Content::Scalar(_) => true,
            Content::List(list) => !list.damaged && list.items.iter().all(Node::is_whole),
            Content::Map(map) => map.removed.is_empty() && map.entries.iter().all(|entry| entry.node.is_whole()),
        }
    }

    /// Whether the value of `key` in this mapping came through without a loss; true also if it was never there.
    pub(super) fn is_section_whole(&self, key: &str) -> bool {
        let lost = matches!(&self.content, Content::Map(map) if map.removed.iter().any(|removed| removed == key));
        !lost && self.entry(key).is_none_or(|entry| entry.node.is_whole())
    }

    /// The node at `path`, whose steps count entries or items.
    pub(super) fn at(&self, path: &[usize]) -> Option<&Node> {
        let Some((step, rest)) = path.split_first() else { return Some(self) };
        match &self.content {
            Content::Scalar(_) => None,
            Content::List(list) => list.items.get(*step)?.at(rest),
            Content::Map(map) => map.entries.get(*step)?.node.at(rest),
        }
    }

    /// Takes the node at `path` out. False if there is none, or if it is the root.
    pub(super) fn remove(&mut self, path: &[usize]) -> bool {
        match (&mut self.content, path) {
            (_, []) | (Content::Scalar(_), _) => false,
            (Content::List(list), [step]) if *step < list.items.len() => {
                list.items.remove(*step);
                list.damaged = true;
                true
            }
            (Content::Map(map), [step]) if *step < map.entries.len() => {
                map.removed.push(map.entries.remove(*step).key);
                true
            }
            (Content::List(list), [step, rest @ ..]) => list.items.get_mut(*step).is_some_and(|node| node.remove(rest)),
            (Content::Map(map), [step, rest @ ..]) => {
                map.entries.get_mut(*step).is_some_and(|entry| entry.node.remove(rest))
            }
        }
    }
}

/// Reads one YAML document. An empty one is an empty mapping. Repeated keys are reported and left out; after any other
/// breach of YAML there is no document. Aliases, depth and size are bounded before they are expanded.
pub(super) fn parse(name: &str, text: &str, faults: &mut Vec<Fault>) -> Option<Node> {
    let source: Arc<str> = name.into();
    let mut text = text.to_owned();
    let mut repeated = Vec::new();
    loop {
        match serde_saphyr::from_str_with_options::<serde_saphyr::Spanned<Raw>>(&text, options()) {
            Ok(root) => {
                let root = Builder { source: &source, text: &text, repeated: &repeated }.node(root);
                let is_empty = matches!(root.content, Content::Scalar(Scalar { value: Value::Nothing, .. }));
                return Some(if is_empty { Node::empty_map(root.place) } else { root });
            }
            Err(error) => {
                let location = error.location().unwrap_or(Location::UNKNOWN);
                faults.push(Fault::new(place(&source, location), &message(&error)));
                let is_repeated = matches!(error.without_snippet(), Error::DuplicateMappingKey { .. });
                if !is_repeated || repeated.len() == ROUNDS_MAX || !blank(&mut text, location, repeated.len()) {
                    return None;
                }
                repeated.push(place(&source, location));
            }
        }
    }
}

/// What no configuration of a thousand workers comes near.
pub(super) fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 16,
            flow_nesting_limit: 16,
            max_nodes: 100_000,
            max_events: 200_000,
            max_aliases: 5_000,
            max_anchors: 1_000,
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 50_000, max_replay_stack_depth: 16 },
        strict_booleans: true,
        with_snippet: false,
        emit_comments: false,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    }
}

fn message(error: &Error) -> String {
    match error.without_snippet() {
        Error::AliasError { error, .. } => message(error),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("key `{key}` is given twice"),
        Error::MultipleDocuments { .. } => "a second document begins here: a configuration is one document".to_owned(),
        Error::AliasReplayLimitExceeded { max_total_replayed_events, .. } => {
            format!("aliases repeat more than {max_total_replayed_events} nodes")
        }
        other => DefaultMessageFormatter.format_message(other).into_owned(),
    }
}

fn place(source: &Arc<str>, location: Location) -> Place {
    let from_one = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).max(1);
    Place { source: source.clone(), line: from_one(location.line()), column: from_one(location.column()) }
}

/// Puts a key of equal length that nobody writes in the place of a repeated one, so that all other places stay.
fn blank(text: &mut String, key: Location, count: usize) -> bool {
    let Some(range) = bytes(text, key) else { return false };
    let Some(filler) = u32::try_from(count).ok().and_then(|count| char::from_u32(0xe000 + count)) else { return false };
    let filled: String = text[range.clone()].chars().map(|_| filler).collect();
    text.replace_range(range, &filled);
    true
}

/// The bytes of `text` at `location`, where there are any.
fn bytes(text: &str, location: Location) -> Option<std::ops::Range<usize>> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    (start < end && text.get(start..end).is_some()).then_some(start..end)
}

/// The document as the YAML reader hands it out.
enum Raw {
    Scalar { value: Value, text: String },
    List(Vec<serde_saphyr::Spanned<Raw>>),
    Map(Vec<(serde_saphyr::Spanned<String>, serde_saphyr::Spanned<Raw>)>),
}

struct Builder<'a> {
    source: &'a Arc<str>,
    text: &'a str,
    repeated: &'a [Place],
}

impl Builder<'_> {
    fn node(&self, raw: serde_saphyr::Spanned<Raw>) -> Node {
        let content = match raw.value {
            Raw::Scalar { value: Value::Text, text } => Content::Scalar(Scalar { text, value: Value::Text }),
            Raw::Scalar { value, text } => {
                let written = bytes(self.text, raw.defined).map_or(text, |range| self.text[range].to_owned());
                Content::Scalar(Scalar { text: written, value })
            }
            Raw::List(items) => {
                Content::List(List { items: items.into_iter().map(|item| self.node(item)).collect(), damaged: false })
            }
            Raw::Map(entries) => {
                let mut map = Map::default();
                for (key, value) in entries {
                    let place = place(self.source, key.referenced);
                    if !self.repeated.contains(&place) {
                        map.entries.push(Entry { key: key.value, place, node: self.node(value) });
                    }
                }
                Content::Map(map)
            }
        };
        Node { place: place(self.source, raw.referenced), content, origin: None }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar { value: Value::Text, text: text.to_owned() })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar { value: Value::Bool(value), text: value.to_string() })
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Scalar { value: Value::Int(value), text: value.to_string() })
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        self.visit_i128(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        self.visit_i128(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar { value: Value::Float(value), text: value.to_string() })
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar { value: Value::Nothing, text: String::new() })
    }

    fn visit_none<E: de::Error>(self) -> Result<Raw, E> {
        self.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Node>, Vec<String>) {
        let mut faults = Vec::new();
        let node = parse("f", text, &mut faults);
        (node, faults.iter().map(Fault::to_string).collect())
    }

    #[test]
    fn scalars_keep_their_text_and_their_place() {
        let (root, faults) = read("a: 0x10\nb: [ '5', -2.50 ]\nc: &c 1_000\nd: *c\ne:\n");
        let root = root.unwrap();
        assert!(faults.is_empty());
        for (path, text, value, line, column) in [
            (&[0][..], "0x10", Value::Int(16), 1, 4),
            (&[1, 0], "5", Value::Text, 2, 6),
            (&[1, 1], "-2.50", Value::Float(-2.5), 2, 11),
            (&[3], "1_000", Value::Int(1_000), 4, 4),
            (&[4], "", Value::Nothing, 5, 2),
        ] {
            let node = root.at(path).unwrap();
            let Content::Scalar(scalar) = &node.content else { panic!("not a scalar") };
            assert_eq!(scalar, &Scalar { text: text.to_owned(), value });
            assert_eq!((node.place.line, node.place.column), (line, column));
        }
    }

    #[test]
    fn repeated_keys_are_all_reported_and_the_first_one_counts() {
        let (root, faults) = read("a: {b: 1, 'b': 2}\nc: 3\na: 4\n");
        assert_eq!(faults, ["f:1:11: key `b` is given twice", "f:3:1: key `a` is given twice"]);
        let root = root.unwrap();
        assert_eq!(root.entry("a").unwrap().node.at(&[0]).unwrap().place.column, 8);
        assert!(root.at(&[0, 1]).is_none());
        assert!(root.at(&[2]).is_none());
    }

    #[test]
    fn what_is_taken_out_leaves_a_mark() {
        let mut root = read("a: {b: 1}\nc: [2]\n").0.unwrap();
        assert!(root.is_section_whole("a") && root.is_section_whole("nothing"));
        assert!(root.remove(&[0, 0]));
        assert!(!root.is_section_whole("a") && root.is_section_whole("c"));
        assert!(root.remove(&[1, 0]) && !root.is_section_whole("c"));
        assert!(root.remove(&[1]) && !root.is_section_whole("c"));
        assert!(!root.remove(&[]) && !root.remove(&[7]) && !root.remove(&[0, 0]));
    }

    #[test]
    fn a_guess_is_a_scalar_or_the_text_itself() {
        assert_eq!(Scalar::guess("5").value, Value::Int(5));
        assert_eq!(Scalar::guess("~").value, Value::Nothing);
        for text in ["[::1]:80", "{", "*a", "kv", "a #b", "'5'"] {
            assert_eq!(Scalar::guess(text), Scalar::text(text));
        }
    }
}
