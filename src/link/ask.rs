//! A small question and its whole answer: health, metrics, token ids, commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::{Inflow, Link, Outgoing, SendError, Stage, Way};
use crate::error::BoxError;

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

impl Link {
    /// Sends a request and waits for the head of its answer. Once more on a new connection where a kept one had ended.
    ///
    /// # Errors
    /// See [`Stage`].
    pub async fn send_again(self: &Arc<Self>, ask: &Outgoing) -> Result<Response<Inflow>, SendError> {
        let own = HeaderMap::new();
        match self.send(ask, &own, Way::Kept).await {
            Err(SendError { stage: Stage::Stale, .. }) => self.send(ask, &own, Way::Fresh).await,
            sent => sent,
        }
    }

    /// The same, and waits for the whole answer: `patience` and `answer_max` bytes at most.
    ///
    /// # Errors
    /// When there is no whole answer; any status is one.
    pub async fn ask(
        self: &Arc<Self>,
        ask: &Outgoing,
        patience: Duration,
        answer_max: usize,
    ) -> Result<(StatusCode, Bytes), AskError> {
        let asking = async {
            let response = self.send_again(ask).await?;
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
