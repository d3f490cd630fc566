//! The two ports: bound, opened, closed, and the certificates behind them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::StartError;
use crate::config::{Config, Listen, Tls as TlsConfig};
use crate::door::{Door, DoorLimits, Front, Listener, Tls, TlsFiles};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::{DoorMetrics, Metrics, door};

/// Between two looks at whether a certificate's files have changed.
const LOOK: Duration = Duration::from_secs(2);

/// A port that is bound and not yet open: who comes waits.
pub(super) struct Port {
    listener: Listener,
    tls: Option<Arc<Tls>>,
    metrics: DoorMetrics,
}

/// Binds both ports, that of clients and that of operators, and reads their certificates.
pub(super) fn bind_both(listen: &Listen, metrics: &Metrics) -> Result<[Port; 2], StartError> {
    Ok([
        bind(listen.data.value, door::DATA, &listen.data_tls, metrics)?,
        bind(listen.admin.value, door::ADMIN, &listen.admin_tls, metrics)?,
    ])
}

fn bind(address: SocketAddr, name: &'static str, tls: &TlsConfig, metrics: &Metrics) -> Result<Port, StartError> {
    let metrics = metrics.door(name);
    let listener = Listener::bind(address).map_err(|source| StartError::Listen { address, source })?;
    let tls = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let files = TlsFiles {
                certificate: certificate.value.clone(),
                key: key.value.clone(),
                client_authorities: tls.client_authorities.as_ref().map(|path| path.value.clone()),
            };
            let failed = |source| StartError::Setup { what: format!("listen.{name}_tls"), source: Box::new(source) };
            let tls = Tls::load(files, metrics.clone()).map_err(failed)?;
            tls.warn_if_untimely();
            Some(Arc::new(tls))
        }
        _ => None,
    };
    Ok(Port { listener, tls, metrics })
}

impl Port {
    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// What guards it.
    pub(super) fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Lets clients in.
    pub(super) fn open(self, front: impl Into<Front>, limits: DoorLimits, tasks: &Tasks) -> Door {
        Door::open(self.listener, front, (limits, self.tls), self.metrics, tasks)
    }
}

/// SIGHUP, which asks for files to be read again.
pub(super) fn hangups() -> Result<Signal, StartError> {
    signal(SignalKind::hangup())
        .map_err(|source| StartError::Setup { what: "SIGHUP".to_owned(), source: source.into() })
}

/// Reads certificates again when their files change, and on SIGHUP.
pub(super) fn keep_fresh(certificates: Vec<Arc<Tls>>, tasks: &Tasks) -> Result<(), StartError> {
    if certificates.is_empty() {
        return Ok(());
    }
    let mut hangups = hangups()?;
    tasks.spawn(async move {
        loop {
            let asked = tokio::select! {
                hangup = hangups.recv() => hangup.is_some(),
                () = tokio::time::sleep(LOOK) => false,
            };
            let certificates = certificates.clone();
            // The disk may be slow, and it is nobody's turn to wait for it.
            let reading = tokio::task::spawn_blocking(move || {
                certificates.iter().for_each(|tls| if asked { tls.reload() } else { tls.refresh() });
            });
            if let Err(error) = reading.await {
                tracing::error!(error = %error, "reading certificates");
            }
        }
    });
    Ok(())
}

/// What the ports let in.
pub(super) fn limits(config: &Config) -> DoorLimits {
    let count = |number: std::num::NonZeroU32| usize::try_from(number.get()).unwrap_or(usize::MAX);
    let (limits, timeouts) = (&config.limits, &config.timeouts);
    DoorLimits {
        connections: count(limits.connections),
        connections_per_address: count(limits.connections_per_address),
        streams: limits.streams_per_connection.get(),
        header_bytes: limits.header_bytes.as_usize(),
        headers: count(limits.headers),
        uri_bytes: limits.uri_bytes.as_usize(),
        header_timeout: timeouts.header_read.get(),
        idle_timeout: timeouts.client_idle.get(),
        stall_timeout: timeouts.client_stall.get(),
    }
}
