//! What the API server says, as JSON: of an EndpointSlice (`discovery.k8s.io/v1`) what routing needs, and of lists, watches
//! and refusals the rest. Whatever has no value may be `null` or left out.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A part of an EndpointSliceList.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) metadata: PageMeta,
    pub(super) items: Option<Vec<Object>>,
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
    pub(super) endpoints: Option<Vec<Endpoint>>,
    pub(super) ports: Option<Vec<SlicePort>>,
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
    pub(super) addresses: Option<Vec<String>>,
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
    fn a_line_that_is_no_event_is_refused() {
        let deep = format!("{}{}", r#"{"type":"ADDED","object":{"x":"#, "[".repeat(100_000));
        for line in ["", "{}", "[]", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{"endpoints":7}}"#, &deep] {
            assert!(News::read(line.as_bytes()).is_err(), "{}", &line[..line.len().min(60)]);
        }
    }
}
