//! What to do about findings, for those who run engines.

use warmpath_core::ids::Rank;

use crate::config::{Config, EventSource, Worker, ZmqEndpoint};

/// Texts differ.
pub(super) const TOKENIZER: &str = "point models[].tokenizer at the tokenizer.json that the engine loads, with its \
    tokenizer_config.json beside it";

/// Chats differ, texts do not.
pub(super) const TEMPLATE: &str = "point models[].chat_template at the file of the engine's --chat-template, or put its \
    tokenizer_config.json or chat_template.jinja beside models[].tokenizer";

/// The engine's own answers differ from what it does.
pub(super) const REMOTE_TOKENIZER: &str =
    "models[].tokenizer: remote needs an engine whose /tokenize tells what it does: name a tokenizer.json instead";

/// Events come, and are of somebody else.
pub(super) const OTHERS_SOCKET: &str = "that socket tells of another engine, or of another rank: correct the worker's \
    zmq_endpoint (or events.zmq.port), or let its dp_ranks be the engine's --data-parallel-size";

/// The same over a bridge.
pub(super) const OTHERS_BRIDGE: &str = "the bridge of this worker reads the events of another engine, or of another rank: \
    correct its --zmq, or let workers[].dp_ranks be the engine's --data-parallel-size";

/// Load is known as far as the router itself sends it.
pub(super) const METRICS: &str = "start SGLang with --enable-metrics, let /metrics through, or name its series in \
    engines.presets: until then load goes by what the router sends";

/// What was cached is not told.
pub const DETAILS: &str = "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report";

/// What to do where there is no connection over which events could come.
pub(super) fn connection(config: &Config, worker: &Worker, rank: Option<Rank>) -> String {
    match config.event_source(worker) {
        EventSource::Nats => "start the NATS server, or correct events.nats: the address in url; what it is told of us by \
            user and password, token, nkey_seed or credentials; with tls://, tls_authorities, tls_certificate and tls_key"
            .to_owned(),
        EventSource::Zmq | EventSource::Local | EventSource::None => events(config, worker, rank),
    }
}

/// What an engine must be started with to be heard.
pub(super) fn events(config: &Config, worker: &Worker, rank: Option<Rank>) -> String {
    match config.event_source(worker) {
        EventSource::Zmq => zmq(config, worker, rank),
        EventSource::Nats => {
            let id = worker.id.value.as_str();
            let nats = config.events.nats.url.as_ref().map_or("", |url| url.value.as_str());
            let (url, model) = (&worker.url.value, &worker.model.value);
            format!(
                "run `warmpath bridge --engine {url} --worker {id} --model {model} --nats {nats} \
                 --zmq tcp://127.0.0.1:5557 --zmq-replay tcp://127.0.0.1:5657` beside the engine, and start that with --kv-events-config '{}'",
                flags("tcp://*:5557", Some("tcp://*:5657"))
            )
        }
        EventSource::Local | EventSource::None => "set workers[].events to zmq or nats".to_owned(),
    }
}

fn zmq(config: &Config, worker: &Worker, rank: Option<Rank>) -> String {
    let replay = config.zmq_replay(worker).map(|endpoint| everywhere(&endpoint));
    match config.zmq_events(worker) {
        Some(endpoint) => {
            let of_rank = rank.and_then(|rank| endpoint.for_rank(rank.0)).unwrap_or_else(|| endpoint.clone());
            format!(
                "start the engine with --kv-events-config '{}' and prefix caching on, and let {of_rank} be reached from here",
                flags(&everywhere(&endpoint), replay.as_deref())
            )
        }
        None => {
            let topic = format!(r#","topic":"kv@{}@{}""#, worker.id.value.as_str(), worker.model.value);
            let flags = flags("tcp://ROUTER:PORT", replay.as_deref());
            let flags = flags.strip_suffix('}').unwrap_or_default();
            format!("start the engine with --kv-events-config '{flags}{topic}}}', ROUTER:PORT being events.zmq.bind")
        }
    }
}

/// What an engine must be started with to tell again what was missed.
pub(super) fn replay(config: &Config, worker: &Worker) -> String {
    let Some(endpoint) = config.zmq_replay(worker) else {
        return "start the engine with \"replay_endpoint\":\"tcp://*:5657\" in its --kv-events-config, and set \
            events.zmq.replay_port: 5657 (ports of data-parallel ranks follow: keep them apart from the events')"
            .to_owned();
    };
    let place = everywhere(&endpoint);
    format!(
        "add \"replay_endpoint\":\"{place}\" to the engine's --kv-events-config, or correct workers[].zmq_replay or \
         events.zmq.replay_port, and let {endpoint} be reached from here"
    )
}

/// The engine's side of an endpoint that we connect to.
fn everywhere(endpoint: &ZmqEndpoint) -> String {
    match endpoint {
        ZmqEndpoint::Tcp { port, .. } => format!("tcp://*:{port}"),
        ZmqEndpoint::Ipc(_) => endpoint.to_string(),
    }
}

fn flags(endpoint: &str, replay: Option<&str>) -> String {
    let replay = replay.map_or_else(String::new, |replay| format!(r#","replay_endpoint":"{replay}""#));
    format!(r#"{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{endpoint}"{replay}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedies(events: &str, worker: &str) -> (String, String) {
        let text = format!(
            "models: [{{name: m}}]\nevents: {{{events}}}\nworkers: [{{id: w, url: 'http://h:8000', model: m, {worker}}}]\n"
        );
        let config = Config::parse("a test", text).unwrap();
        let worker = &config.workers[0];
        (super::events(&config, worker, None), replay(&config, worker))
    }

    #[test]
    fn the_flags_are_those_of_the_configured_sockets() {
        let (events, replay) = remedies("zmq: {port: 6000, replay_port: 7000}", "events: zmq");
        let expected = r#"start the engine with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:7000"}' and prefix caching on, and let tcp://h:6000 be reached from here"#;
        assert_eq!(events, expected);
        assert!(
            replay.starts_with(r#"add "replay_endpoint":"tcp://*:7000" to the engine's --kv-events-config"#),
            "{replay}"
        );
        let (_, replay) = remedies("", "events: zmq");
        assert!(replay.contains("set events.zmq.replay_port: 5657"), "{replay}");
    }

    #[test]
    fn engines_that_connect_to_the_router_are_told_its_topic() {
        let (events, _) = remedies("zmq: {bind: 'tcp://*:5557'}", "events: zmq");
        let expected = r#""endpoint":"tcp://ROUTER:PORT","topic":"kv@w@m"}', ROUTER:PORT being events.zmq.bind"#;
        assert!(events.ends_with(expected), "{events}");
    }

    #[test]
    fn over_nats_it_takes_a_bridge() {
        let (events, _) = remedies("nats: {url: 'nats://n:4222'}", "events: nats");
        let start = "run `warmpath bridge --engine http://h:8000 --worker w --model m --nats nats://n:4222 --zmq ";
        assert!(events.starts_with(start), "{events}");
    }

    #[test]
    fn who_does_not_reach_the_nats_server_needs_no_bridge() {
        let text = "models: [{name: m}]\nevents: {nats: {url: 'nats://n:4222'}}\n\
                    workers: [{id: w, url: 'http://h:8000', model: m, events: nats}]\n";
        let config = Config::parse("a test", text.to_owned()).unwrap();
        let remedy = connection(&config, &config.workers[0], None);
        assert!(remedy.starts_with("start the NATS server, or correct events.nats: "), "{remedy}");
    }
}
