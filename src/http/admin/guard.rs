//! Who may change something through the admin port.
//!
//! A browser that an operator has open beside can be made to send requests to loopback. So where no token is asked for, a
//! change must be addressed to this machine by its address or as `localhost`, which a foreign name that was made to point
//! here is not; and one that says which page it comes from must come from this port itself.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{Admin, refused};

/// What whoever sent another token is told: who hears that one is missing looks in the wrong place.
const WRONG: &str = "the token that was sent is not that of `listen.admin_token`";

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is missing.
    Token,
    /// One was sent, and it is another.
    WrongToken,
    /// The request was addressed to another name.
    Host,
    /// It comes from another page.
    Origin,
}

impl Refusal {
    /// What the operator is told.
    pub(super) fn message(self) -> &'static str {
        match self {
            Refusal::Token => "an admin token is needed: `Authorization: Bearer …`",
            Refusal::WrongToken => WRONG,
            Refusal::Host => "without an admin token, changes must be addressed to an IP address or to `localhost`",
            Refusal::Origin => "changes from another site's page are refused",
        }
    }

    /// The status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Refusal::Token | Refusal::WrongToken => StatusCode::UNAUTHORIZED,
            Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
        }
    }
}

/// Whether a request with these headers may change something.
pub(super) fn may_change(admin: &Admin, headers: &HeaderMap) -> Result<(), Refusal> {
    judge(admin.token.get().as_deref().map(String::as_str), headers)
}

/// What whoever may change nothing is told; none for whoever may.
pub(super) fn change_refused(admin: &Admin, headers: &HeaderMap) -> Option<Response> {
    let refusal = may_change(admin, headers).err()?;
    Some(match refusal {
        Refusal::Token | Refusal::WrongToken => challenge(refusal),
        Refusal::Host | Refusal::Origin => refused(refusal.status(), refusal.message()),
    })
}

/// The admin port, as whoever asks may read it: who has no token and needs one is told so. A handler's first argument, so that
/// nothing is said of a request before that.
pub(super) struct Reader(pub(super) Arc<Admin>);

impl FromRequestParts<Arc<Admin>> for Reader {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Response> {
        given(admin.token.get().as_deref().map(String::as_str), &parts.headers).map_err(challenge)?;
        Ok(Self(Arc::clone(admin)))
    }
}

/// What whoever has no token is told.
fn challenge(refusal: Refusal) -> Response {
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    let said = if refusal == Refusal::WrongToken { WRONG } else { "an admin token is needed" };
    (refusal.status(), challenge, format!("{said}\n")).into_response()
}

fn judge(token: Option<&str>, headers: &HeaderMap) -> Result<(), Refusal> {
    given(token, headers)?;
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    if token.is_none() && !is_local_name(host) {
        return Err(Refusal::Host);
    }
    // Browsers say where a request comes from, those that leave `Origin` out as well.
    if text(SEC_FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(Refusal::Origin);
    }
    match text(header::ORIGIN) {
        Some(origin)
            if origin.strip_prefix("http://") != Some(host) && origin.strip_prefix("https://") != Some(host) =>
        {
            Err(Refusal::Origin)
        }
        _ => Ok(()),
    }
}

/// An address or `localhost`, with or without a port.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') && !name.is_empty() => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Whether the token that is asked for, if any, was sent.
fn given(token: Option<&str>, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(token) = token else { return Ok(()) };
    match headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) {
        None => Err(Refusal::Token),
        Some(given) if equal_in_constant_time(given, token.as_bytes()) => Ok(()),
        Some(_) => Err(Refusal::WrongToken),
    }
}

/// What is sent by the scheme `Bearer`, whose case does not matter (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, sent) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(sent)
}

/// Compares secrets without telling by the time where they differ.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn judged(token: Option<&str>, pairs: &[(HeaderName, &'static str)]) -> Result<(), Refusal> {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        judge(token, &pairs.collect())
    }

    #[test]
    fn secrets_are_equal_only_when_every_byte_is() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        assert!(!equal_in_constant_time(b"secret", b"secreT"));
        assert!(!equal_in_constant_time(b"secret", b"secret2"));
    }

    #[test]
    fn a_token_that_is_asked_for_must_be_right() {
        let host = (header::HOST, "router.example:9090");
        assert_eq!(judged(Some("t"), std::slice::from_ref(&host)), Err(Refusal::Token));
        for (sent, refusal) in
            [("Bearer x", Refusal::WrongToken), ("Bearer ", Refusal::WrongToken), ("Basic t", Refusal::Token)]
        {
            assert_eq!(judged(Some("t"), &[host.clone(), (header::AUTHORIZATION, sent)]), Err(refusal), "{sent}");
        }
        for sent in ["Bearer t", "bearer t", "BEARER t"] {
            assert_eq!(judged(Some("t"), &[host.clone(), (header::AUTHORIZATION, sent)]), Ok(()), "{sent}");
        }
        for sent in ["Bearert", "t", "Bearer", "Bearer\tt"] {
            assert_eq!(
                judged(Some("t"), &[host.clone(), (header::AUTHORIZATION, sent)]),
                Err(Refusal::Token),
                "{sent}"
            );
        }
    }

    #[test]
    fn without_a_token_only_addresses_and_localhost_are_names_of_this_machine() {
        for host in ["127.0.0.1:9090", "127.0.0.1", "[::1]:9090", "[::1]", "localhost:9090", "LOCALHOST"] {
            assert_eq!(judged(None, &[(header::HOST, host)]), Ok(()), "{host}");
        }
        for host in ["rebound.example:9090", "127.0.0.1.example", "localhost.example", ""] {
            assert_eq!(judged(None, &[(header::HOST, host)]), Err(Refusal::Host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let from = |origin| judged(None, &[(header::HOST, "localhost:9090"), (header::ORIGIN, origin)]);
        assert_eq!(from("http://localhost:9090"), Ok(()));
        for origin in ["http://evil.example", "null", "http://localhost:8080", "localhost:9090"] {
            assert_eq!(from(origin), Err(Refusal::Origin), "{origin}");
        }
        let said = |site| judged(None, &[(header::HOST, "localhost:9090"), (SEC_FETCH_SITE, site)]);
        assert_eq!(
            ["same-origin", "none", "cross-site", "same-site"].map(said),
            [Ok(()), Ok(()), Err(Refusal::Origin), Err(Refusal::Origin)]
        );
    }
}
