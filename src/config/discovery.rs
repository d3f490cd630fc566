//! `discovery`: where workers come from while the router runs, beside the list in `workers`.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::address::{BaseUrl, Secret, sent};
use super::fleet::{self, EventSource};
use super::kubernetes::KubernetesSource;
use super::place::Spanned;
use super::quantity::Period;

/// Sources of workers. Those that are not configured are not asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// A file with a list of workers.
    pub file: FileSource,
    /// The addresses behind a name.
    pub dns: DnsSource,
    /// The endpoints of a Service.
    pub kubernetes: KubernetesSource,
    /// Workers that register themselves.
    pub nats: NatsSource,
}

/// A file with a list of workers, watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileSource {
    /// The file; `None`: there is none.
    pub path: Option<PathBuf>,
    /// Between two looks at it.
    pub interval: Period,
}

/// The addresses behind a name, each a worker of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnsSource {
    /// The name; `None`: none is looked up.
    pub name: Option<Spanned<String>>,
    /// Which records of it.
    pub records: Records,
    /// The workers' port, which addresses do not tell.
    pub port: NonZeroU16,
    /// The name server that is asked for SRV records; `None`: the first of the system's.
    #[serde(deserialize_with = "server")]
    pub server: Option<SocketAddr>,
    /// Between two look-ups.
    pub interval: Period,
    /// The workers' ids; `{host}` and `{port}` are replaced.
    pub id: Spanned<String>,
    /// Where they answer, with the same.
    pub url: Spanned<String>,
    /// The `name` of the model that they serve; needed where there are several.
    pub model: Option<Spanned<String>>,
    /// See `workers`.
    #[serde(deserialize_with = "sent")]
    pub api_key: Option<Secret>,
    /// See `workers`.
    #[serde(deserialize_with = "fleet::ranks")]
    pub dp_ranks: Spanned<NonZeroU16>,
    /// See `workers`.
    pub events: Option<Spanned<EventSource>>,
    /// See `workers`.
    pub capacity_blocks: Option<NonZeroU32>,
    /// See `workers`.
    pub max_num_seqs: NonZeroU32,
}

/// Which records of a name are its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Records {
    /// A and AAAA: its addresses.
    #[default]
    Address,
    /// SRV: the hosts and ports that it lists.
    Srv,
}

/// Workers that register themselves in a bucket of `events.nats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsSource {
    /// Whether the bucket is watched.
    pub enabled: Spanned<bool>,
    /// How long a worker counts as present after it was last heard of.
    pub lease: Period,
    /// Sent to registered workers as `Authorization: Bearer …`.
    #[serde(deserialize_with = "sent")]
    pub api_key: Option<Secret>,
}

impl Discovery {
    /// Whether workers can come from anywhere but the list in `workers`.
    pub fn is_used(&self) -> bool {
        self.file.path.is_some() || self.dns.name.is_some() || self.kubernetes.is_used() || self.nats.enabled.value
    }
}

impl DnsSource {
    /// The id and URL of the worker at `host` and `port`.
    ///
    /// # Errors
    /// When no URL comes of it.
    pub fn fill(&self, host: &str, port: u16) -> Result<(String, BaseUrl), String> {
        filled((self.id.as_str(), self.url.as_str()), host, port)
    }
}

/// A worker's id and URL, of templates for both.
///
/// # Errors
/// When no URL comes of it.
pub(super) fn filled((id, url): (&str, &str), host: &str, port: u16) -> Result<(String, BaseUrl), String> {
    let fill = |template: &str, host: &str| template.replace("{host}", host).replace("{port}", &port.to_string());
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Ok((fill(id, host), BaseUrl::try_from(fill(url, &bracketed))?))
}

impl Default for FileSource {
    fn default() -> Self {
        Self { path: None, interval: Period::seconds(1) }
    }
}

impl Default for DnsSource {
    fn default() -> Self {
        Self {
            name: None,
            records: Records::Address,
            port: NonZeroU16::new(8000).expect("8000 is not 0"),
            server: None,
            interval: Period::seconds(10),
            id: "{host}:{port}".to_owned().into(),
            url: "http://{host}:{port}".to_owned().into(),
            model: None,
            api_key: None,
            dp_ranks: fleet::one(),
            events: None,
            capacity_blocks: None,
            max_num_seqs: fleet::max_num_seqs(),
        }
    }
}

impl Default for NatsSource {
    fn default() -> Self {
        Self { enabled: false.into(), lease: Period::seconds(15), api_key: None }
    }
}

fn server<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    super::address::socket(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_with_host_and_port() {
        let dns = DnsSource { id: "gpu-{host}".to_owned().into(), ..DnsSource::default() };
        let filled = |host| dns.fill(host, 8000).map(|(id, url)| (id, url.to_string()));
        assert_eq!(filled("10.0.0.1"), Ok(("gpu-10.0.0.1".to_owned(), "http://10.0.0.1:8000".to_owned())));
        assert_eq!(filled("fd00::1"), Ok(("gpu-fd00::1".to_owned(), "http://[fd00::1]:8000".to_owned())));
        let broken = DnsSource { url: "{host}".to_owned().into(), ..DnsSource::default() };
        assert_eq!(broken.fill("a", 1), Err("expected a URL such as http://10.0.0.1:8000, got `a`".to_owned()));
    }
}
