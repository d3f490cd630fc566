//! `upstream_tls`: how workers with an `https` url are spoken to.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Config;
use super::check::Rules;
use super::place::Spanned;

/// TLS towards workers. All files are PEM, and are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamTls {
    /// Authorities of the workers' certificates, and no others; `None`: those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// Our own certificate, for workers that ask for one; together with `key`.
    pub certificate: Option<Spanned<PathBuf>>,
    /// See `certificate`.
    pub key: Option<Spanned<PathBuf>>,
}

impl UpstreamTls {
    /// Has relative paths start from `folder`.
    pub(super) fn start_from(&mut self, folder: &Path) {
        let own = [&mut self.certificate, &mut self.key].into_iter().flatten().map(|path| &mut path.value);
        for path in self.authorities.as_mut().into_iter().chain(own) {
            *path = folder.join(&*path);
        }
    }
}

impl Rules<'_> {
    /// Appends what is wrong with TLS towards workers.
    pub(super) fn upstream_tls(&mut self, config: &Config) {
        let UpstreamTls { certificate, key, .. } = &config.upstream_tls;
        match (certificate, key) {
            (Some(certificate), None) => self.fault(self.place(certificate), "`certificate` without `key`"),
            (None, Some(key)) => self.fault(self.place(key), "`key` without `certificate`"),
            _ => {}
        }
    }
}
