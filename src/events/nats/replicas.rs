//! What routers of one fleet tell each other of themselves: for people who look, nothing is decided by it.
//!
//! A report is one compact JSON object on `<prefix>.routers.<router>`, every two seconds:
//! `{"v":1,"router":"5b0c…","name":"warmpath-0","version":"0.1.0","config":"8a1f…","ready":true,"in_flight":12}`.

use async_nats::Subscriber;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::NatsBus;
use crate::events::subject;

/// The form of reports that is written and read here.
pub const VERSION: u8 = 1;

/// The largest report that is read.
const REPORT_BYTES_MAX: usize = 4096;

/// Characters of each text in it that are kept.
const TEXT_MAX: usize = 64;

/// What a router says of itself. Fields that are not known are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterReport {
    /// The form: [`VERSION`].
    pub v: u8,
    /// A number of its process, which no other has.
    pub router: String,
    /// The machine or container that it runs on.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The hash of its configuration's file; empty without one.
    pub config: String,
    /// Whether it can serve requests.
    pub ready: bool,
    /// Requests that it has sent to workers and has not seen finished.
    pub in_flight: u32,
}

/// The reports of all routers, as they come.
pub struct RouterReports(Subscriber);

impl RouterReport {
    /// Reads a report; none where it is not what a router of this version would write. Texts are cut, and hold no control
    /// characters.
    pub fn read(message: &[u8]) -> Option<Self> {
        if message.len() > REPORT_BYTES_MAX {
            return None;
        }
        let mut report: Self = serde_json::from_slice(message).ok()?;
        for text in [&mut report.router, &mut report.name, &mut report.version, &mut report.config] {
            *text = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        }
        (report.v == VERSION && !report.router.is_empty()).then_some(report)
    }
}

impl RouterReports {
    /// The next one, skipping what is none. None when the client is closed.
    pub async fn next(&mut self) -> Option<RouterReport> {
        loop {
            let message = self.0.next().await?;
            if let Some(report) = RouterReport::read(&message.payload) {
                return Some(report);
            }
        }
    }
}

impl NatsBus {
    /// Listens for what routers tell of themselves, now and after each lost connection.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn router_reports(&self) -> Result<RouterReports, async_nats::Error> {
        Ok(RouterReports(self.client.subscribe(subject::router_of(&self.settings.prefix, None)).await?))
    }

    /// Tells how this router is, if the connection is up.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn tell_router(&self, report: &RouterReport) -> Result<(), async_nats::Error> {
        if self.is_up() {
            let subject = subject::router_of(&self.settings.prefix, Some(&report.router));
            self.client.publish(subject, serde_json::to_vec(report)?.into()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        r#"{"v":1,"router":"5b0c","name":"pod-0","version":"0.1.0","config":"8a1f","ready":true,"in_flight":12}"#;

    #[test]
    fn a_report_is_read_as_it_was_written_and_nothing_else_is() {
        let report = RouterReport {
            v: 1,
            router: "5b0c".to_owned(),
            name: "pod-0".to_owned(),
            version: "0.1.0".to_owned(),
            config: "8a1f".to_owned(),
            ready: true,
            in_flight: 12,
        };
        assert_eq!(serde_json::to_string(&report).unwrap(), TEXT);
        assert_eq!(RouterReport::read(TEXT.as_bytes()), Some(report.clone()));
        let long = TEXT.replace("pod-0", &format!("\\u001b[2J{}", "x".repeat(100)));
        let cut = RouterReport::read(long.as_bytes()).unwrap();
        assert_eq!(cut.name, format!("[2J{}", "x".repeat(61)));
        for wrong in
            ["", "{}", &TEXT.replace("\"v\":1", "\"v\":2"), &TEXT.replace("5b0c", ""), &TEXT.replace("12", "-1")]
        {
            assert_eq!(RouterReport::read(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(RouterReport::read(TEXT.replace("pod-0", &"x".repeat(5000)).as_bytes()), None);
    }
}
