//! Who serves, where workers come and go.

use crate::fleet::TestFleet;

impl TestFleet {
    /// Who answers a request, or its status.
    pub(crate) async fn who(&self) -> Result<String, u16> {
        let body = br#"{"model": "m", "prompt": "x", "stream": true}"#.to_vec();
        let answer = self.post_bytes("/v1/completions", body).await;
        if answer.status == 200 { Ok(answer.worker) } else { Err(answer.status) }
    }

    pub(crate) async fn until_answered_by(&self, worker: &str) {
        self.eventually(worker, async |fleet| fleet.who().await.as_deref() == Ok(worker)).await;
    }

    pub(crate) async fn until_nobody_answers(&self) {
        self.eventually("nobody serves", async |fleet| fleet.who().await == Err(503)).await;
    }

    pub(crate) async fn until_degraded(&self, by: &str) {
        self.eventually(by, async |fleet| fleet.health().await["degraded"].to_string().contains(by)).await;
    }
}
