//! TLS towards clients: one certificate, read from files and read again when they change.
//!
//! A certificate that cannot be used is not taken: the old one stays, and it is said and counted. Connections keep what
//! they began with. rustls with ring, TLS 1.2 and 1.3, HTTP/2 by ALPN; where authorities of clients are given, a client
//! must show a certificate of theirs.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::telemetry::metrics::DoorMetrics;

mod expiry;

/// The most of a file that is read: a chain or a bundle of authorities is far smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

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

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds nothing of the kind.
    #[error("`{}` holds no {what} in PEM", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is not in it.
        what: &'static str,
    },
    /// What the files hold does not go together.
    #[error("`{}` cannot be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
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
    pub fn load(files: TlsFiles, metrics: DoorMetrics) -> Result<Self, TlsError> {
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
fn read(files: &TlsFiles) -> Result<(ServerConfig, Option<i64>), TlsError> {
    let unusable = |path: &Path, reason: String| TlsError::Unusable { path: path.to_owned(), reason };
    let chain = certificates(&files.certificate)?;
    let expires = chain.iter().filter_map(|certificate| expiry::not_after(certificate)).min();
    let key = PrivateKeyDer::from_pem_slice(&bytes(&files.key)?)
        .map_err(|_| TlsError::Missing { path: files.key.clone(), what: "private key" })?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3");
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| unusable(path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error.to_string()))?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| unusable(&files.certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Of its own: whoever resumes is not asked for a certificate again, and authorities may have changed.
    config.ticketer = ring::Ticketer::new().map_err(|error| unusable(&files.certificate, error.to_string()))?;
    Ok((config, expires))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bytes(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Missing { path: path.to_owned(), what: "certificate" }),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(source) => Err(TlsError::Unreadable { path: path.to_owned(), source }),
    }
}
