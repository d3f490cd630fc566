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

/// How operators and other programs steer vLLM, SGLang and TensorRT-LLM. Whoever may ask for tokens may not do this.
const CONTROL: [&str; 46] = [
    "/abort_request",
    "/clear_hicache_storage_backend",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/flush_cache",
    "/freeze_gc",
    "/get_internal_state",
    "/get_model_info",
    "/get_server_info",
    "/get_weights_by_name",
    "/health",
    "/health_generate",
    "/init_weights_update_group",
    "/is_paused",
    "/is_sleeping",
    "/kv_cache_events",
    "/load",
    "/load_lora_adapter",
    "/metrics",
    "/metrics/any",
    "/pause",
    "/pause_generation",
    "/prometheus/metrics",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/server_info",
    "/set_internal_state",
    "/sleep",
    "/slow_down",
    "/start_profile",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
];

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
    if let Some(control) = CONTROL.iter().find(|control| passed.covers(control)) {
        let control = control.trim_end_matches("/any");
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
    fn paths_are_written_as_they_were_read() {
        for path in default() {
            let text = String::from(path.clone());
            assert_eq!(PassedPath::try_from(text), Ok(path));
        }
    }
}
