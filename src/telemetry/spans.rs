//! Spans of requests as OTLP/HTTP takes them, in its JSON form: numbers of traces in hexadecimal, whole numbers as text.
//! Names are those of OpenTelemetry's conventions for generative AI where they have one, else `warmpath.…`. Without I/O.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::access::Ended;

/// `SpanKind` and `StatusCode` of the protocol.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
const ERROR: u8 = 2;

/// An instant, and the time since 1970 that it was.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The instant.
    pub at: Instant,
    /// Since 1970.
    pub since_1970: Duration,
}

impl Clock {
    /// Nanoseconds since 1970, as text.
    fn nanos(self, at: Instant) -> String {
        let time = match at.checked_duration_since(self.at) {
            Some(after) => self.since_1970.saturating_add(after),
            None => self.since_1970.saturating_sub(self.at.saturating_duration_since(at)),
        };
        time.as_nanos().to_string()
    }
}

/// What is sent of these requests; `ids` makes a number for each span that nobody knows yet. Three spans a request, one more
/// for each further attempt, and one for each time that it waited for a worker: on the way to its decision, or between two
/// attempts.
pub fn encoded(requests: &[Ended], clock: Clock, instance: &str, mut ids: impl FnMut() -> u64) -> Value {
    let spans: Vec<Value> = requests.iter().flat_map(|request| spans(request, clock, &mut ids)).collect();
    let resource = [
        attribute("service.name", text("warmpath")),
        attribute("service.version", text(env!("CARGO_PKG_VERSION"))),
        attribute("service.instance.id", text(instance)),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "warmpath", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

fn spans(request: &Ended, clock: Clock, ids: &mut impl FnMut() -> u64) -> Vec<Value> {
    let Some(place) = request.trace.place() else { return Vec::new() };
    let (trace, own) = (request.trace.trace_id(), format!("{:016x}", place.span));
    let span = |id: &str, parent: Option<&str>, name: String, kind: u8, (from, to): (Instant, Instant)| {
        let mut span = json!({
            "traceId": trace, "spanId": id, "name": name, "kind": kind,
            "startTimeUnixNano": clock.nanos(from), "endTimeUnixNano": clock.nanos(to),
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = parent.into();
        }
        span
    };
    let operation = operation(request.endpoint).unwrap_or(request.endpoint);
    let name = request.model.as_ref().map_or_else(|| operation.to_owned(), |model| format!("{operation} {model}"));
    let whole = (request.began, request.ended);
    let mut server = span(&own, place.parent.as_deref(), name, SERVER, whole);
    server["attributes"] = attributes(request).into();
    if is_fault(request) {
        server["status"] = json!({"code": ERROR});
    }
    let mut all = vec![server];
    if request.endpoint == "models" || request.endpoint == "refused" {
        return all;
    }
    let mut child = |name: String, kind, times| {
        let id = format!("{:016x}", ids().max(1));
        span(&id, Some(&own), name, kind, times)
    };
    let sent = request.attempts.first().map_or(request.ended, |attempt| attempt.began);
    all.push(child("route".to_owned(), INTERNAL, (request.began, sent)));
    all.extend(request.waits.iter().map(|wait| child("queue".to_owned(), INTERNAL, (wait.start, wait.end))));
    for (at, attempt) in request.attempts.iter().enumerate() {
        let times = (attempt.began, attempt.failed.unwrap_or(request.ended));
        let mut client = child(format!("upstream attempt {}", at + 1), CLIENT, times);
        let worker = attempt.worker.as_ref().map(|worker| attribute("warmpath.worker", text(worker.as_str())));
        client["attributes"] = worker.into_iter().collect::<Vec<Value>>().into();
        if attempt.failed.is_some() || is_fault(request) {
            client["status"] = json!({"code": ERROR});
        }
        all.push(client);
    }
    all
}

/// What the conventions call it.
fn operation(endpoint: &str) -> Option<&'static str> {
    match endpoint {
        "chat_completions" => Some("chat"),
        "completions" => Some("text_completion"),
        _ => None,
    }
}

/// Whether it failed through no fault of its client.
fn is_fault(request: &Ended) -> bool {
    request.status.is_some_and(|status| status >= 500) || ["broken", "deadline", "internal"].contains(&request.outcome)
}

fn attributes(request: &Ended) -> Vec<Value> {
    let chosen = request.chosen.as_ref();
    let count = |number: u32| whole(u64::from(number));
    let (ok, id) = (request.outcome == "ok", String::from_utf8_lossy(request.request.as_bytes()));
    let known = [
        ("gen_ai.operation.name", operation(request.endpoint).map(text)),
        ("gen_ai.provider.name", operation(request.endpoint).map(|_| text("warmpath"))),
        ("gen_ai.request.model", request.model.as_deref().map(text)),
        ("gen_ai.usage.input_tokens", request.usage.prompt.or(request.prompt).map(|tokens| count(tokens.0))),
        ("gen_ai.usage.output_tokens", request.usage.completion.map(|tokens| count(tokens.0))),
        ("gen_ai.usage.cache_read.input_tokens", request.usage.cached.map(|tokens| count(tokens.0))),
        ("gen_ai.response.time_to_first_chunk", request.first_token.map(|after| real(after.as_secs_f64()))),
        ("http.response.status_code", request.status.map(|status| whole(u64::from(status)))),
        ("error.type", (!ok).then(|| text(request.outcome))),
        ("warmpath.request", Some(text(&id))),
        ("warmpath.worker", chosen.map(|chosen| text(chosen.worker.as_str()))),
        ("warmpath.policy", chosen.map(|chosen| text(chosen.policy))),
        ("warmpath.decided_by", chosen.map(|chosen| text(chosen.decided_by))),
        ("warmpath.cost", chosen.and_then(|chosen| chosen.cost).map(real)),
        ("warmpath.overlap_tokens", chosen.map(|chosen| count(chosen.overlap.0))),
        ("warmpath.decision", chosen.and_then(|chosen| chosen.decision).map(whole)),
    ];
    known.into_iter().filter_map(|(key, value)| Some(attribute(key, value?))).collect()
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn text(text: &str) -> Value {
    json!({"stringValue": text})
}

fn whole(number: u64) -> Value {
    json!({"intValue": number.to_string()})
}

fn real(number: f64) -> Value {
    json!({"doubleValue": number})
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use smallvec::smallvec;
    use warmpath_core::ids::{Rank, WorkerId};
    use warmpath_core::observe::Usage;
    use warmpath_core::units::Tokens;

    use super::super::access::{Attempt, Chosen};
    use super::super::trace_context::{TRACEPARENT, TraceContext};
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn request(began: Instant) -> Ended {
        let parent = HeaderValue::try_from(format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        let after = |ms| began + Duration::from_millis(ms);
        let attempt = |ms, failed: Option<u64>, worker: &str| Attempt {
            began: after(ms),
            failed: failed.map(after),
            worker: Some(WorkerId::from(worker)),
        };
        Ended {
            request: HeaderValue::from_static("r"),
            trace: TraceContext::of(&HeaderMap::from_iter([(TRACEPARENT, parent)]), true, 1.0),
            endpoint: "chat_completions",
            began,
            ended: after(500),
            model: Some("m".into()),
            prompt: Some(Tokens(24)),
            status: Some(200),
            outcome: "ok",
            waits: vec![after(2)..after(9), after(20)..after(29)],
            attempts: smallvec![attempt(10, Some(15), "a"), attempt(30, None, "b")],
            chosen: Some(Chosen {
                worker: WorkerId::from("b"),
                rank: Rank(0),
                overlap: Tokens(20),
                policy: "kv",
                decided_by: "policy",
                cost: Some(0.25),
                decision: Some(7),
            }),
            first_token: Some(Duration::from_millis(125)),
            usage: Usage { prompt: Some(Tokens(25)), cached: Some(Tokens(16)), completion: Some(Tokens(3)) },
        }
    }

    fn spans_of(requests: &[Ended], clock: Clock) -> Vec<Value> {
        let mut next = 0;
        let told = encoded(requests, clock, "i", || {
            next += 1;
            next
        });
        let resource = &told["resourceSpans"][0];
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(resource["scopeSpans"][0]["scope"], json!({"name": "warmpath", "version": version}));
        let values = resource["resource"]["attributes"].as_array().unwrap().iter();
        let values: Vec<_> = values.map(|one| one["value"]["stringValue"].as_str().unwrap()).collect();
        assert_eq!(values, ["warmpath", version, "i"]);
        resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    }

    #[test]
    fn a_request_is_a_span_with_the_way_to_its_decision_and_its_attempts_below() {
        let began = Instant::now();
        let clock = Clock { at: began, since_1970: Duration::from_secs(1000) };
        let request = request(began);
        let own = format!("{:016x}", request.trace.place().unwrap().span);
        let spans = spans_of(&[request], clock);
        let server = json!({
            "traceId": TRACE, "spanId": own, "name": "chat m", "kind": 2, "startTimeUnixNano": "1000000000000",
            "endTimeUnixNano": "1000500000000", "parentSpanId": "b7ad6b7169203331",
            "attributes": [
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "gen_ai.provider.name", "value": {"stringValue": "warmpath"}},
                {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "25"}},
                {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}},
                {"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": "16"}},
                {"key": "gen_ai.response.time_to_first_chunk", "value": {"doubleValue": 0.125}},
                {"key": "http.response.status_code", "value": {"intValue": "200"}},
                {"key": "warmpath.request", "value": {"stringValue": "r"}},
                {"key": "warmpath.worker", "value": {"stringValue": "b"}},
                {"key": "warmpath.policy", "value": {"stringValue": "kv"}},
                {"key": "warmpath.decided_by", "value": {"stringValue": "policy"}},
                {"key": "warmpath.cost", "value": {"doubleValue": 0.25}},
                {"key": "warmpath.overlap_tokens", "value": {"intValue": "20"}},
                {"key": "warmpath.decision", "value": {"intValue": "7"}}
            ]
        });
        let child = |id: &str, name: &str, kind: u8, from: &str, to: &str| {
            json!({"traceId": TRACE, "spanId": id, "name": name, "kind": kind, "startTimeUnixNano": from,
                "endTimeUnixNano": to, "parentSpanId": own})
        };
        let of = |worker: &str| json!([{"key": "warmpath.worker", "value": {"stringValue": worker}}]);
        let route = child("0000000000000001", "route", 1, "1000000000000", "1000010000000");
        let before = child("0000000000000002", "queue", 1, "1000002000000", "1000009000000");
        let between = child("0000000000000003", "queue", 1, "1000020000000", "1000029000000");
        let mut first = child("0000000000000004", "upstream attempt 1", 3, "1000010000000", "1000015000000");
        (first["attributes"], first["status"]) = (of("a"), json!({"code": 2}));
        let mut second = child("0000000000000005", "upstream attempt 2", 3, "1000030000000", "1000500000000");
        second["attributes"] = of("b");
        assert_eq!(spans, [server, route, before, between, first, second]);
    }

    #[test]
    fn faults_are_marked_and_what_is_not_known_is_left_out() {
        let began = Instant::now();
        // What began before the clock was read is as long ago.
        let clock = Clock { at: began + Duration::from_secs(2), since_1970: Duration::from_secs(1000) };
        let broken = Ended { outcome: "broken", usage: Usage::default(), waits: Vec::new(), ..request(began) };
        let unknown = Ended {
            outcome: "unknown_model",
            status: Some(404),
            model: None,
            prompt: None,
            usage: Usage::default(),
            chosen: None,
            waits: Vec::new(),
            attempts: smallvec![],
            ..request(began)
        };
        let listed = Ended { endpoint: "models", attempts: smallvec![], model: None, ..request(began) };
        let unsampled = Ended { trace: TraceContext::of(&HeaderMap::new(), false, 1.0), ..request(began) };
        let spans = spans_of(&[broken, unknown, listed, unsampled], clock);
        let told: Vec<_> =
            spans.iter().map(|span| (span["name"].as_str().unwrap(), span["status"]["code"].as_u64())).collect();
        let expected = [
            ("chat m", Some(2)),
            ("route", None),
            ("upstream attempt 1", Some(2)),
            ("upstream attempt 2", Some(2)),
            ("chat", None),
            ("route", None),
            ("models", None),
        ];
        assert_eq!(told, expected);
        assert_eq!(spans[0]["startTimeUnixNano"], "998000000000");
        let error = |span: &Value| {
            let all = span["attributes"].as_array().unwrap();
            let error = all.iter().find(|one| one["key"] == "error.type")?;
            Some((error["value"]["stringValue"].as_str().unwrap().to_owned(), all.len()))
        };
        // Of the broken one all but two counts of the engine; of the other one nothing of a decision either.
        assert_eq!(
            [error(&spans[0]), error(&spans[4])],
            [Some(("broken".to_owned(), 14)), Some(("unknown_model".to_owned(), 6))]
        );
    }
}
