//! A running router's admin port, as commands ask it: over HTTP, or HTTPS where it or a proxy before it speaks TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::misuse::OrMisuse;
use super::site::untrusting;
use crate::link::{ClientTls, HEAD_MAX, Link, LinkLimits, Links, Outgoing, TlsFiles};
use crate::shutdown::Tasks;
use trouble::remedy;

pub(super) mod trouble;

/// How long an answer may take: a long prompt may have to be tokenized for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most of an answer that is read.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// Connections: the router's host may be far away, and `top` asks again within the second limit.
const LIMITS: LinkLimits =
    LinkLimits { connect: Duration::from_secs(10), idle: Duration::from_secs(4), head: HEAD_MAX };

/// Which router.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The router's admin port: http:// or https://, with a path where a proxy has it below one.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090", value_parser = address)]
    admin: Url,
    /// Its `listen.admin_token`. Rather set the variable: arguments are seen by others on the machine.
    #[arg(long, value_name = "TOKEN", env = "WARMPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the authorities (PEM) that are trusted where the address is https, in place of the system's.
    #[arg(long, value_name = "FILE", env = "WARMPATH_ADMIN_CA")]
    ca: Option<PathBuf>,
    /// Our own certificate (PEM), where the port asks for one (`listen.admin_tls.client_authorities`).
    #[arg(long, value_name = "FILE", requires = "key", env = "WARMPATH_ADMIN_CERT")]
    cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert", env = "WARMPATH_ADMIN_KEY")]
    key: Option<PathBuf>,
}

/// A way to it.
pub(super) struct AdminPort {
    admin: Url,
    link: Arc<Link>,
    headers: HeaderMap,
    /// What was said of certificates, to tell what else could be.
    files: TlsFiles,
}

/// An address that can be asked.
fn address(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|_| "expected a URL such as http://127.0.0.1:9090")?;
    if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
        return Err("expected a URL such as http://127.0.0.1:9090".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the address carries no credentials: use --token".to_owned());
    }
    Ok(url)
}

impl AdminArgs {
    /// The way to the router. Nothing is connected yet; what keeps connections in order are tasks of `runtime`.
    ///
    /// # Errors
    /// Files that cannot be used; a token that no header can have.
    pub(super) fn port(self, runtime: &Runtime) -> anyhow::Result<AdminPort> {
        let Self { admin, token, ca, cert, key } = self;
        let files = TlsFiles { authorities: ca, identity: cert.zip(key) };
        let tls = ClientTls::load(files.clone()).map_err(untrusting)?;
        let scheme = if admin.scheme() == "https" { Scheme::HTTPS } else { Scheme::HTTP };
        let authority =
            Authority::try_from(admin.authority()).with_context(|| format!("{admin} names no server")).or_misuse()?;
        let _inside = runtime.enter();
        let link = Links::new(LIMITS, tls, Tasks::new()).link(&scheme, &authority).map_err(untrusting)?;
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let bearer = HeaderValue::try_from(format!("Bearer {token}"));
            let mut bearer = bearer.context("no header can have the token").or_misuse()?;
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        Ok(AdminPort { admin, link, headers, files })
    }
}

impl AdminPort {
    /// What it says at `path`, whose last part may be anything.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<T> {
        let mut ask = self.question(path, query)?;
        ask.method = Method::GET;
        self.ask(ask).await
    }

    /// What it says to `body`.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &[&str], body: Vec<u8>) -> anyhow::Result<T> {
        let mut ask = self.question(path, &[])?;
        (ask.method, ask.body) = (Method::POST, body.into());
        ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.ask(ask).await
    }

    /// The same for a change; none where it is so already.
    pub(super) async fn change<T: DeserializeOwned>(&self, path: &[&str]) -> anyhow::Result<Option<T>> {
        let mut ask = self.question(path, &[])?;
        ask.method = Method::POST;
        match self.answered(ask).await? {
            (StatusCode::CONFLICT, _) => Ok(None),
            answer => self.read(answer).map(Some),
        }
    }

    fn question(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Outgoing> {
        let mut url = self.admin.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => bail!("{} is no address of a server", self.admin),
        };
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let mut ask = Outgoing::get("/");
        ask.path = PathAndQuery::try_from(target).context("no request can have this target")?;
        ask.headers = self.headers.clone();
        Ok(ask)
    }

    async fn ask<T: DeserializeOwned>(&self, ask: Outgoing) -> anyhow::Result<T> {
        self.read(self.answered(ask).await?)
    }

    async fn answered(&self, ask: Outgoing) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = self.link.ask(&ask, PATIENCE, ANSWER_MAX).await;
        answer.map_err(|error| {
            let said = remedy(&error, &self.admin, &self.files);
            anyhow::Error::new(error).context(said)
        })
    }

    fn read<T: DeserializeOwned>(&self, (status, body): (StatusCode, Bytes)) -> anyhow::Result<T> {
        let admin = &self.admin;
        if !status.is_success() {
            let told: Option<Value> = serde_json::from_slice(&body).ok();
            let message = told.as_ref().and_then(|told| told["error"]["message"].as_str().map(str::to_owned));
            let plain = || String::from_utf8_lossy(&body).trim().chars().take(300).collect();
            let remedy = match status {
                StatusCode::UNAUTHORIZED => " (set WARMPATH_ADMIN_TOKEN, or give --token)",
                // As the port says where requests are served; the admin port names those that it knows.
                StatusCode::NOT_FOUND if message.as_ref().is_some_and(|said| said.starts_with("unknown path `")) => {
                    " (requests are served there: name the admin port with --admin)"
                }
                status if status.is_redirection() => " (it leads elsewhere: name that address with --admin)",
                _ => "",
            };
            bail!("{admin} answers {status}: {}{remedy}", message.unwrap_or_else(plain));
        }
        serde_json::from_slice(&body).with_context(|| format!("{admin} is no router of this version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_path() {
        for text in ["http://127.0.0.1:9090", "https://router.example/warmpath/", "https://[::1]:9090"] {
            assert!(address(text).is_ok(), "{text}");
        }
        let wrong = "expected a URL such as http://127.0.0.1:9090";
        for (text, said) in [
            ("127.0.0.1:9090", wrong),
            ("ftp://a", wrong),
            ("http://a/?b=c", wrong),
            ("http://a/#b", wrong),
            ("https://u:p@a", "the address carries no credentials: use --token"),
        ] {
            assert_eq!(address(text), Err(said.to_owned()), "{text}");
        }
    }
}
