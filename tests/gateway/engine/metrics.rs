//! The metrics of simulated engines over HTTP, and what goes wrong there on purpose.

use super::*;

#[tokio::test]
async fn metrics_have_vllms_names_and_the_right_counts() {
    let bench = bench().await;
    for _ in 0..2 {
        bench.complete(tokens(0, 40)).await;
    }
    bench.until_idle().await;
    let text = bench.get("/metrics").await.1;
    let expected = [
        ("prefix_cache_queries_total", 80.0),
        ("prefix_cache_hits_total", 36.0),
        ("prompt_tokens_total", 80.0),
        ("generation_tokens_total", 6.0),
        ("request_success_total", 2.0),
        ("num_preemptions_total", 0.0),
        ("time_to_first_token_seconds_count", 2.0),
        ("inter_token_latency_seconds_count", 4.0),
        ("e2e_request_latency_seconds_count", 2.0),
        ("request_queue_time_seconds_count", 2.0),
        ("request_prefill_time_seconds_count", 2.0),
        ("request_decode_time_seconds_count", 2.0),
    ];
    for (name, value) in expected {
        assert!(text.contains(&format!("vllm:{name}{{")), "{name} is missing");
        assert_eq!(value_of(&text, &format!("vllm:{name}{{"), "model_name=\"m\""), value, "{name}");
    }
    assert_eq!(value_of(&text, "vllm:cache_config_info{", "block_size=\"4\",num_gpu_blocks=\"101\""), 1.0);
    let adapters = "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
    assert!(value_of(&text, "vllm:lora_requests_info{", adapters) >= started(&text));
}

fn started(text: &str) -> f64 {
    value_of(text, "process_start_time_seconds", "")
}

/// As another process: whoever goes by what counters grow by, or by its start, sees that there is one.
#[tokio::test]
async fn counters_begin_at_0_where_the_engine_begins_anew() {
    let bench = bench().await;
    bench.complete(tokens(0, 40)).await;
    bench.until("vllm:prompt_tokens_total", 40.0).await;
    let before = started(&bench.get("/metrics").await.1);
    assert_eq!(bench.post("/restart", &json!({})).await.0, 200);
    let text = bench.get("/metrics").await.1;
    assert!(before > 1e9 && started(&text) > before, "{before} and {}", started(&text));
    assert_eq!(value_of(&text, "vllm:prompt_tokens_total", "model_name=\"m\""), 0.0);
    bench.complete(tokens(0, 20)).await;
    bench.until("vllm:prompt_tokens_total", 20.0).await;
    bench.until("vllm:prefix_cache_hits_total", 0.0).await;
    bench.until("vllm:request_success_total", 1.0).await;
}

/// A step of 0.4 s is seen while it lasts, and what comes of it when it is over.
#[tokio::test]
async fn a_long_prefill_runs_while_it_is_computed() {
    let bench = Setup { timing: "linear:10,10", ..Setup::default() }.start().await;
    let asking = async { bench.post("/v1/completions", &json!({"prompt": tokens(0, 40), "max_tokens": 1})).await };
    let looking = async {
        bench.until("vllm:num_requests_running", 1.0).await;
        let text = bench.get("/metrics").await.1;
        let value = |name: &str| value_of(&text, name, "model_name=\"m\"");
        assert_eq!(value("vllm:num_requests_waiting"), 0.0);
        assert!((value("vllm:kv_cache_usage_perc") - 0.1).abs() < 1e-9, "10 of 100 blocks: {text}");
        assert_eq!((value("vllm:generation_tokens_total"), value("vllm:prompt_tokens_total")), (0.0, 0.0));
    };
    let ((status, _), ()) = tokio::join!(asking, looking);
    assert_eq!((status, bench.metric("vllm:generation_tokens_total").await), (200, 1.0));
    bench.until_idle().await;
}

#[tokio::test]
async fn an_engine_with_sglangs_cache_has_sglangs_metrics() {
    let bench = Setup { profile: Profile::SglangRadix, ..Setup::default() }.start().await;
    for _ in 0..2 {
        bench.complete(tokens(0, 40)).await;
    }
    bench.until_idle().await;
    let text = bench.get("/metrics").await.1;
    let expected = [
        ("num_running_reqs", 0.0),
        ("num_queue_reqs", 0.0),
        ("token_usage", 0.0),
        ("cache_hit_rate", 0.45),
        ("prompt_tokens_total", 80.0),
        ("generation_tokens_total", 6.0),
        ("num_requests_total", 2.0),
        ("num_aborted_requests_total", 0.0),
        ("time_to_first_token_seconds_count", 2.0),
        ("inter_token_latency_seconds_count", 4.0),
        ("e2e_request_latency_seconds_count", 2.0),
    ];
    for (name, value) in expected {
        assert_eq!(value_of(&text, &format!("sglang:{name}{{"), "dp_rank=\"0\""), value, "{name}");
    }
    for (source, tokens) in [("device", 36.0), ("host", 0.0)] {
        let label = format!("cache_source=\"{source}\"");
        assert_eq!(value_of(&text, "sglang:cached_tokens_total{", &label), tokens, "{source}");
    }
    assert!(!text.contains("vllm:"), "{text}");
}

#[tokio::test]
async fn requests_fail_and_metrics_go_stale_as_long_as_that_is_asked_for() {
    let bench = bench().await;
    let prompt = |first| json!({"prompt": tokens(first, 40), "max_tokens": 3});
    assert_eq!(bench.post("/faults", &json!({"errors": 1.0, "stale_metrics": true})).await.0, 200);
    let (status, body) = bench.post("/v1/completions", &prompt(0)).await;
    assert_eq!((status, &body["error"]["message"]), (500, &json!("a fault that was asked for")));
    assert_eq!(bench.post("/faults", &json!({"errors": 0.3, "stale_metrics": true})).await.0, 200);
    let mut failed = 0;
    for first in 0..60 {
        failed += u32::from(bench.post("/v1/completions", &prompt(first)).await.0 == 500);
    }
    assert!((8..30).contains(&failed), "{failed} of 60");
    bench.until_idle().await;
    let finished = |text: &str| value_of(text, "vllm:request_success_total{", "model_name=\"m\"");
    assert_eq!(finished(&bench.get("/metrics").await.1), 0.0, "as they were");
    assert_eq!(bench.post("/faults", &json!({})).await.0, 200);
    assert_eq!(finished(&bench.get("/metrics").await.1), f64::from(60 - failed));
    assert_eq!(bench.post("/faults", &json!({"errors": 1.5})).await.0, 400);
}
