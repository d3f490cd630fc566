//! `discovery.kubernetes`: the endpoints of a Service as workers.

use std::num::{NonZeroU16, NonZeroU32};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Config;
use super::address::{BaseUrl, Secret, sent};
use super::check::Rules;
use super::discovery::filled;
use super::fleet::{self, EventSource};
use super::place::Spanned;
use super::quantity::Period;

/// Where a pod finds what it needs to ask the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The longest name of a namespace, a Service or a port, by Kubernetes' rules for labels of DNS.
const NAME_MAX: usize = 63;

/// More than any selector has, and short enough for a request's target.
const SELECTOR_MAX: usize = 1024;

/// The endpoints of a Service, each a worker of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesSource {
    /// The Service; `None`: see `selector`.
    pub service: Option<Spanned<String>>,
    /// A selector of EndpointSlices by their labels, in the place of a Service's name.
    pub selector: Option<Spanned<String>>,
    /// The namespace of both; `None`: the router's own.
    pub namespace: Option<Spanned<String>>,
    /// The workers' port; `None`: the only one that the slices have.
    pub port: Option<Port>,
    /// Between two lists of everything, beside the watch that tells changes at once.
    pub interval: Period,
    /// The API server.
    pub server: BaseUrl,
    /// A file with the token that it is shown, read for each request; `None`: the service account's, over `https` only.
    pub token_file: Option<PathBuf>,
    /// Authorities of its certificate; `None`: the service account's.
    pub authorities: Option<PathBuf>,
    /// The workers' ids; `{name}`, `{host}` and `{port}` are replaced.
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

/// A port as a Service has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Port {
    /// This one, whatever slices say.
    Number(NonZeroU16),
    /// The one that slices list under this name.
    Name(String),
}

impl KubernetesSource {
    /// Whether it is asked.
    pub fn is_used(&self) -> bool {
        self.service.is_some() || self.selector.is_some()
    }

    /// The id and URL of the worker at `host` and `port`, whose `name` is its pod's, or its host where there is no pod.
    ///
    /// # Errors
    /// When no URL comes of it.
    pub fn fill(&self, name: &str, host: &str, port: u16) -> Result<(String, BaseUrl), String> {
        let named = |template: &str| template.replace("{name}", name);
        filled((&named(&self.id), &named(&self.url)), host, port)
    }

    /// The file with the token, if one is to be shown: none over plain HTTP unless somebody asked for that.
    pub fn token(&self) -> Option<PathBuf> {
        let is_secure = *self.server.scheme() == http::uri::Scheme::HTTPS;
        self.token_file.clone().or_else(|| is_secure.then(|| Path::new(ACCOUNT).join("token")))
    }

    /// The file with authorities of the server's certificate; none where it shows no certificate.
    pub fn trusted(&self) -> Option<PathBuf> {
        let is_secure = *self.server.scheme() == http::uri::Scheme::HTTPS;
        is_secure.then(|| self.authorities.clone().unwrap_or_else(|| Path::new(ACCOUNT).join("ca.crt")))
    }

    /// The file in which a pod finds its own namespace.
    pub fn own_namespace() -> PathBuf {
        Path::new(ACCOUNT).join("namespace")
    }

    /// Has relative paths start from `folder`.
    pub(super) fn start_from(&mut self, folder: &Path) {
        for path in [&mut self.token_file, &mut self.authorities].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }
}

