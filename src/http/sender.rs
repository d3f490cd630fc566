//! What a request's headers say of its sender: who it is, how urgent this is, and how long it will wait.

use std::hash::{BuildHasher, Hash, Hasher};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use warmpath_core::shape::{AffinityKey, Class, TenantId};

use crate::config::SessionField;
use crate::error::GatewayError;

/// How long the client will wait for the whole answer, in milliseconds from the request's arrival: relative, since clocks
/// differ. OpenAI's clients send none by themselves: their `x-stainless-read-timeout` bounds each wait, not the sum.
const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// What a body says that may tell sessions apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SessionNames<'a> {
    pub(super) prompt_cache_key: Option<&'a str>,
    pub(super) user: Option<&'a str>,
}

/// How senders and their urgency are known.
#[derive(Clone, Debug)]
pub struct Senders {
    tenant: HeaderName,
    class: Option<HeaderName>,
    sessions: Option<(Option<HeaderName>, SessionField)>,
    /// Seeded by chance: nobody can choose a name that counts as another's.
    hasher: foldhash::fast::RandomState,
}

impl Senders {
    /// Tenants are told apart by `tenant`, or else by their API keys; urgency is said by `class`, or else by the body.
    pub fn new(tenant: Option<HeaderName>, class: Option<HeaderName>) -> Self {
        let hasher = foldhash::fast::RandomState::default();
        Self { tenant: tenant.unwrap_or(AUTHORIZATION), class, sessions: None, hasher }
    }

    /// The same, knowing senders by the numbers by which `old` knows them.
    pub fn succeeding(self, old: &Self) -> Self {
        Self { hasher: old.hasher.clone(), ..self }
    }

    /// Sessions are told apart by `header`, or else by `field`.
    pub fn with_sessions(self, header: Option<HeaderName>, field: SessionField) -> Self {
        Self { sessions: Some((header, field)), ..self }
    }

    /// Whether sessions may be named in bodies.
    pub(super) fn read_bodies(&self) -> bool {
        self.sessions.as_ref().is_some_and(|(_, field)| *field != SessionField::None)
    }

    /// Who sent it; those who do not say are one tenant together. Two names in 2^32 share one number, and so a share.
    pub(super) fn tenant(&self, headers: &HeaderMap) -> Option<TenantId> {
        let hash = self.hasher.hash_one(self.named(headers)?);
        Some(TenantId(u32::try_from(hash >> 32).unwrap_or(u32::MAX)))
    }

    /// The session that it belongs to, a tenant's own; none where sessions count for nothing. O(bytes of its name).
    pub(super) fn session(&self, headers: &HeaderMap, in_body: SessionNames<'_>) -> Option<AffinityKey> {
        let (header, field) = self.sessions.as_ref()?;
        let by_header = header.as_ref().and_then(|header| headers.get(header)).map(|name| name.as_bytes());
        // A header without a name says nothing.
        let by_header = by_header.filter(|name| !name.is_empty());
        let by_body = || match field {
            SessionField::PromptCacheKey => in_body.prompt_cache_key,
            SessionField::User => in_body.user,
            SessionField::None => None,
        };
        let name = by_header.or_else(|| by_body().map(str::as_bytes)).filter(|name| !name.is_empty())?;
        Some(AffinityKey(self.hasher.hash_one((self.named(headers), name))))
    }

    /// The tenant as the request names it.
    fn named<'a>(&self, headers: &'a HeaderMap) -> Option<Tenant<'a>> {
        let value = headers.get(&self.tenant)?.as_bytes();
        Some(if self.tenant == AUTHORIZATION {
            Tenant::by_credentials(value)
        } else {
            Tenant { scheme: b"", name: value }
        })
    }

    /// How urgent it is: the header's number or word, where one is configured, and nothing else; else the body's.
    pub(super) fn class(&self, headers: &HeaderMap, priority: i64) -> Result<Class, GatewayError> {
        let Some(name) = &self.class else { return Ok(class(priority)) };
        let Some(value) = headers.get(name) else { return Ok(Class::default()) };
        match value.to_str().unwrap_or_default().trim() {
            "high" => Ok(Class(-1)),
            "normal" => Ok(Class(0)),
            "low" => Ok(Class(1)),
            number => number.parse().map(class).map_err(|_| {
                GatewayError::bad_request(
                    format!("`{name}` must be high, normal, low or an integer"),
                    Some(name.as_str()),
                )
            }),
        }
    }
}

/// The name of a tenant, which counts as the same with its scheme in any case (RFC 9110, 11.1).
struct Tenant<'a> {
    scheme: &'a [u8],
    name: &'a [u8],
}

impl<'a> Tenant<'a> {
    /// By what stands in `Authorization`: a scheme, spaces and credentials, or a bare key.
    fn by_credentials(value: &'a [u8]) -> Self {
        let Some(end) = value.iter().position(|byte| *byte == b' ') else { return Self { scheme: b"", name: value } };
        let (scheme, credentials) = value.split_at(end);
        Self { scheme, name: credentials.trim_ascii_start() }
    }
}

impl Hash for Tenant<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.scheme.iter().for_each(|byte| state.write_u8(byte.to_ascii_lowercase()));
        self.name.hash(state);
    }
}

/// Priorities beyond 32 bits are no more urgent than the most urgent.
fn class(priority: i64) -> Class {
    Class(i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX }))
}

