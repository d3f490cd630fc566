//! Stands before an engine and changes what it answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use warmpath::door::{Door, DoorLimits, Listener};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::DoorMetrics;

type Change = Box<dyn Fn(&str, &mut Value) + Send + Sync>;

/// The one in between.
pub(crate) struct Meddler {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: Tasks,
}

struct Shared {
    engine: SocketAddr,
    client: reqwest::Client,
    change: Change,
    hidden: Mutex<Vec<&'static str>>,
    key: Mutex<Option<String>>,
}

impl Meddler {
    /// Before `engine`; `change` gets the path and the answer, if that is JSON.
    pub(crate) async fn before(engine: SocketAddr, change: impl Fn(&str, &mut Value) + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            engine,
            client: reqwest::Client::new(),
            change: Box::new(change),
            hidden: Mutex::default(),
            key: Mutex::default(),
        });
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("loopback has free ports");
        let address = listener.address();
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        let tasks = Tasks::new();
        Door::open(listener, router, (DoorLimits::default(), None), DoorMetrics::default(), &tasks);
        Self { address, shared, _tasks: tasks }
    }

    /// These paths are not there any longer.
    pub(crate) fn hide(&self, paths: &[&'static str]) {
        *self.shared.hidden.lock().unwrap() = paths.to_vec();
    }

    /// Paths under `/v1` and the tokenizer are for those who have this key.
    pub(crate) fn lock(&self, key: &str) {
        *self.shared.key.lock().unwrap() = Some(key.to_owned());
    }
}

async fn pass(State(shared): State<Arc<Shared>>, method: Method, uri: Uri, head: HeaderMap, body: Bytes) -> Response {
    let path = uri.path();
    if shared.hidden.lock().unwrap().contains(&path) {
        return (StatusCode::NOT_FOUND, axum::Json(json!({"detail": "Not Found"}))).into_response();
    }
    let wanted = shared.key.lock().unwrap().as_ref().map(|key| format!("Bearer {key}"));
    let shown = head.get("authorization").and_then(|value| value.to_str().ok());
    if wanted.is_some_and(|wanted| Some(wanted.as_str()) != shown) && (path.starts_with("/v1") || path == "/tokenize") {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"error": "Unauthorized"}))).into_response();
    }
    let request = shared.client.request(method, format!("http://{}{path}", shared.engine)).body(body);
    let answer = request.header("content-type", "application/json").send().await.expect("the engine answers");
    let status = answer.status();
    let bytes = answer.bytes().await.expect("a body");
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut value) => {
            (shared.change)(path, &mut value);
            (status, axum::Json(value)).into_response()
        }
        Err(_) => (status, bytes).into_response(),
    }
}
