//! `listen.passthrough`: paths that are handed to a worker as they are, beside those that Warmpath serves itself.

use serde::{Deserialize, Serialize};

/// A path that is passed through: this one, or with `/*` at its end whatever lies below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PassedPath {
    /// Without the `*`.
    path: String,
    below: bool,
}

/// What Warmpath answers by itself.
const OWN: [&str; 4] = ["/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/any"];

/// How operators and other programs steer vLLM, SGLang and TensorRT-LLM, and what they look at. Whoever may ask for tokens
/// may not do this. Here stands what [`VERBS`] and [`WORDS`] do not tell, and what lies below other paths.
const CONTROL: [&str; 25] = [
    "/cluster_info",
    "/get_internal_state",
    "/get_load",
    "/get_model_info",
    "/get_server_info",
    "/get_world_size",
    "/health",
    "/health_generate",
    "/hicache/any",
    "/list_external_corpora",
    "/load",
    "/metrics",
    "/metrics/any",
    "/model_info",
    "/pause",
    "/prometheus/metrics",
    "/resume",
    "/server_info",
    "/shutdown",
    "/sleep",
    "/v1/load_lora_adapter",
    "/v1/loads",
    "/v1/unload_lora_adapter",
    "/wake",
    "/weights/any",
];

/// What begins a name of several words only where something is done to an engine: `/update_weights_from_ipc`. What clients
/// ask for has names of things. Their lists grow with each release.
const VERBS: [&str; 32] = [
    "abort",
    "add",
    "attach",
    "clear",
    "close",
    "configure",
    "continue",
    "destroy",
    "detach",
    "dump",
    "finish",
    "flush",
    "freeze",
    "init",
    "load",
    "open",
    "pause",
    "register",
    "release",
    "reload",
    "remove",
    "reset",
    "resume",
    "scale",
    "send",
    "set",
    "slow",
    "start",
    "stop",
    "unload",
    "update",
    "wake",
];

/// Parts of engines, and states of theirs, that no client asks for: `/is_sleeping`, `/weights_checker`, `/collective_rpc`.
const WORDS: [&str; 11] =
    ["cache", "dumper", "elastic", "hicache", "metrics", "paused", "rpc", "sleep", "sleeping", "weight", "weights"];

