//! Where things listen and are reached, and the secrets that open them.

use std::fmt;
use std::net::SocketAddr;

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The root of an HTTP server: `http://HOST`, `https://HOST:PORT` and the like, without path, query or credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseUrl(Uri);

/// A NATS server: `nats://HOST:PORT`, or `tls://HOST:PORT`; without credentials, which have keys of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NatsUrl(String);

/// A text that is never printed: neither by `Debug` nor when a configuration is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl BaseUrl {
    /// The scheme, host and port, with the path `/`.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &Scheme {
        self.0.scheme().unwrap_or(&Scheme::HTTP)
    }

    /// Host and port as the URL gives them.
    pub fn authority(&self) -> &str {
        self.0.authority().map_or("", |authority| authority.as_str())
    }
}

impl TryFrom<String> for BaseUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let uri: Uri =
            text.parse().map_err(|_| format!("expected a URL such as http://10.0.0.1:8000, got `{text}`"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(format!("expected a URL such as http://10.0.0.1:8000, got `{text}`"));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("a worker's url carries no credentials: use `api_key`".to_owned());
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || text.contains('#') {
            return Err(format!("a worker's url has neither path nor query, got `{text}`"));
        }
        checked_authority(uri.authority()).map_err(|what| format!("{what}, got `{text}`"))?;
        Ok(Self(uri))
    }
}

impl From<BaseUrl> for String {
    fn from(url: BaseUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

impl NatsUrl {
    /// The URL as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NatsUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("expected a URL such as nats://127.0.0.1:4222, got `{text}`");
        let rest = text.strip_prefix("nats://").or_else(|| text.strip_prefix("tls://")).ok_or_else(wrong)?;
        if rest.contains('@') {
            return Err("a NATS url carries no credentials: use `user` and `password`, or `token`".to_owned());
        }
        let authority: Authority = rest.parse().map_err(|_| wrong())?;
        match checked_authority(Some(&authority)) {
            _ if authority.host().is_empty() => Err(wrong()),
            Err(what) => Err(format!("{what}, got `{text}`")),
            Ok(_) => Ok(Self(text)),
        }
    }
}

/// A host that is named, with a port that there can be, where one is named. `http` takes any digits for a port, and none of
/// those that do not fit.
///
/// # Errors
/// What is wrong, in words.
pub fn checked_authority(authority: Option<&Authority>) -> Result<&Authority, &'static str> {
    let authority = authority.filter(|authority| !authority.host().is_empty()).ok_or("the url names no host")?;
    let text = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = text.strip_prefix(authority.host()).unwrap_or_default();
    match port.strip_prefix(':').map(str::parse) {
        None if port.is_empty() => Ok(authority),
        Some(Ok(1..=u16::MAX)) => Ok(authority),
        _ => Err("the url's port is none from 1 to 65535"),
    }
}

impl From<NatsUrl> for String {
    fn from(url: NatsUrl) -> String {
        url.0
    }
}

impl Secret {
    /// The text itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("[secret]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Err(de::Error::custom("a secret must not be empty")) } else { Ok(Self(text)) }
    }
}

/// Secrets that stand in headers: with one that cannot, the router would not start, or nobody could show it.
pub(super) fn sent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    struct Sent(Secret);

    impl<'de> Deserialize<'de> for Sent {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let secret = Secret::deserialize(deserializer)?;
            header_value(&secret).map_err(de::Error::custom)?;
            Ok(Self(secret))
        }
    }

    Ok(Option::<Sent>::deserialize(deserializer)?.map(|Sent(secret)| secret))
}

/// A secret as a header's value.
///
/// # Errors
/// When it can be none, in words that do not show it.
pub(super) fn header_value(secret: &Secret) -> Result<HeaderValue, &'static str> {
    let text = secret.expose();
    if text.trim_matches([' ', '\t']) != text {
        return Err("a header's value neither begins nor ends with a blank: it would be lost on the way");
    }
    let mut value =
        HeaderValue::try_from(text).map_err(|_| "a header's value is made of visible ASCII characters and spaces")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads an address to listen at, in place of serde's own message, which names no example.
pub(super) fn socket<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        de::Error::custom(format_args!("expected an address such as 127.0.0.1:8080 or [::]:8080, got `{text}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_a_scheme_a_host_and_a_port() {
        for (text, expected) in [
            ("http://w1:8000", Ok("http://w1:8000")),
            ("http://[::1]:8000/", Ok("http://[::1]:8000")),
            ("http://w1", Ok("http://w1")),
            ("https://w1", Ok("https://w1")),
            ("HTTPS://w1:8443/", Ok("https://w1:8443")),
            ("w1:8000", Err("expected a URL such as http://10.0.0.1:8000, got `w1:8000`")),
            ("ftp://w1", Err("expected a URL such as http://10.0.0.1:8000, got `ftp://w1`")),
            ("http://", Err("expected a URL such as http://10.0.0.1:8000, got `http://`")),
            ("http://u:p@w1", Err("a worker's url carries no credentials: use `api_key`")),
            ("http://w1/v1", Err("a worker's url has neither path nor query, got `http://w1/v1`")),
            ("http://w1#a", Err("a worker's url has neither path nor query, got `http://w1#a`")),
            ("http://:8000", Err("the url names no host, got `http://:8000`")),
            ("http://w1:80080", Err("the url's port is none from 1 to 65535, got `http://w1:80080`")),
            ("http://[::1]:65536", Err("the url's port is none from 1 to 65535, got `http://[::1]:65536`")),
            ("http://w1:0", Err("the url's port is none from 1 to 65535, got `http://w1:0`")),
            ("http://w1:", Err("the url's port is none from 1 to 65535, got `http://w1:`")),
            ("http://w1:65535", Ok("http://w1:65535")),
            ("http://w1?a=b", Err("a worker's url has neither path nor query, got `http://w1?a=b`")),
        ] {
            let url = BaseUrl::try_from(text.to_owned()).map(String::from);
            assert_eq!(url, expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn a_nats_server_is_a_scheme_a_host_and_a_port() {
        for text in ["nats://127.0.0.1:4222", "tls://nats.example:4222", "nats://[::1]"] {
            assert_eq!(NatsUrl::try_from(text.to_owned()).map(String::from), Ok(text.to_owned()));
        }
        for text in ["127.0.0.1:4222", "http://n", "nats://", "nats://a b", "nats://a/b", "nats://:4222"] {
            let message = format!("expected a URL such as nats://127.0.0.1:4222, got `{text}`");
            assert_eq!(NatsUrl::try_from(text.to_owned()), Err(message), "{text}");
        }
        let message = NatsUrl::try_from("nats://n:99999".to_owned()).unwrap_err();
        assert_eq!(message, "the url's port is none from 1 to 65535, got `nats://n:99999`");
        let message = NatsUrl::try_from("nats://u:hidden@n".to_owned()).unwrap_err();
        assert_eq!(message, "a NATS url carries no credentials: use `user` and `password`, or `token`");
    }

    #[test]
    fn a_secret_is_printed_by_nothing() {
        let secret = Secret::from("s3cret");
        assert_eq!(format!("{secret:?} {}", serde_json::to_string(&secret).unwrap()), "[secret] \"[secret]\"");
        assert_eq!(secret.expose(), "s3cret");
    }
}
