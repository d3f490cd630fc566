//! Files in PEM: certificates and keys, read within bounds, and what is wrong with them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The most of a file that is read: a chain or a bundle of authorities is far smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
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

impl PemError {
    /// What lies in `path` is well formed, and of no use for this reason.
    pub fn unusable(path: &Path, reason: impl ToString) -> Self {
        Self::Unusable { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// The file's bytes.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|why| PemError::Unreadable { path: path.to_owned(), why })?;
    Ok(bytes)
}

/// The certificates in `bytes`, which came from `path`: at least one.
///
/// # Errors
/// There is none, or one that is broken.
pub fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| PemError::Missing { path: path.to_owned(), what: "certificate" })
}

/// The first private key in `bytes`, which came from `path`.
///
/// # Errors
/// There is none.
pub fn private_key(bytes: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|_| PemError::Missing { path: path.to_owned(), what: "private key" })
}
