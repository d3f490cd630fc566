//! A server below an address, over HTTP or HTTPS: what commands ask and send to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};

use super::{AskError, ClientTls, HEAD_MAX, Inflow, Link, LinkLimits, Links, Outgoing, SendError, TlsError, TlsFiles};
use crate::config::checked_authority;
use crate::shutdown::Tasks;

/// Connections: the server may be far away.
const LIMITS: LinkLimits =
    LinkLimits { connect: Duration::from_secs(10), idle: Duration::from_secs(4), head: HEAD_MAX };

/// Why an address cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// It is none.
    #[error("expected a URL such as http://127.0.0.1:8000, got `{0}`")]
    Address(String),
    /// It names a user.
    #[error("the address carries no credentials")]
    Credentials,
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Site {
    link: Arc<Link>,
    scheme: Scheme,
    /// What stands before every path; empty, or with a slash at its beginning and none at its end.
    below: String,
    files: TlsFiles,
}

impl Site {
    /// The server at `address`, such as `https://host:8443/below`. Nothing is connected yet. Connections are tasks of
    /// `tasks`, so that a runtime must be there.
    ///
    /// # Errors
    /// See [`SiteError`].
    pub fn new(address: &str, files: TlsFiles, tasks: Tasks) -> Result<Self, SiteError> {
        let wrong = || SiteError::Address(address.to_owned());
        let uri: Uri = address.parse().map_err(|_| wrong())?;
        let (scheme, authority) = match (uri.scheme(), uri.authority()) {
            (Some(scheme), Some(authority)) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => {
                (scheme.clone(), authority.clone())
            }
            _ => return Err(wrong()),
        };
        if authority.as_str().contains('@') {
            return Err(SiteError::Credentials);
        }
        if uri.query().is_some() || checked_authority(Some(&authority)).is_err() {
            return Err(wrong());
        }
        let link = Links::new(LIMITS, ClientTls::load(files.clone())?, tasks).link(&scheme, &authority)?;
        Ok(Self { link, scheme, below: uri.path().trim_end_matches('/').to_owned(), files })
    }

    /// Host and port.
    pub fn authority(&self) -> &Authority {
        self.link.authority()
    }

    /// What was said of certificates.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// What it says at `path`, within `patience` and `answer_max` bytes.
    ///
    /// # Errors
    /// When there is no whole answer; any status is one.
    pub async fn get(
        &self,
        path: &str,
        headers: HeaderMap,
        (patience, answer_max): (Duration, usize),
    ) -> Result<(StatusCode, Bytes), AskError> {
        let ask = Outgoing { method: Method::GET, path: self.target(path), headers, body: Bytes::new() };
        self.link.ask(&ask, patience, answer_max).await
    }

    /// Sends JSON to `path` and waits for the head of the answer. Once more on a new connection where a kept one had ended.
    ///
    /// # Errors
    /// When there is no answer; any status is one.
    pub async fn post(&self, path: &str, headers: &HeaderMap, body: Bytes) -> Result<Response<Inflow>, SendError> {
        let mut headers = headers.clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.link.send_again(&Outgoing { method: Method::POST, path: self.target(path), headers, body }).await
    }

    fn target(&self, path: &str) -> PathAndQuery {
        let target = PathAndQuery::try_from(format!("{}{path}", self.below));
        target.expect("a path of a URL with a path of ours behind it is a path")
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_a_scheme_a_host_and_perhaps_a_path() {
        let site = |address: &str| Site::new(address, TlsFiles::default(), Tasks::new());
        for (address, shown, target) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "/v1/models"),
            ("http://h/", "http://h", "/v1/models"),
            ("http://[::1]:1/below/it/", "http://[::1]:1/below/it", "/below/it/v1/models"),
        ] {
            let site = site(address).unwrap();
            assert_eq!((site.to_string().as_str(), site.target("/v1/models").as_str()), (shown, target));
        }
        for (address, said) in [
            ("127.0.0.1:8000", "expected a URL such as http://127.0.0.1:8000, got `127.0.0.1:8000`"),
            ("ftp://a", "expected a URL such as http://127.0.0.1:8000, got `ftp://a`"),
            ("http://a/?b=c", "expected a URL such as http://127.0.0.1:8000, got `http://a/?b=c`"),
            ("https://u:p@a", "the address carries no credentials"),
        ] {
            assert_eq!(site(address).unwrap_err().to_string(), said);
        }
    }
}
