//! What is measured of clients' connections, for each listener.

use std::sync::Arc;

use warmpath_core::count::real;

use metrics::{Counter, Gauge, Label};

use super::{
    ACCEPT_FAILURES, CERTIFICATE_EXPIRY, CERTIFICATE_READS, CONNECTIONS, CONNECTIONS_CLOSED, CONNECTIONS_OPENED,
    CONNECTIONS_REFUSED, HANDSHAKE_FAILURES, Metrics, STREAMS_RESET,
};

/// The listener of clients.
pub const DATA: &str = "data";
/// The listener of operators.
pub const ADMIN: &str = "admin";

/// Handles of one listener. Those of [`DoorMetrics::default`] measure nothing.
#[derive(Clone, Default)]
pub struct DoorMetrics(Option<Arc<Handles>>);

struct Handles {
    metrics: Metrics,
    listener: &'static str,
    connections: Gauge,
    opened: Counter,
}

/// A connection that is counted as open until this is dropped.
pub struct Opened(Option<Arc<Handles>>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(handles) = &self.0 {
            handles.connections.decrement(1.0);
        }
    }
}

impl DoorMetrics {
    pub(super) fn new(metrics: &Metrics, listener: &'static str) -> Self {
        let labels = || vec![Label::new("listener", listener)];
        let connections = metrics.registry.gauge(&CONNECTIONS, labels());
        connections.set(0.0);
        let opened = metrics.registry.counter(&CONNECTIONS_OPENED, labels());
        Self(Some(Arc::new(Handles { connections, opened, metrics: metrics.clone(), listener })))
    }

    /// A connection was accepted.
    pub fn opened(&self) -> Opened {
        if let Some(handles) = &self.0 {
            handles.connections.increment(1.0);
            handles.opened.increment(1);
        }
        Opened(self.0.clone())
    }

    /// A connection ended.
    pub fn closed(&self, reason: &'static str) {
        self.count(&CONNECTIONS_CLOSED, "reason", reason);
    }

    /// A connection was turned away.
    pub fn refused(&self, reason: &'static str) {
        self.count(&CONNECTIONS_REFUSED, "reason", reason);
    }

    /// A connection could not be accepted.
    pub fn accept_failed(&self, reason: &'static str) {
        self.count(&ACCEPT_FAILURES, "reason", reason);
    }

    /// Every request is cut off. Only clients' requests are counted, not operators'.
    pub fn cut(&self) {
        if let Some(handles) = self.0.as_ref().filter(|handles| handles.listener == DATA) {
            handles.metrics.parting.cut();
        }
    }

    /// A request was refused for its head. Only clients' requests are counted, not operators'.
    pub fn bad_head(&self, outcome: &'static str) {
        if let Some(handles) = self.0.as_ref().filter(|handles| handles.listener == DATA) {
            handles.metrics.refused(outcome);
        }
    }

    /// A stream of HTTP/2 was reset because its client took nothing of it.
    pub fn stream_reset(&self) {
        self.count(&STREAMS_RESET, "reason", "stalled");
    }

    /// A TLS handshake failed.
    pub fn handshake_failed(&self, reason: &'static str) {
        self.count(&HANDSHAKE_FAILURES, "reason", reason);
    }

    /// The certificate's files were read again.
    pub fn certificate_read(&self, outcome: &'static str) {
        self.count(&CERTIFICATE_READS, "outcome", outcome);
    }

    /// When the certificate in use expires, in seconds since 1970, if it says so.
    pub fn certificate_expires(&self, at: Option<i64>) {
        let (Some(handles), Some(at)) = (&self.0, at) else { return };
        let gauge = handles.metrics.registry.gauge(&CERTIFICATE_EXPIRY, vec![Label::new("listener", handles.listener)]);
        gauge.set(real(u64::try_from(at).unwrap_or(0)));
    }

    fn count(&self, definition: &super::Definition, label: &'static str, value: &'static str) {
        if let Some(handles) = &self.0 {
            let labels = vec![Label::new("listener", handles.listener), Label::new(label, value)];
            handles.metrics.registry.counter(definition, labels).increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_measured_apart() {
        let metrics = Metrics::new("w");
        let (data, admin) = (metrics.door(DATA), metrics.door(ADMIN));
        let opened = data.opened();
        drop(data.opened());
        admin.refused("full");
        let text = metrics.render();
        for line in [
            "w_client_connections{listener=\"data\"} 1\n",
            "w_client_connections{listener=\"admin\"} 0\n",
            "w_client_connections_opened_total{listener=\"data\"} 2\n",
            "w_client_connections_refused_total{listener=\"admin\",reason=\"full\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        drop(opened);
        assert!(metrics.render().contains("w_client_connections{listener=\"data\"} 0\n"));
    }
}
