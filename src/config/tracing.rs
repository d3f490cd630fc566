//! `tracing`: where spans of requests are sent.

use std::fmt;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use warmpath_core::cost::Share;

use super::address::{Secret, checked_authority, header_value};
use super::place::Spanned;
use super::queue::HeaderField;

/// Where spans of requests are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tracing {
    /// A receiver of OTLP over HTTP; none: spans are made nowhere.
    pub otlp: Option<OtlpUrl>,
    /// What it is told beside them, such as a key.
    pub headers: Spanned<SentHeaders>,
    /// How many of the traces that begin here are recorded.
    pub sample: Share,
}

impl Default for Tracing {
    fn default() -> Self {
        let sample = Share::try_from(1.0).expect("1 is a share");
        Self { otlp: None, headers: SentHeaders::default().into(), sample }
    }
}

/// Headers of our own requests, by their names. Their values are not shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentHeaders(Vec<(SentName, SentValue)>);

/// A header that we may add to a request of ours.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct SentName {
    name: HeaderName,
    /// As it was written, by which it is shown.
    written: String,
}

/// A header's value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Secret")]
struct SentValue(HeaderValue);

/// Those that every request has by itself, or that would change how it is framed.
const OWN: [HeaderName; 7] = [
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

impl SentHeaders {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same for a request.
    pub fn to_map(&self) -> HeaderMap {
        self.0.iter().map(|(name, SentValue(value))| (name.name.clone(), value.clone())).collect()
    }

    /// Names whose values differ in `other`, which has them, too.
    pub(super) fn changed<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        let differs = |(name, value): &&(SentName, SentValue)| {
            other.0.iter().any(|(other, its)| other.written == name.written && its != value)
        };
        self.0.iter().filter(differs).map(|(name, _)| name.written.as_str())
    }
}

impl TryFrom<String> for SentName {
    type Error = String;

    fn try_from(written: String) -> Result<Self, String> {
        let name = HeaderField::try_from(written.clone())?.name().clone();
        if OWN.contains(&name) {
            Err(format!("`{name}` is set by Warmpath itself"))
        } else {
            Ok(Self { name, written })
        }
    }
}

impl TryFrom<Secret> for SentValue {
    type Error = &'static str;

    fn try_from(secret: Secret) -> Result<Self, &'static str> {
        header_value(&secret).map(Self)
    }
}

impl Serialize for SentHeaders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, _)| map.serialize_entry(&name.written, "[secret]"))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for SentHeaders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Named)
    }
}

struct Named;

impl<'de> Visitor<'de> for Named {
    type Value = SentHeaders;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("headers by their names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SentHeaders, A::Error> {
        let mut headers: Vec<(SentName, SentValue)> = Vec::new();
        while let Some((name, value)) = map.next_entry::<SentName, SentValue>()? {
            // Names that differ in case only are one: the last counts.
            headers.retain(|(known, _)| known.name != name.name);
            headers.push((name, value));
        }
        Ok(SentHeaders(headers))
    }
}

/// Where receivers take traces.
const TRACES: &str = "/v1/traces";

/// A receiver of OTLP over HTTP: `http://HOST:PORT`, with a path where one stands before `/v1/traces`, which may be said, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OtlpUrl {
    scheme: Scheme,
    authority: Authority,
    path: PathAndQuery,
}

impl OtlpUrl {
    /// `http` or `https`.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Host and port.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where traces go.
    pub fn path(&self) -> &PathAndQuery {
        &self.path
    }
}

impl TryFrom<String> for OtlpUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("expected a URL such as http://127.0.0.1:4318, got `{text}`");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme)).ok_or_else(wrong)?;
        let authority = uri.authority().ok_or_else(wrong)?;
        checked_authority(Some(authority)).map_err(|what| format!("{what}, got `{text}`"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err("the url of an OTLP receiver has neither credentials nor query".to_owned());
        }
        // As OpenTelemetry's own `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` has it, or with what stands before that alone.
        let before = uri.path().trim_end_matches('/');
        let before = before.strip_suffix(TRACES).unwrap_or(before);
        let path = PathAndQuery::try_from(format!("{before}{TRACES}")).map_err(|_| wrong())?;
        Ok(Self { scheme: scheme.clone(), authority: authority.clone(), path })
    }
}

impl From<OtlpUrl> for String {
    fn from(url: OtlpUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for OtlpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.path();
        let before = path.strip_suffix(TRACES).unwrap_or(path);
        write!(f, "{}://{}{before}", self.scheme, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(yaml: &str) -> Result<Tracing, String> {
        let fleet = "models: [{name: m}]\nworkers: [{id: w, url: 'http://h:1', model: m}]\n";
        let tracing = format!("{fleet}tracing: {{otlp: 'http://a:1', headers: {yaml}}}\n");
        crate::config::Config::parse("f", tracing).map(|config| config.tracing).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_are_sent_and_never_shown() {
        let tracing = headers("{X-Key: k-1, x-tenant: 7, x-none: , x-key: k-2}").unwrap();
        let sent = tracing.headers.to_map();
        assert_eq!(
            (sent.len(), &sent["x-key"], &sent["x-tenant"]),
            (2, &"k-2".parse().unwrap(), &"7".parse().unwrap())
        );
        let json = serde_json::to_string(&tracing.headers).unwrap();
        assert_eq!(json, r#"{"x-tenant":"[secret]","x-key":"[secret]"}"#);
        assert!(!format!("{tracing:?}").contains("k-2"));
        let other = headers("{x-key: k-3, x-tenant: 7, x-more: 1}").unwrap();
        assert_eq!(other.headers.changed(&tracing.headers).collect::<Vec<_>>(), ["x-key"]);
    }

    #[test]
    fn a_receiver_is_written_as_it_is_read_and_takes_traces_at_their_path() {
        for (text, path) in [
            ("http://127.0.0.1:4318", "/v1/traces"),
            ("https://otlp.example/otlp", "/otlp/v1/traces"),
            ("http://[::1]:4318", "/v1/traces"),
        ] {
            let url = OtlpUrl::try_from(text.to_owned()).unwrap();
            assert_eq!((url.to_string().as_str(), url.path().as_str()), (text, path));
        }
        let whole = OtlpUrl::try_from("http://a:1/otlp/v1/traces/".to_owned()).unwrap();
        assert_eq!((whole.to_string().as_str(), whole.path().as_str()), ("http://a:1/otlp", "/otlp/v1/traces"));
        assert_eq!(OtlpUrl::try_from("http://a:1/".to_owned()).unwrap().to_string(), "http://a:1");
        for text in ["", "a:4318", "grpc://a:4317", "http://k@a:1", "http://a:1/?key=x"] {
            assert!(OtlpUrl::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
