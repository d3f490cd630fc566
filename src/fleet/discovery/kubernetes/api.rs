//! The API server: EndpointSlices in whole lists and as they change, and what it refuses in words that help.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::object::{Page, PageMeta, Status};
use super::slices::{SLICES_MAX, Slices};
use crate::config::KubernetesSource;
use crate::error::chain;
use crate::link::{ClientTls, Inflow, Link, LinkLimits, Links, Outgoing, TlsFiles, Way};
use crate::printable;
use crate::shutdown::Tasks;

/// How long the server may take for a page, and to begin a watch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Slices that are asked for at once.
const PAGE_SLICES: usize = 64;

/// The most pages of a list.
const PAGES_MAX: usize = SLICES_MAX / PAGE_SLICES;

/// The most of a page, in bytes: slices of a thousand endpoints, Kubernetes' own bound, take some 400 KB each.
const PAGE_BYTES_MAX: usize = 32 << 20;

/// The most of a refusal, in bytes.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// The most of a token or a namespace that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What is shown of a message of the server, in characters.
const SHOWN_MAX: usize = 200;

/// Why the server does not tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// What we know is too old to go on with: everything must be listed again.
    Expired,
    /// In words.
    Because(String),
}

/// The way to the EndpointSlices of one namespace.
pub(super) struct Api {
    link: Arc<Link>,
    /// The path of the slices, and the selector behind it.
    target: String,
    namespace: String,
    token: Option<PathBuf>,
}

impl Api {
    /// Finds out where to ask. Nothing is sent yet.
    ///
    /// # Errors
    /// A file that is needed cannot be read, in words.
    pub(super) async fn of(source: &KubernetesSource, limits: LinkLimits, tasks: &Tasks) -> Result<Self, String> {
        let namespace = match &source.namespace {
            Some(namespace) => namespace.value.clone(),
            None => own_namespace(&KubernetesSource::own_namespace()).await?,
        };
        let files = TlsFiles { authorities: source.trusted(), identity: None };
        let tls = ClientTls::load(files)
            .map_err(|error| format!("{}; `discovery.kubernetes.authorities` names another file", chain(&error)))?;
        let authority: Authority =
            source.server.authority().parse().map_err(|_| format!("`{}` is no server", source.server))?;
        let links = Links::new(limits, tls, tasks.clone());
        let link = links.link(source.server.scheme(), &authority).map_err(|error| chain(&error))?;
        Ok(Self { link, target: target(&namespace, source), namespace, token: source.token() })
    }

    /// Where it looks.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// All slices as they are, and the version from which changes are watched.
    pub(super) async fn list(&self) -> Result<(Slices, String), Refusal> {
        let (mut slices, mut version, mut more) = (Slices::default(), String::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self.page(more.as_deref()).await?;
            let PageMeta { resource_version, r#continue } = take_in(&page, &mut slices).map_err(|error| {
                Refusal::Because(format!("the API server's answer is no list of EndpointSlices: {error}"))
            })?;
            version = resource_version.unwrap_or(version);
            more = r#continue.filter(|more| !more.is_empty());
            if more.is_none() {
                return Ok((slices, version));
            }
        }
        slices.leave_out(1);
        Ok((slices, version))
    }

    async fn page(&self, more: Option<&str>) -> Result<Bytes, Refusal> {
        let more = more.map_or_else(String::new, |more| format!("&continue={}", encoded(more)));
        let path = self.path(&format!("limit={PAGE_SLICES}{more}"))?;
        let ask = self.question(path).await?;
        let asked = self.link.ask(&ask, PATIENCE, PAGE_BYTES_MAX).await;
        let (status, body) = asked.map_err(|error| self.unheard(&error))?;
        if status == StatusCode::OK { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    /// Changes since `version`, as lines, for about `how_long`.
    pub(super) async fn watch(&self, version: &str, how_long: Duration) -> Result<Inflow, Refusal> {
        let (version, seconds) = (encoded(version), how_long.as_secs().max(1));
        let query = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let ask = self.question(self.path(&query)?).await?;
        let late = || Refusal::Because(format!("the API server does not begin a watch within {PATIENCE:?}"));
        let sent = timeout(PATIENCE, self.link.send(&ask, &HeaderMap::new(), Way::Fresh)).await.map_err(|_| late())?;
        let response = sent.map_err(|error| self.unheard(&error))?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response.into_body());
        }
        let reading = timeout(PATIENCE, Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect()).await;
        let body = reading.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(self.refused(status, &body))
    }

    async fn question(&self, path: PathAndQuery) -> Result<Outgoing, Refusal> {
        Ok(Outgoing { method: Method::GET, path, headers: self.headers().await?, body: Bytes::new() })
    }

    fn path(&self, query: &str) -> Result<PathAndQuery, Refusal> {
        let path = format!("{}{query}", self.target);
        path.try_into().map_err(|_| Refusal::Because("what the API server said cannot be asked for again".to_owned()))
    }

    /// The token is read each time: it is exchanged every hour or so.
    async fn headers(&self) -> Result<HeaderMap, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(path) = &self.token {
            let token = text_of(path).await.map_err(|error| {
                let mended = "is the service account's token mounted (`automountServiceAccountToken: true`)?";
                Refusal::Because(format!("cannot read `{}` ({error}): {mended}", path.display()))
            })?;
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| Refusal::Because(format!("`{}` holds no token", path.display())))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(headers)
    }

    fn unheard(&self, error: &dyn std::error::Error) -> Refusal {
        Refusal::Because(format!("the API server at {} does not answer: {}", self.link.authority(), chain(error)))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Refusal {
        if status == StatusCode::GONE {
            return Refusal::Expired;
        }
        Refusal::Because(in_words(status, &said(body), self.token.as_deref(), &self.namespace))
    }
}