/// How long the request may take: `total`, or less if the client says so.
pub(super) fn time_allowed(headers: &HeaderMap, total: Duration) -> Result<Duration, GatewayError> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(total) };
    let digits = value
        .to_str()
        .map(str::trim)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    // More than a number of 64 bits is longer than any time.
    let millis = digits.map(|digits| digits.parse().unwrap_or(u64::MAX));
    let millis = millis.ok_or_else(|| {
        let message = format!("`{TIMEOUT}` must be a whole number of milliseconds");
        GatewayError::bad_request(message, Some(TIMEOUT.as_str()))
    })?;
    Ok(total.min(Duration::from_millis(millis)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn tenants_are_told_apart_by_their_keys_or_by_a_header() {
        let (by_key, by_header) = (Senders::new(None, None), Senders::new(Some("x-tenant".parse().unwrap()), None));
        let sent = |key, tenant| headers(&[("authorization", key), ("x-tenant", tenant)]);
        let [first, second, third] = [sent("Bearer a", "1"), sent("Bearer b", "1"), sent("Bearer a", "2")];
        assert_eq!(by_key.tenant(&first), by_key.tenant(&third));
        assert_ne!(by_key.tenant(&first), by_key.tenant(&second));
        assert_eq!(by_header.tenant(&first), by_header.tenant(&second));
        assert_ne!(by_header.tenant(&first), by_header.tenant(&third));
        assert_eq!(by_key.tenant(&HeaderMap::new()), None);
    }

    #[test]
    fn a_key_is_one_tenant_however_its_scheme_is_written() {
        let (by_key, by_header) = (Senders::new(None, None), Senders::new(Some("x-tenant".parse().unwrap()), None));
        let sent = |value: &str| by_key.tenant(&headers(&[("authorization", value)])).unwrap();
        for same in ["bearer k", "BEARER k", "Bearer   k"] {
            assert_eq!(sent("Bearer k"), sent(same), "{same}");
        }
        for other in ["Bearer K", "Basic k", "k", "Bearerk", "Bearer k k"] {
            assert_ne!(sent("Bearer k"), sent(other), "{other}");
        }
        let named = |name| by_header.tenant(&headers(&[("x-tenant", name)]));
        assert_ne!(named("Bearer k"), named("bearer k"));
    }

    #[test]
    fn urgency_is_the_bodys_unless_a_header_is_configured() {
        let headers = |value| headers(&[("x-class", value)]);
        let by_body = Senders::new(None, None);
        assert_eq!(by_body.class(&headers("high"), 7).unwrap(), Class(7));
        assert_eq!(by_body.class(&headers("high"), i64::MIN).unwrap(), Class(i32::MIN));
        let by_header = Senders::new(None, Some("x-class".parse().unwrap()));
        for (value, class) in [("high", -1), ("normal", 0), ("low", 1), (" -12 ", -12), ("9999999999", i32::MAX)] {
            assert_eq!(by_header.class(&headers(value), 7).unwrap(), Class(class));
        }
        assert_eq!(by_header.class(&HeaderMap::new(), -7).unwrap(), Class(0));
        assert!(by_header.class(&headers("soon"), 0).is_err());
    }

    #[test]
    fn a_session_is_named_by_its_header_or_else_by_the_body_and_is_its_tenants_own() {
        let header = || "x-session-id".parse().ok();
        let body = SessionNames { prompt_cache_key: Some("k"), user: Some("u") };
        let senders = Senders::new(None, None);
        let by = |senders: &Senders, pairs: &[(&'static str, &str)]| senders.session(&headers(pairs), body);
        assert_eq!(by(&senders, &[("x-session-id", "s")]), None);
        let senders = senders.with_sessions(header(), SessionField::PromptCacheKey);
        let named = [("x-session-id", "s")].as_slice();
        assert!(by(&senders, named).is_some());
        assert_eq!(by(&senders, named), by(&senders, named));
        assert_ne!(by(&senders, named), by(&senders, &[("x-session-id", "t")]));
        assert_ne!(by(&senders, named), by(&senders, &[("x-session-id", "s"), ("authorization", "Bearer b")]));
        assert_eq!(by(&senders, &[]), by(&senders, &[("x-session-id", "k")]));
        assert_eq!(by(&senders, &[("x-session-id", "")]), by(&senders, &[]));
        let senders = senders.with_sessions(header(), SessionField::User);
        assert_eq!(by(&senders, &[]), by(&senders, &[("x-session-id", "u")]));
        let senders = senders.with_sessions(None, SessionField::None);
        assert_eq!(by(&senders, named), None);
        assert_eq!(senders.session(&headers(named), SessionNames::default()), None);
    }

    #[test]
    fn a_client_may_shorten_the_time_and_not_lengthen_it() {
        let allowed = |value| time_allowed(&headers(&[("x-request-timeout-ms", value)]), Duration::from_secs(60)).ok();
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!([allowed("250"), allowed("0"), allowed("90000")], [millis(250), millis(0), millis(60_000)]);
        assert_eq!(allowed("99999999999999999999"), millis(60_000));
        assert_eq!([allowed("-1"), allowed("1.5"), allowed("soon"), allowed("")], [None; 4]);
        assert_eq!(time_allowed(&HeaderMap::new(), Duration::from_secs(60)).ok(), millis(60_000));
    }
}
