//! TLS towards clients: one certificate, read from files and read again when they change.
//!
//! A certificate that cannot be used is not taken: the old one stays, and it is said and counted. So is one outside its
//! time, which no client would take, unless that in use is outside its own: a clock may be wrong, and then something is
//! better than nothing. Connections keep what they began with. rustls with ring, TLS 1.2 and 1.3, HTTP/2 by ALPN; where
//! authorities of clients are given, a client must show a certificate of theirs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::pem::{self, PemError};
use crate::telemetry::metrics::DoorMetrics;
use crate::wall_clock;

mod validity;

use validity::Validity;

/// Where a certificate lies. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and behind it those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of clients' certificates. Where there are some, clients must show one.
    pub client_authorities: Option<PathBuf>,
}

/// A certificate in use.
pub struct Tls {
    files: TlsFiles,
    metrics: DoorMetrics,
    current: ArcSwap<ServerConfig>,
    read: Mutex<ReadState>,
}

/// What was read last.
struct ReadState {
    stamps: [Option<Stamp>; 3],
    /// Why it was not taken, if it was not.
    trouble: Option<String>,
    /// From when on it could be, where it came before its time: in seconds since 1970.
    due: Option<i64>,
    /// When the certificate in use is valid.
    validity: Option<Validity>,
}

/// What the files make.
struct Pair {
    config: ServerConfig,
    /// Of the certificate itself. Those behind it are ways to authorities, of which one may be out of time.
    validity: Option<Validity>,
    /// When the first of all expires, in seconds since 1970.
    expires: Option<i64>,
}

/// By what a file is seen to have changed. Kubernetes replaces what a link leads to, so links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot be read, or do not go together.
    pub fn load(files: TlsFiles, metrics: DoorMetrics) -> Result<Self, PemError> {
        let stamps = stamps(&files);
        let pair = read(&files)?;
        metrics.certificate_expires(pair.expires);
        let read = Mutex::new(ReadState { stamps, trouble: None, due: None, validity: pair.validity });
        Ok(Self { files, metrics, current: ArcSwap::from_pointee(pair.config), read })
    }

    /// Reads the files again if they have changed, or hold what was read before its time; a pair of which only one was
    /// written is tried again, as the other changes, too. Blocks on the disk.
    pub fn refresh(&self) {
        let seen = stamps(&self.files);
        let state = self.state();
        let is_due = state.due.is_some_and(|due| due <= now());
        let has_changed = state.stamps != seen;
        drop(state);
        if has_changed || is_due {
            self.reload();
        }
    }

    /// Reads the files again. Blocks on the disk.
    pub fn reload(&self) {
        // Before they are read: what is written meanwhile is a change.
        let stamps = stamps(&self.files);
        let result = read(&self.files);
        let mut state = self.state();
        state.stamps = stamps;
        state.due = None;
        match result.and_then(|pair| self.if_in_time(pair, &mut state, now())) {
            Ok(pair) => {
                self.current.store(Arc::new(pair.config));
                state.trouble = None;
                state.validity = pair.validity;
                self.metrics.certificate_expires(pair.expires);
                self.metrics.certificate_read("renewed");
                tracing::info!(certificate = %self.files.certificate.display(), "certificate read again");
            }
            Err(error) => {
                self.metrics.certificate_read("refused");
                tracing::warn!(error = %error, "the new certificate is not used, the old one stays");
                state.trouble = Some(format!("the new certificate is not used, the old one stays: {error}"));
            }
        }
        drop(state);
        self.warn_if_untimely();
    }

    /// The pair, unless it is outside its time and the one in use is not.
    fn if_in_time(&self, pair: Pair, state: &mut ReadState, now: i64) -> Result<Pair, PemError> {
        let outside = |validity: Option<Validity>| validity.and_then(|validity| validity.fault(now));
        let Some(fault) = outside(pair.validity).filter(|_| outside(state.validity).is_none()) else {
            return Ok(pair);
        };
        state.due = pair.validity.map(|validity| validity.not_before.seconds).filter(|due| *due > now);
        Err(PemError::unusable(&self.files.certificate, fault))
    }

    /// Why the newest certificate is not in use, if it is not, and why clients do not take the one that is.
    pub fn complaints(&self) -> Vec<String> {
        let refused = self.state().trouble.clone();
        refused.into_iter().chain(self.untimely()).collect()
    }

    /// Says in the log why clients do not take the certificate in use, where that is for its time.
    pub fn warn_if_untimely(&self) {
        if let Some(complaint) = self.untimely() {
            tracing::warn!("{complaint}");
        }
    }

    /// Why clients do not take the certificate in use, where that is for its time.
    fn untimely(&self) -> Option<String> {
        let fault = self.state().validity?.fault(now())?;
        Some(format!("clients will not take the certificate `{}`: {fault}", self.files.certificate.display()))
    }

    /// Shakes hands.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current.load_full()).accept(stream).await
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReadState> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The label of a handshake that failed.
pub(super) fn failure(error: &io::Error) -> &'static str {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(NoCertificatesPresented | InvalidCertificate(_)) => "client_certificate",
        Some(AlertReceived(_)) => "refused_by_client",
        Some(_) => "protocol",
        None => "disconnected",
    }
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 3] {
    use std::os::unix::fs::MetadataExt;
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Stamp { modified: metadata.modified().ok(), bytes: metadata.len(), inode: metadata.ino() })
    };
    [stamp(&files.certificate), stamp(&files.key), files.client_authorities.as_deref().and_then(stamp)]
}

/// Seconds since 1970.
fn now() -> i64 {
    i64::try_from(wall_clock::now().as_secs()).unwrap_or(i64::MAX)
}

/// What the files make.
fn read(files: &TlsFiles) -> Result<Pair, PemError> {
    let chain = certificates_in(&files.certificate)?;
    let validity = chain.first().and_then(|certificate| Validity::of(certificate));
    let ends = chain.iter().filter_map(|certificate| Validity::of(certificate));
    let expires = ends.map(|validity| validity.not_after.seconds).min();
    let key = pem::private_key(&pem::read(&files.key)?, &files.key)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3");
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for authority in certificates_in(path)? {
                roots.add(authority).map_err(|error| PemError::unusable(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| PemError::unusable(path, error))?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| PemError::unusable(&files.certificate, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Of its own: whoever resumes is not asked for a certificate again, and authorities may have changed.
    config.ticketer = ring::Ticketer::new().map_err(|error| PemError::unusable(&files.certificate, error))?;
    Ok(Pair { config, validity, expires })
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    pem::certificates(&pem::read(path)?, path)
}
