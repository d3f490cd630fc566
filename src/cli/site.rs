//! How commands reach servers that may speak TLS.

use std::error::Error;
use std::path::PathBuf;

use clap::Args;
use reqwest::Url;

use super::admin::trouble::certificate;
use super::misuse::misuse;
use crate::error::BoxError;
use crate::link::{AskError, SendError, Site, SiteError, TlsError, TlsFiles};
use crate::shutdown::Tasks;

/// Whom we trust where the address is https, and who we say we are.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct TlsArgs {
    /// A file with the authorities (PEM) that are trusted where the address is https, in place of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Our own certificate (PEM), for servers that ask for one.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl TlsArgs {
    /// The server at `address`. Nothing is connected yet; a runtime must be entered.
    ///
    /// # Errors
    /// No address, or files that cannot be used.
    pub(super) fn site(&self, address: &str) -> anyhow::Result<Site> {
        Site::new(address, self.files(), Tasks::new()).map_err(|error| match error {
            SiteError::Tls(error) => untrusting(error),
            other => misuse(other.to_string()),
        })
    }

    /// Whether anything is said of certificates.
    pub(super) fn is_given(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    /// What is said of certificates.
    pub(super) fn files(&self) -> TlsFiles {
        TlsFiles { authorities: self.ca.clone(), identity: self.cert.clone().zip(self.key.clone()) }
    }
}

/// Files that cannot be used, or nobody to trust; each tells its cause by itself.
pub(super) fn untrusting(error: TlsError) -> anyhow::Error {
    match error {
        TlsError::NoAuthorities => misuse("this system trusts no authority: name the server's with --ca FILE"),
        other => misuse(other.to_string()),
    }
}

/// Ahead of an error that has to do with certificates, what can be done about it.
pub(super) fn remedied(error: anyhow::Error, site: &Site) -> anyhow::Error {
    match error.chain().find_map(|cause| advice(cause, site)) {
        Some(said) => error.context(said),
        None => error,
    }
}

/// The same of an error that no command has wrapped yet.
pub(super) fn remedied_box(error: BoxError, site: &Site) -> anyhow::Error {
    let said = advice(error.as_ref(), site);
    let error = anyhow::Error::from_boxed(error);
    match said {
        Some(said) => error.context(said),
        None => error,
    }
}

/// What can be done about a request that was not answered; none where it is none, or has nothing to do with certificates.
fn advice(cause: &(dyn Error + 'static), site: &Site) -> Option<String> {
    let failed = match cause.downcast_ref::<AskError>() {
        Some(AskError::Send(failed)) => failed,
        _ => cause.downcast_ref::<SendError>()?,
    };
    certificate(failed, &site.to_string().parse::<Url>().ok()?, site.files())
}
