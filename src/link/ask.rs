//! A small question and its whole answer: health, metrics, token ids, commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::time::timeout;

use super::{Link, SendError, Stage, Way};
use crate::error::BoxError;

/// A question.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: PathAndQuery,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It could not be asked.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Not in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer broke off.
    #[error("the answer broke off")]
    Broken(#[source] BoxError),
    /// The answer is too long.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

impl Ask {
    /// A question without headers and body.
    pub fn get(path: &'static str) -> Self {
        Self {
            method: Method::GET,
            path: PathAndQuery::from_static(path),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// A request to do something.
    pub fn post(path: &'static str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: body.into(), ..Self::get(path) }
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.clone().into();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

impl Link {
    /// Asks, and waits for the whole answer: `patience` and `answer_max` bytes at most. Once more on a new connection
    /// where a kept one had ended.
    ///
    /// # Errors
    /// When there is no whole answer; any status is one.
    pub async fn ask(
        self: &Arc<Self>,
        ask: &Ask,
        patience: Duration,
        answer_max: usize,
    ) -> Result<(StatusCode, Bytes), AskError> {
        let asking = async {
            let response = match self.send(ask.request(), Way::Kept).await {
                Err(SendError { stage: Stage::Stale, .. }) => self.send(ask.request(), Way::Fresh).await?,
                sent => sent?,
            };
            let status = response.status();
            match Limited::new(response.into_body(), answer_max).collect().await {
                Ok(body) => Ok((status, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(AskError::TooLong(answer_max)),
                Err(error) => Err(AskError::Broken(error)),
            }
        };
        timeout(patience, asking).await.map_err(|_| AskError::Timeout(patience))?
    }
}
