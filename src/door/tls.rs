//! TLS towards clients: one certificate, read from files and read again when they change.
//!
//! A certificate that cannot be used is not taken: the old one stays, and it is said and counted. Connections keep what
//! they began with. rustls with ring, TLS 1.2 and 1.3, HTTP/2 by ALPN; where authorities of clients are given, a client
//! must show a certificate of theirs.

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

mod expiry;

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
    trouble: Option<String>,
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
        let (config, expires) = read(&files)?;
        metrics.certificate_expires(expires);
        let read = Mutex::new(ReadState { stamps, trouble: None });
        Ok(Self { files, metrics, current: ArcSwap::from_pointee(config), read })
    }

    /// Reads the files again if they have changed; a pair of which only one was written is tried again, as the other
    /// changes, too. Blocks on the disk.
    pub fn refresh(&self) {
        let seen = stamps(&self.files);
        if self.state().stamps != seen {
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
        match result {
            Ok((config, expires)) => {
                self.current.store(Arc::new(config));
                state.trouble = None;
                self.metrics.certificate_expires(expires);
                self.metrics.certificate_read("renewed");
                tracing::info!(certificate = %self.files.certificate.display(), "certificate read again");
            }
            Err(error) => {
                self.metrics.certificate_read("refused");
                tracing::warn!(error = %error, "the new certificate is not used, the old one stays");
                state.trouble = Some(format!("the new certificate is not used, the old one stays: {error}"));
            }
        }
    }

    /// Why the newest certificate is not in use, if it is not.
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
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

/// What the files make, and when the first of their certificates expires, in seconds since 1970.
fn read(files: &TlsFiles) -> Result<(ServerConfig, Option<i64>), PemError> {
    let chain = certificates_in(&files.certificate)?;
    let expires = chain.iter().filter_map(|certificate| expiry::not_after(certificate)).min();
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
    Ok((config, expires))
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    pem::certificates(&pem::read(path)?, path)
}
