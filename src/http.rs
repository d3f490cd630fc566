//! Towards the clients: the accept loop, and the routes of the data port.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shutdown::Tasks;

pub mod admin;
mod arrival;
pub mod completions;
mod destination;
mod forward;
pub mod gateway;
pub mod models;
mod passthrough;
pub mod routes;
mod usage;

/// Pause of the accept loop when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What one listener accepts.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Time for a request's head.
    pub header_timeout: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Header lines of a request.
    pub headers: usize,
}

/// Serves `router` on `listener` until `stop` resolves; then accepts nothing more, and lets what runs finish. Axum's own
/// loop has no time-out for a request's head, so that 200 half-open requests stay for ever.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    tasks: Tasks,
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8192))
        .max_headers(limits.headers)
        .half_close(false);
    tokio::pin!(stop);
    loop {
        let (stream, permit) = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(error = %error, "set_nodelay");
        }
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = Arc::clone(permits).acquire_owned().await.expect("nobody closes the semaphore");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                tracing::warn!(error = %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The request and response of every handler.
pub type HttpRequest = Request;
/// See [`HttpRequest`].
pub type HttpResponse = Response;
