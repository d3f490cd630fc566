//! What the API server says, as JSON: of an EndpointSlice (`discovery.k8s.io/v1`) what routing needs, and of lists, watches
//! and refusals the rest. Whatever has no value may be `null` or left out. Lists have bounds: what is beyond them is counted,
//! not kept.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::slices::SLICES_MAX;

/// The most endpoints of a slice, by Kubernetes' own rule.
pub(super) const ENDPOINTS_MAX: usize = 1000;

/// The most ports of a slice, by the same.
const PORTS_MAX: usize = 100;

/// The first items of a list.
#[derive(Debug)]
pub(super) struct Few<T, const MAX: usize> {
    pub(super) items: Vec<T>,
    /// How many more there are.
    pub(super) more: usize,
}

/// A part of an EndpointSliceList.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Page<'a> {
    #[serde(default)]
    pub(super) metadata: PageMeta,
    /// Each an [`Object`], read when the one before it has been taken in.
    #[serde(borrow)]
    pub(super) items: Option<Few<&'a RawValue, SLICES_MAX>>,
}

/// What is said of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    /// From where changes are watched.
    pub(super) resource_version: Option<String>,
    /// How the next part is asked for; none or empty: there is none.
    pub(super) r#continue: Option<String>,
}

/// An EndpointSlice.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    pub(super) address_type: Option<String>,
    pub(super) endpoints: Option<Few<Endpoint, ENDPOINTS_MAX>>,
    pub(super) ports: Option<Few<SlicePort, PORTS_MAX>>,
}

/// What is said of any object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectMeta {
    pub(super) name: Option<String>,
    pub(super) resource_version: Option<String>,
}

/// One endpoint of a slice.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    /// Consumers use the first.
    pub(super) addresses: Option<Few<String, 1>>,
    pub(super) conditions: Option<Conditions>,
    pub(super) target_ref: Option<Target>,
}

/// How an endpoint is.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Conditions {
    /// `None` counts as true.
    pub(super) ready: Option<bool>,
    /// `None` counts as false.
    pub(super) terminating: Option<bool>,
}

/// What stands behind an endpoint.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Target {
    pub(super) kind: Option<String>,
    pub(super) name: Option<String>,
}

/// A port of all endpoints of a slice.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SlicePort {
    pub(super) name: Option<String>,
    /// `None` counts as TCP.
    pub(super) protocol: Option<String>,
    /// `None`: any port.
    pub(super) port: Option<u32>,
}

/// A refusal in words.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Status {
    pub(super) code: Option<u16>,
    pub(super) message: Option<String>,
}

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), more: 0 }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T, MAX>, A::Error> {
                let mut few = Few::default();
                while few.items.len() < MAX {
                    let Some(item) = list.next_element()? else { return Ok(few) };
                    few.items.push(item);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    few.more += 1;
                }
                Ok(few)
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// What one line of a watch tells.
#[derive(Debug)]
pub(super) enum News {
    /// The slice is new, or is so now.
    Is(Object),
    /// The slice is no more.
    Gone(Object),
    /// Nothing but how far the watch has come.
    Bookmark(Object),
    /// The watch cannot go on.
    Failed(Status),
}

impl News {
    /// Reads a line.
    ///
    /// # Errors
    /// It is no event of a watch.
    pub(super) fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Event<'a> {
            r#type: String,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let Event { r#type, object } = serde_json::from_slice(line)?;
        let object = object.get();
        Ok(match r#type.as_str() {
            "ADDED" | "MODIFIED" => Self::Is(serde_json::from_str(object)?),
            "DELETED" => Self::Gone(serde_json::from_str(object)?),
            "ERROR" => Self::Failed(serde_json::from_str(object)?),
            // What is not known yet says at least how far it has come.
            _ => Self::Bookmark(serde_json::from_str(object)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_watch_are_told_apart() {
        let read = |line: &str| News::read(line.as_bytes()).map_err(|_| ());
        let object = r#"{"metadata":{"name":"a","resourceVersion":"7"},"addressType":"IPv4","endpoints":null}"#;
        let line = |kind: &str| format!(r#"{{"type":"{kind}","object":{object}}}"#);
        let is_a = |object: &Object| object.metadata.name.as_deref() == Some("a") && object.endpoints.is_none();
        assert!(matches!(read(&line("ADDED")), Ok(News::Is(object)) if is_a(&object)));
        assert!(matches!(read(&line("MODIFIED")), Ok(News::Is(object)) if is_a(&object)));
        assert!(matches!(read(&line("DELETED")), Ok(News::Gone(object)) if is_a(&object)));
        let seven = |object: &Object| object.metadata.resource_version.as_deref() == Some("7");
        assert!(matches!(read(&line("BOOKMARK")), Ok(News::Bookmark(object)) if seven(&object)));
        let expired = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 1 (7)"}}"#;
        assert!(matches!(read(expired), Ok(News::Failed(Status { code: Some(410), .. }))));
    }

    #[test]
    fn of_a_long_list_the_first_items_are_kept_and_the_others_counted() {
        let read = |text: &str| serde_json::from_str::<Few<u8, 2>>(text).map(|few| (few.items, few.more)).ok();
        assert_eq!(read("[]"), Some((vec![], 0)));
        assert_eq!(read("[1, 2]"), Some((vec![1, 2], 0)));
        assert_eq!(read("[1, 2, 3, {}, null]"), Some((vec![1, 2], 3)));
        assert_eq!(read("[1, {}]"), None);
        let many = "{},".repeat(5000);
        let hostile = format!("{{\"endpoints\":[{many}{{}}],\"ports\":[{many}{{}}]}}");
        let object: Object = serde_json::from_str(&hostile).unwrap();
        let (endpoints, ports) = (object.endpoints.unwrap(), object.ports.unwrap());
        assert_eq!((endpoints.items.len(), endpoints.more, ports.items.len(), ports.more), (1000, 4001, 100, 4901));
    }

    #[test]
    fn a_line_that_is_no_event_is_refused() {
        let deep = format!("{}{}", r#"{"type":"ADDED","object":{"x":"#, "[".repeat(100_000));
        for line in ["", "{}", "[]", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{"endpoints":7}}"#, &deep] {
            assert!(News::read(line.as_bytes()).is_err(), "{}", &line[..line.len().min(60)]);
        }
    }
}
