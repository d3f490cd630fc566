//! A running router's admin port, as commands ask it.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How long an answer may take: a long prompt may have to be tokenized for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most of an answer that is read.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// Which router.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The router's admin port.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    admin: Url,
    /// Its `listen.admin_token`. Rather set the variable: arguments are seen by others on the machine.
    #[arg(long, value_name = "TOKEN", env = "WARMPATH_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// A way to it.
pub(super) struct AdminPort {
    client: Client,
    args: AdminArgs,
}

impl AdminArgs {
    pub(super) fn port(self) -> anyhow::Result<AdminPort> {
        Ok(AdminPort { client: Client::builder().timeout(PATIENCE).build()?, args: self })
    }
}

impl AdminPort {
    /// What it says at `path`, whose last part may be anything.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<T> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.ask(self.client.get(url)).await
    }

    /// What it says to `body`.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &[&str], body: Vec<u8>) -> anyhow::Result<T> {
        self.ask(self.client.post(self.url(path)?).header("content-type", "application/json").body(body)).await
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        let mut url = self.args.admin.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => bail!("{} is no address of a server", self.args.admin),
        };
        Ok(url)
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> anyhow::Result<T> {
        let admin = &self.args.admin;
        let request = match &self.args.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let mut response = request.send().await.with_context(|| {
            format!(
                "no router answers at {admin}: start one with `warmpath serve`, or name its admin port with --admin"
            )
        })?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.with_context(|| format!("{admin} broke off"))? {
            if body.len() + piece.len() > ANSWER_MAX {
                bail!("{admin} says more than {ANSWER_MAX} bytes");
            }
            body.extend_from_slice(&piece);
        }
        if !status.is_success() {
            let told: Option<Value> = serde_json::from_slice(&body).ok();
            let message = told.as_ref().and_then(|told| told["error"]["message"].as_str().map(str::to_owned));
            let plain = || String::from_utf8_lossy(&body).trim().chars().take(300).collect();
            let remedy = match status {
                StatusCode::UNAUTHORIZED => " (set WARMPATH_ADMIN_TOKEN, or give --token)",
                _ => "",
            };
            bail!("{admin} answers {status}: {}{remedy}", message.unwrap_or_else(plain));
        }
        serde_json::from_slice(&body).with_context(|| format!("{admin} is no router of this version"))
    }
}