impl Default for KubernetesSource {
    fn default() -> Self {
        let server = "https://kubernetes.default.svc".to_owned();
        Self {
            service: None,
            selector: None,
            namespace: None,
            port: None,
            interval: Period::seconds(30),
            server: BaseUrl::try_from(server).expect("a scheme and a host are a URL"),
            token_file: None,
            authorities: None,
            id: "{name}".to_owned().into(),
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

impl TryFrom<String> for Port {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if is_name(&text) && text.contains(|c: char| c.is_ascii_lowercase()) => Ok(Self::Name(text)),
            Err(_) => Err(format!("expected a port such as 8000, or the name of one such as http, got `{text}`")),
        }
    }
}

impl From<Port> for String {
    fn from(port: Port) -> String {
        match port {
            Port::Number(number) => number.to_string(),
            Port::Name(name) => name,
        }
    }
}

impl Rules<'_> {
    /// Appends what is wrong with the Service whose endpoints are workers.
    pub(super) fn kubernetes(&mut self, config: &Config) {
        let kubernetes = &config.discovery.kubernetes;
        let asked = match (&kubernetes.service, &kubernetes.selector) {
            (Some(service), Some(selector)) => {
                let place = self.place(selector);
                let message = format!("`selector` beside `service` at {}: one of them", {
                    self.place(service).seen_from(&place)
                });
                return self.fault(place, &message);
            }
            (Some(asked), None) | (None, Some(asked)) => asked,
            (None, None) => return,
        };
        self.have_their_bus(config, kubernetes.events.iter());
        let names = [("a Service", "vllm", &kubernetes.service), ("a namespace", "default", &kubernetes.namespace)];
        for (what, example, name) in names {
            if let Some(name) = name.as_ref().filter(|name| !is_name(name)) {
                let message = format!("expected the name of {what} such as {example}, got `{}`", name.as_str());
                self.fault(self.place(name), &message);
            }
        }
        let is_plain = |text: &str| (1..=SELECTOR_MAX).contains(&text.len()) && !text.contains(char::is_control);
        if let Some(selector) = kubernetes.selector.as_ref().filter(|selector| !is_plain(selector)) {
            self.fault(self.place(selector), "expected a selector such as app=vllm,tier=gpu");
        }
        self.served_model(config, ("discovery.kubernetes", self.place(asked)), kubernetes.model.as_ref());
        if !["{name}", "{host}"].iter().any(|name| kubernetes.id.contains(name)) {
            self.fault(self.place(&kubernetes.id), "without `{name}` all workers would have the same id");
        }
        if let Err(message) = kubernetes.fill("w", "10.0.0.1", 8000) {
            self.fault(self.place(&kubernetes.url), &message);
        }
    }
}

/// Whether it can be the name of a namespace, a Service or a port: a label of DNS.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_or_a_name() {
        let number = Port::Number(NonZeroU16::new(8000).unwrap());
        let refused =
            |text| Err(format!("expected a port such as 8000, or the name of one such as http, got `{text}`"));
        for (text, expected) in [
            ("8000", Ok(number)),
            ("http", Ok(Port::Name("http".to_owned()))),
            ("h2-c", Ok(Port::Name("h2-c".to_owned()))),
            ("0", refused("0")),
            ("65536", refused("65536")),
            ("-http", refused("-http")),
            ("a/b", refused("a/b")),
            ("", refused("")),
        ] {
            assert_eq!(Port::try_from(text.to_owned()), expected, "{text}");
        }
    }

    #[test]
    fn a_worker_is_called_as_its_pod_and_found_at_its_address() {
        let source = KubernetesSource::default();
        let filled = |name, host| source.fill(name, host, 8000).map(|(id, url)| (id, url.to_string()));
        assert_eq!(filled("vllm-0", "10.0.0.1"), Ok(("vllm-0".to_owned(), "http://10.0.0.1:8000".to_owned())));
        assert_eq!(filled("fd00::1", "fd00::1"), Ok(("fd00::1".to_owned(), "http://[fd00::1]:8000".to_owned())));
        let all = KubernetesSource { id: "{name}/{host}/{port}".to_owned().into(), ..source };
        assert_eq!(all.fill("a", "b", 1).map(|(id, _)| id), Ok("a/b/1".to_owned()));
    }

    #[test]
    fn the_service_accounts_token_is_not_sent_in_the_open_by_itself() {
        let secure = KubernetesSource::default();
        assert_eq!(secure.token(), Some(Path::new(ACCOUNT).join("token")));
        assert_eq!(secure.trusted(), Some(Path::new(ACCOUNT).join("ca.crt")));
        let server = BaseUrl::try_from("http://127.0.0.1:8001".to_owned()).unwrap();
        let open = KubernetesSource { server, ..KubernetesSource::default() };
        assert_eq!((open.token(), open.trusted()), (None, None));
        let asked_for = KubernetesSource { token_file: Some("t".into()), ..open };
        assert_eq!(asked_for.token(), Some("t".into()));
    }
}
