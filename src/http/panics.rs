//! A panic costs its own request and nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::error::GatewayError;

/// What `answering` answers; where it panics, an error. What it had reserved is given back by its unwinding, and what it
/// shared with others stands behind locks that outlive a panic.
pub(super) async fn caught<T, E: From<GatewayError>>(answering: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match AssertUnwindSafe(answering).catch_unwind().await {
        Ok(answered) => answered,
        // The panic hook has said where.
        Err(_) => Err(GatewayError::Internal.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r34_a_request_that_panics_is_answered_with_500() {
        let panics = async { if true { panic!("on purpose") } else { Ok::<(), GatewayError>(()) } };
        let answer: http::Response<Vec<u8>> = caught(panics).await.unwrap_err().into_response();
        assert_eq!(answer.status().as_u16(), 500);
        let body: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(
            (&body["error"]["type"], &body["error"]["code"]),
            (&"server_error".into(), &"internal_error".into())
        );
        assert_eq!(caught(async { Ok::<_, GatewayError>(7) }).await.unwrap(), 7);
    }
}
