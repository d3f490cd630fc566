//! `listen.data_tls` and `listen.admin_tls`: certificates that clients are shown.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::place::Spanned;

/// TLS of one port; none without a certificate. All files are PEM, and are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The certificate, and behind it those that lead to its authority.
    pub certificate: Option<Spanned<PathBuf>>,
    /// Its private key.
    pub key: Option<Spanned<PathBuf>>,
    /// Authorities of clients' certificates: where they are given, a client must show one.
    pub client_authorities: Option<Spanned<PathBuf>>,
}

impl Tls {
    /// Whether clients are asked who they are.
    pub(super) fn knows_clients(&self) -> bool {
        self.certificate.is_some() && self.client_authorities.is_some()
    }

    /// Has relative paths start from `folder`.
    pub(super) fn start_from(&mut self, folder: &Path) {
        for path in [&mut self.certificate, &mut self.key, &mut self.client_authorities].into_iter().flatten() {
            path.value = folder.join(&path.value);
        }
    }
}
