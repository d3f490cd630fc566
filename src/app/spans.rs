//! Spans of requests, from the gateway to their receiver.

use super::StartError;
use super::build::setup;
use super::record::Keeping;
use crate::config::Config;
use crate::link::Links;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::{Exporter, exporter};

/// Begins to send, if the configuration says where. The connections are tasks of `tasks`.
pub(super) fn start(
    config: &Config,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<(Option<Exporter>, Keeping), StartError> {
    let keeping = Keeping::default();
    let Some(receiver) = &config.tracing.otlp else { return Ok((None, keeping)) };
    let links = Links::configured(config, tasks).map_err(|error| setup("`upstream_tls` cannot be used", error))?;
    let link = links.link(receiver.scheme(), receiver.authority());
    let link = link.map_err(|error| setup("`tracing.otlp` cannot be reached", error))?;
    let (exporter, courier) =
        exporter(link, (receiver.path().clone(), config.tracing.headers.to_map()), metrics.spans());
    keeping.keep(|stop| courier.run(stop));
    Ok((Some(exporter), keeping))
}