/// Adds the slices of a page.
fn take_in(page: &[u8], slices: &mut Slices) -> serde_json::Result<PageMeta> {
    let Page { metadata, items } = serde_json::from_slice(page)?;
    let items = items.unwrap_or_default();
    for item in items.items {
        slices.put(serde_json::from_str(item.get())?);
    }
    slices.leave_out(items.more);
    Ok(metadata)
}

/// The pod's own namespace.
async fn own_namespace(path: &Path) -> Result<String, String> {
    text_of(path).await.map_err(|error| {
        format!("which namespace? `discovery.kubernetes.namespace` is not set, and `{}`: {error}", path.display())
    })
}

async fn text_of(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    tokio::fs::File::open(path).await?.take(FILE_BYTES_MAX).read_to_string(&mut text).await?;
    Ok(text.trim().to_owned())
}

/// The path of a namespace's slices, up to the rest of the query.
fn target(namespace: &str, source: &KubernetesSource) -> String {
    let selector = match (&source.service, &source.selector) {
        (Some(service), _) => format!("kubernetes.io/service-name={}", service.value),
        (None, Some(selector)) => selector.value.clone(),
        (None, None) => String::new(),
    };
    let namespace = encoded(namespace);
    let selector = encoded(&selector);
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}&")
}

/// As a part of a request's target: whatever could mean something else is escaped.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// What the server says, on one short line.
fn said(body: &[u8]) -> String {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    shown(&status.message.unwrap_or_default())
}

/// As much of a message as is told, on one line.
pub(super) fn shown(message: &str) -> String {
    printable::line(&message.chars().take(SHOWN_MAX).collect::<String>())
}

fn in_words(status: StatusCode, said: &str, token: Option<&Path>, namespace: &str) -> String {
    let code = status.as_u16();
    match (status, token) {
        (StatusCode::UNAUTHORIZED, Some(path)) => format!(
            "the API server does not accept the token in `{}` (401): is it a service account's of this cluster, and not \
             expired?",
            path.display()
        ),
        (StatusCode::UNAUTHORIZED, None) => {
            "the API server asks for a token (401): set `discovery.kubernetes.token_file`".to_owned()
        }
        (StatusCode::FORBIDDEN, _) => format!(
            "the API server forbids it (403: {said}): the service account needs a Role in namespace `{namespace}` with get, \
             list and watch of endpointslices in discovery.k8s.io, as deploy/kustomize/base/access.yaml has one"
        ),
        (StatusCode::NOT_FOUND, _) => {
            "the API server has no discovery.k8s.io/v1 (404): Kubernetes has it since 1.21".to_owned()
        }
        (StatusCode::BAD_REQUEST, _) => format!("the API server cannot read the selector (400: {said})"),
        _ => format!("the API server answers with {code}: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_for_by_its_label_and_a_selector_as_it_was_written() {
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=";
        let service = KubernetesSource { service: Some("vllm".to_owned().into()), ..KubernetesSource::default() };
        assert_eq!(target("default", &service), format!("{slices}kubernetes.io%2Fservice-name%3Dvllm&"));
        let selector = Some("app in (a, b),!c&x=#".to_owned().into());
        let selector = KubernetesSource { selector, ..KubernetesSource::default() };
        let expected = format!("{slices}app%20in%20%28a%2C%20b%29%2C%21c%26x%3D%23&");
        assert_eq!(target("default", &selector), expected);
        assert!(target("../x", &service).starts_with("/apis/discovery.k8s.io/v1/namespaces/..%2Fx/endpointslices?"));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let words = |code, said| in_words(StatusCode::from_u16(code).unwrap(), said, Some(Path::new("/t")), "gpu");
        let expected = "the API server does not accept the token in `/t` (401): is it a service account's of this cluster, \
                        and not expired?";
        assert_eq!(words(401, ""), expected);
        let expected = "the API server forbids it (403: no): the service account needs a Role in namespace `gpu` with get, \
                        list and watch of endpointslices in discovery.k8s.io, as deploy/kustomize/base/access.yaml has one";
        assert_eq!(words(403, "no"), expected);
        assert_eq!(words(503, "later"), "the API server answers with 503: later");
        let without = in_words(StatusCode::UNAUTHORIZED, "", None, "gpu");
        assert_eq!(without, "the API server asks for a token (401): set `discovery.kubernetes.token_file`");
    }

    #[test]
    fn a_servers_message_is_one_short_line() {
        let status = format!(r#"{{"kind":"Status","message":"a\nb{}","code":403}}"#, "c".repeat(1000));
        assert_eq!(said(status.as_bytes()), format!("a b{}", "c".repeat(197)));
        assert_eq!(said(b"<html>"), "");
    }
}