/// What is passed through by default: the other requests of clients that vLLM and SGLang answer.
const DEFAULT: [&str; 10] = [
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/*",
    "/tokenize",
    "/detokenize",
    "/generate",
];

pub(super) fn default() -> Vec<PassedPath> {
    DEFAULT.iter().map(|path| parse(path).expect("the defaults are well formed")).collect()
}

impl PassedPath {
    /// Whether a request's path, as it came, is meant. Of what lies below a path only plain names are: neither `.` nor
    /// `..`, nothing empty, nothing that is encoded, so that an engine cannot read the path in another way.
    pub fn covers(&self, path: &str) -> bool {
        if !self.below {
            return path == self.path;
        }
        path.strip_prefix(self.path.as_str()).is_some_and(is_plain)
    }
}

/// Whether all names of a relative path are plain.
fn is_plain(path: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~');
    path.split('/').all(|name| !matches!(name, "" | "." | "..") && name.bytes().all(plain))
}

/// Whether a name in a path tells that an engine is controlled by it.
fn is_control(name: &str) -> bool {
    let mut words = name.split(['_', '-', '.']);
    let is_deed = words.next().is_some_and(|verb| verb.len() < name.len() && VERBS.contains(&verb));
    is_deed || name.split(['_', '-', '.']).any(|word| WORDS.contains(&word))
}

fn parse(text: &str) -> Result<PassedPath, String> {
    let below = text.strip_suffix('*');
    let path = below.unwrap_or(text);
    let names = path.strip_prefix('/').map(|names| if below.is_some() { names.trim_end_matches('/') } else { names });
    let well_formed =
        names.is_some_and(is_plain) && (below.is_none() || (path.ends_with('/') && !path.ends_with("//")));
    if !well_formed {
        return Err(format!("expected a path such as /v1/embeddings or /v1/audio/*, got `{text}`"));
    }
    let passed = PassedPath { path: path.to_owned(), below: below.is_some() };
    if let Some(own) = OWN.iter().find(|own| passed.covers(own)) {
        let own = own.trim_end_matches("/any");
        return Err(format!("`{text}` would pass {own} through, which is served by Warmpath itself"));
    }
    let listed = CONTROL.iter().copied().find(|control| passed.covers(control));
    if let Some(control) = listed.or_else(|| path.split('/').any(is_control).then_some(path)) {
        let control = control.trim_end_matches("/any").trim_end_matches('/');
        return Err(format!("`{text}` would let clients at {control}, by which an engine is controlled"));
    }
    Ok(passed)
}

impl TryFrom<String> for PassedPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse(&text)
    }
}

impl From<PassedPath> for String {
    fn from(passed: PassedPath) -> String {
        if passed.below { passed.path + "*" } else { passed.path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_itself_and_with_a_star_plain_names_below_it() {
        let exact = parse("/v1/embeddings").unwrap();
        assert!(exact.covers("/v1/embeddings"));
        for other in ["/v1/embeddings/", "/v1/Embeddings", "//v1/embeddings", "/v1/embedding%73", "/v1/embeddings/x"] {
            assert!(!exact.covers(other), "{other}");
        }
        let below = parse("/v1/audio/*").unwrap();
        for name in ["/v1/audio/speech", "/v1/audio/a/b", "/v1/audio/a.b-c_d~e"] {
            assert!(below.covers(name), "{name}");
        }
        for other in [
            "/v1/audio",
            "/v1/audio/",
            "/v1/audio//speech",
            "/v1/audio/speech/",
            "/v1/audio/../../sleep",
            "/v1/audio/./speech",
            "/v1/audio/%2e%2e/sleep",
            "/v1/audio/..%2f..%2fsleep",
            "/v1/audio/..\\sleep",
            "/v1/audio/a;b",
            "/v1/audiox/a",
        ] {
            assert!(!below.covers(other), "{other}");
        }
    }

    #[test]
    fn what_is_no_path_or_not_to_be_passed_is_refused() {
        for text in ["", "v1", "/", "/*", "*", "/v1/a*", "/v1//a", "/v1/../a", "/v1/%61", "/v1/a?b", "/a//*", "/a/*/b"]
        {
            assert!(parse(text).is_err_and(|error| error.starts_with("expected a path ")), "{text}");
        }
        for (text, told) in [
            ("/v1/models", "`/v1/models` would pass /v1/models through, which is served by Warmpath itself"),
            ("/v1/models/*", "`/v1/models/*` would pass /v1/models through, which is served by Warmpath itself"),
            ("/v1/chat/*", "`/v1/chat/*` would pass /v1/chat/completions through, which is served by Warmpath itself"),
            ("/sleep", "`/sleep` would let clients at /sleep, by which an engine is controlled"),
            (
                "/prometheus/*",
                "`/prometheus/*` would let clients at /prometheus/metrics, by which an engine is controlled",
            ),
        ] {
            assert_eq!(parse(text), Err(told.to_owned()));
        }
        assert!(parse("/v1/*").is_err());
    }

    #[test]
    fn no_control_path_that_engines_have_or_may_get_can_be_passed() {
        const CONTROL: &str = "abort_request abort_requests add_external_corpus clear_hicache_storage_backend close_session \
            collective_rpc configure_logging continue_generation destroy_weights_update_group dump_expert_distribution_record \
            dumper/configure finish_weight_update flush_cache freeze_gc get_internal_state get_model_info get_server_info \
            get_weights_by_name health health_generate hicache/storage-backend hicache/* init_weight_transfer_engine \
            init_weights_send_group_for_remote_instance init_weights_update_group is_paused is_scaling_elastic_ep is_sleeping \
            kv_cache_events load load_lora_adapter metrics open_session pause pause_generation perf_metrics \
            release_memory_occupation remove_external_corpus list_external_corpora reset_encoder_cache reset_mm_cache \
            reset_prefix_cache resume resume_memory_occupation scale_elastic_ep send_weights_to_remote_instance server_info \
            set_internal_state set_trace_level sleep slow_down start_expert_distribution_record start_profile \
            stop_expert_distribution_record stop_profile unload_lora_adapter update_weight_version update_weights \
            update_weights_from_disk update_weights_from_ipc v1/load_lora_adapter v1/loads wake_up weights_checker weights/*";
        for path in CONTROL.split_ascii_whitespace() {
            let path = format!("/{path}");
            assert!(parse(&path).is_err_and(|error| error.ends_with(", by which an engine is controlled")), "{path}");
        }
        const CLIENTS: &str = "classify detokenize encode generate inference/v1/generate invocations parse_function_call \
            pooling rerank score separate_reasoning start tokenize v1/audio/transcriptions v1/batches v1/classify \
            v1/conversations/* v1/files/* v1/images/* v1/moderations v1/openai/x v1/realtime/sessions v1/responses/* v1/uploads/* \
            v1/vector_stores/* v2/rerank vertex_generate";
        for path in CLIENTS.split_ascii_whitespace() {
            assert!(parse(&format!("/{path}")).is_ok(), "{path}");
        }
    }

    #[test]
    fn paths_are_written_as_they_were_read() {
        for path in default() {
            let text = String::from(path.clone());
            assert_eq!(PassedPath::try_from(text), Ok(path));
        }
    }
}
