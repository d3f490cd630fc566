//! `tracing`: where spans of requests are sent.

use std::fmt;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use serde::{Deserialize, Serialize};

/// Where spans of requests are sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tracing {
    /// A receiver of OTLP over HTTP; none: spans are made nowhere.
    pub otlp: Option<OtlpUrl>,
}

/// A receiver of OTLP over HTTP: `http://HOST:PORT`, with a path where one stands before `/v1/traces`.
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
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err("the url of an OTLP receiver has neither credentials nor query".to_owned());
        }
        let before = uri.path().trim_end_matches('/');
        let path = PathAndQuery::try_from(format!("{before}/v1/traces")).map_err(|_| wrong())?;
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
        let before = self.path.path().trim_end_matches("/v1/traces");
        write!(f, "{}://{}{before}", self.scheme, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(OtlpUrl::try_from("http://a:1/".to_owned()).unwrap().to_string(), "http://a:1");
        for text in ["", "a:4318", "grpc://a:4317", "http://k@a:1", "http://a:1/?key=x"] {
            assert!(OtlpUrl::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
