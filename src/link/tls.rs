//! TLS towards servers: whom we trust, and who we say we are. rustls with ring, TLS 1.2 and 1.3, HTTP/1.1 by ALPN; the
//! server's name is always checked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use super::Shared;
use crate::pem::{self, PemError};

/// Between two looks at whether the files have changed.
const LOOK: Duration = Duration::from_secs(5);

/// Where certificates lie. All files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities of servers; none: those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// Our own certificate, behind it those that lead to its authority, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Files that cannot be used.
    #[error(transparent)]
    Files(#[from] PemError),
    /// Nobody is trusted.
    #[error("the system trusts no authority: set `upstream_tls.authorities`")]
    NoAuthorities,
    /// A server without a name to check.
    #[error("`{host}` is no name that a certificate could have")]
    Name {
        /// What stands in its place.
        host: String,
    },
}

/// How TLS is spoken with every server. Files are read again when they change; what connections began with stays.
#[derive(Default)]
pub struct ClientTls {
    files: TlsFiles,
    current: ArcSwapOption<ClientConfig>,
    /// The content that `current` was made of, or that was refused last.
    read: Mutex<Option<Content>>,
}

/// What lies in the files.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    authorities: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientTls {
    /// Reads the files, if there are any. The system's authorities are read when the first server needs them.
    ///
    /// # Errors
    /// They cannot be read, or do not go together.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let tls = Self { files, ..Self::default() };
        if tls.has_files() {
            tls.config()?;
        }
        Ok(tls)
    }

    pub(super) fn has_files(&self) -> bool {
        self.files != TlsFiles::default()
    }

    /// How TLS is spoken now.
    ///
    /// # Errors
    /// As with [`ClientTls::load`].
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(config) = self.current.load_full() {
            return Ok(config);
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let content = Content::of(&self.files)?;
        let config = Arc::new(content.config(&self.files)?);
        self.current.store(Some(Arc::clone(&config)));
        *read = Some(content);
        Ok(config)
    }

    /// Reads the files again. Returns whether something new is in use; what cannot be used is not, and stays unused
    /// until it changes. Blocks on the disk.
    fn refresh(&self) -> Result<bool, TlsError> {
        let content = Content::of(&self.files)?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.as_ref() == Some(&content) {
            return Ok(false);
        }
        let config = content.config(&self.files);
        *read = Some(content);
        self.current.store(Some(Arc::new(config?)));
        Ok(true)
    }
}

/// Reads the files again when they change, for as long as anybody holds a link.
pub(super) async fn keep_fresh(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(shared) = shared.upgrade() else { return };
        let reading = tokio::task::spawn_blocking(move || match shared.tls.refresh() {
            Ok(false) => {}
            Ok(true) => tracing::info!("certificates for servers read again"),
            Err(error) => {
                tracing::warn!(error = %error, "the new certificates for servers are not used, the old ones stay")
            }
        });
        // A panic in there is reported by its thread; the old certificates stay.
        drop(reading.await);
    }
}

impl Content {
    fn of(files: &TlsFiles) -> Result<Self, TlsError> {
        let authorities = files.authorities.as_deref().map(pem::read).transpose()?;
        let identity =
            files.identity.as_ref().map(|(chain, key)| Ok::<_, PemError>((pem::read(chain)?, pem::read(key)?)));
        Ok(Self { authorities, identity: identity.transpose()? })
    }

    fn config(&self, files: &TlsFiles) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring offers TLS 1.2 and 1.3")
            .with_root_certificates(self.roots(files)?);
        let mut config = match (&self.identity, &files.identity) {
            (Some((chain, key)), Some((chain_path, key_path))) => {
                let chain = pem::certificates(chain, chain_path)?;
                let key = pem::private_key(key, key_path)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| PemError::unusable(chain_path, error))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    fn roots(&self, files: &TlsFiles) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match (&self.authorities, &files.authorities) {
            (Some(authorities), Some(path)) => {
                for authority in pem::certificates(authorities, path)? {
                    roots.add(authority).map_err(|error| PemError::unusable(path, error))?;
                }
            }
            _ => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TlsError::NoAuthorities);
                }
            }
        }
        Ok(roots)
    }
}
