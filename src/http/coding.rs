//! Bodies that their clients have compressed: engines do not read them, and neither does the router.

use http::{HeaderMap, header};

use crate::error::GatewayError;

/// The most of a coding's name that is repeated to whoever sent it.
const NAME_SHOWN: usize = 40;

/// Lets a body pass that is as it is.
///
/// # Errors
/// [`GatewayError::Encoded`] names the first coding that it is sent with.
pub(super) fn unencoded(headers: &HeaderMap) -> Result<(), GatewayError> {
    let values = headers.get_all(header::CONTENT_ENCODING).into_iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    // Nothing is done to a body that is the identity of itself.
    match codings.find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")) {
        Some(coding) => {
            let coding = String::from_utf8_lossy(coding).chars().take(NAME_SHOWN).collect();
            Err(GatewayError::Encoded { coding })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_coding_is_named_to_whoever_sent_it() {
        let judged = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            unencoded(&headers).map_err(|error| (error.status().as_u16(), error.to_string()))
        };
        for values in [&[][..], &[""], &["identity"], &["Identity, identity", ""]] {
            assert_eq!(judged(values), Ok(()), "{values:?}");
        }
        for (values, coding) in [(&["gzip"][..], "gzip"), (&["identity", " br , gzip"], "br")] {
            let (status, message) = judged(values).unwrap_err();
            assert_eq!((status, message.contains(&format!("`Content-Encoding: {coding}`"))), (415, true), "{message}");
        }
        let (_, message) = judged(&["a-name-without-end-that-goes-on-and-on-and-on-and-on"]).unwrap_err();
        assert!(message.contains("goes-on-and-on-a`"), "{message}");
    }
}
