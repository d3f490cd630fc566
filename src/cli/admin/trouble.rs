//! Why a router was not heard, and what whoever asked can do about it.

use std::error::Error;

use reqwest::Url;
use rustls::{AlertDescription, CertificateError, Error as TlsFault};

use crate::link::{AskError, Fault, SendError, Stage, TlsFiles};

/// What is said of a failure ahead of its causes: `admin` was asked, with what `files` say of certificates.
pub(in crate::cli) fn remedy(error: &AskError, admin: &Url, files: &TlsFiles) -> String {
    match error {
        AskError::Broken(_) => format!("{admin} broke off"),
        AskError::TooLong(_) => format!("{admin} says too much for a router"),
        AskError::Timeout(_) => nobody(admin),
        AskError::Send(failed) => certificate(failed, admin, files).unwrap_or_else(|| nobody(admin)),
    }
}

/// What is said where it has to do with certificates, or with who speaks TLS; none where nobody answered at all.
pub(in crate::cli) fn certificate(failed: &SendError, server: &Url, files: &TlsFiles) -> Option<String> {
    let SendError { stage, source } = failed;
    let known = causes(source.as_ref()).find_map(|cause| of_cause(cause, server, files));
    known.or_else(|| match (stage, &files.identity) {
        (Stage::Connect, _) => None,
        _ if server.scheme() == "http" => None,
        // A port that wants a certificate may hang up before its reason is read.
        (_, None) => Some(format!("{server} hung up: if it asks for a certificate, name yours with --cert and --key")),
        (_, Some((certificate, _))) => {
            Some(format!("{server} hung up: it may not take the certificate in {}", certificate.display()))
        }
    })
}

fn nobody(admin: &Url) -> String {
    format!("no router answers at {admin}: start one with `warmpath serve`, or name its admin port with --admin")
}

/// An error and its causes; of one of input and output what it wraps, which is none of its causes.
fn causes<'a>(error: &'a (dyn Error + Send + Sync + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let first: &'a (dyn Error + 'static) = error;
    std::iter::successors(Some(first), |&error| {
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

fn of_cause(cause: &(dyn Error + 'static), admin: &Url, files: &TlsFiles) -> Option<String> {
    if matches!(cause.downcast_ref(), Some(Fault::NoHttp(_))) {
        return Some(format!("what {admin} answers is no HTTP: if it speaks TLS, its address begins with https://"));
    }
    match (cause.downcast_ref::<TlsFault>()?, &files.identity) {
        (TlsFault::InvalidCertificate(fault), _) => Some(of_certificate(fault, admin, files)),
        (TlsFault::InvalidMessage(_), _) => Some(format!("{admin} speaks no TLS: its address may begin with http://")),
        (TlsFault::AlertReceived(AlertDescription::CertificateRequired), None) => {
            Some(format!("{admin} asks for a certificate: name yours with --cert and --key"))
        }
        (TlsFault::AlertReceived(_), Some((certificate, _))) => {
            Some(format!("{admin} does not take the certificate in {}", certificate.display()))
        }
        _ => None,
    }
}

/// What is wrong with the certificate that is shown.
fn of_certificate(fault: &CertificateError, admin: &Url, files: &TlsFiles) -> String {
    let why = match (fault, &files.authorities) {
        (CertificateError::UnknownIssuer, None) => {
            "is of no authority that this system trusts: name its authority with --ca FILE".to_owned()
        }
        (CertificateError::UnknownIssuer, Some(path)) => format!("is of no authority in {}", path.display()),
        (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }, _) => {
            "is for another name: use that in the address".to_owned()
        }
        (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => "has expired".to_owned(),
        (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => {
            "is not valid yet".to_owned()
        }
        _ => "cannot be used".to_owned(),
    };
    format!("the certificate that {admin} shows {why}")
}
