//! `POST /generate`, SGLang's own endpoint, by itself and through the router.

use super::*;
use crate::fleet::fleet;

fn generation(prompt: &Value, more: &Value) -> Value {
    let mut body = json!({"sampling_params": {"max_new_tokens": 3}});
    body[if prompt.is_string() || prompt[0].is_string() { "text" } else { "input_ids" }] = prompt.clone();
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

#[tokio::test]
async fn sglangs_own_endpoint_answers_in_its_own_shape() {
    let bench = bench().await;
    let body = generation(&tokens(0, 40), &json!({"rid": "mine"}));
    let (status, first) = bench.post("/generate", &body).await;
    let ids: Vec<u64> = first["output_ids"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    let text: String = ids.iter().map(|id| char::from(u8::try_from(*id).unwrap())).collect();
    let meta = json!({"id": "mine", "finish_reason": {"type": "length", "length": 3}, "prompt_tokens": 40,
        "completion_tokens": 3, "cached_tokens": 0});
    assert_eq!((status, ids.len()), (200, 3));
    assert_eq!(first, json!({"text": text, "output_ids": ids, "meta_info": meta}));
    let (_, again) = bench.post("/generate", &body).await;
    assert_eq!(again["meta_info"]["cached_tokens"], 36);
    assert_eq!(cached(&bench.complete(tokens(0, 40)).await), 36, "it is the cache of completions");
}

#[tokio::test]
async fn several_prompts_or_sequences_are_a_list_and_128_tokens_are_usual() {
    let bench = bench().await;
    let ids = |answers: &Value| -> Vec<Value> {
        answers.as_array().unwrap().iter().map(|answer| answer["meta_info"]["id"].clone()).collect()
    };
    let (_, texts) = bench.post("/generate", &generation(&json!(["ab", "abc"]), &json!({"rid": ["a", "b"]}))).await;
    assert_eq!(ids(&texts), ["a", "b"]);
    assert_eq!(
        (&texts[0]["meta_info"]["prompt_tokens"], &texts[1]["meta_info"]["prompt_tokens"]),
        (&json!(2), &json!(3))
    );
    let two = json!({"rid": "a", "sampling_params": {"n": 2}});
    let (_, sequences) = bench.post("/generate", &generation(&json!("ab"), &two)).await;
    assert_eq!(ids(&sequences), ["a_0", "a_1"]);
    assert_eq!(sequences[1]["meta_info"]["completion_tokens"], 128);
    let (_, one) = bench.post("/generate", &generation(&json!([tokens(0, 4)]), &json!({}))).await;
    assert_eq!(one.as_array().map(Vec::len), Some(1), "a list of one prompt is answered by a list");
}

#[tokio::test]
async fn a_stream_tells_all_so_far_and_ends_as_the_whole_answer() {
    let request = generation(&json!("hello"), &json!({"rid": "a"}));
    let (_, whole) = bench().await.post("/generate", &request).await;
    let mut streamed = request.clone();
    streamed["stream"] = true.into();
    let chunks = bench().await.stream("/generate", &streamed).await;
    assert_eq!((chunks.len(), chunks.last()), (3, Some(&whole)));
    let lengths: Vec<_> = chunks.iter().map(|chunk| chunk["text"].as_str().unwrap().len()).collect();
    assert_eq!((lengths, &chunks[1]["meta_info"]["finish_reason"]), (vec![1, 2, 3], &Value::Null));

    let several = generation(&json!(["a", "b"]), &json!({"stream": true}));
    let chunks = bench().await.stream("/generate", &several).await;
    for index in [0, 1] {
        assert_eq!(chunks.iter().filter(|chunk| chunk["index"] == index).count(), 3, "{chunks:?}");
    }
}

#[tokio::test]
async fn what_is_no_generation_is_refused_and_one_that_is_left_stops() {
    let bench = Setup { timing: "linear:5,5", ..Setup::default() }.start().await;
    for (body, part) in [
        (json!({}), "either `text` or `input_ids` must be given"),
        (json!({"text": "a", "sampling_params": {"max_new_tokens": "many"}}), "expected u32"),
        (json!({"input_ids": tokens(0, 401)}), "the prompt has 401 tokens"),
        (json!({"text": "a", "sampling_params": {"n": 0}}), "`n`"),
    ] {
        let (status, answer) = bench.post("/generate", &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!((status, message.contains(part)), (400, true), "{body}: {answer}");
    }
    let body = json!({"text": "abcdefgh", "sampling_params": {"max_new_tokens": 300}, "stream": true});
    let mut response = bench.send("/generate", &body).await;
    assert!(response.chunk().await.unwrap().is_some());
    drop(response);
    bench.until_idle().await;
    assert_eq!(bench.metric("vllm:request_success_total").await, 0.0);
    assert_eq!(bench.post("/faults", &json!({"errors": 1.0})).await.0, 200);
    assert_eq!(bench.post("/generate", &json!({"text": "a"})).await.0, 500);
}

/// The router passes it through, whole and streamed, and gives it back when it has ended.
#[tokio::test]
async fn the_router_passes_it_through_as_it_came() {
    let fleet = fleet().engines(2).start().await;
    let body = generation(&json!("some text"), &json!({"rid": "mine"}));
    let answer = fleet.post("/generate", &body).await;
    assert_eq!((answer.status, &answer.headers["x-warmpath-decision"]), (200, &"load".parse().unwrap()));
    assert_eq!(answer.body["meta_info"]["id"], "mine");
    assert_eq!(answer.body["output_ids"].as_array().map(Vec::len), Some(3));
    let streamed = generation(&json!("some text"), &json!({"stream": true}));
    let stream = fleet.client.post(fleet.url("/generate")).json(&streamed).send().await.unwrap();
    assert!(stream.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = stream.text().await.unwrap();
    assert_eq!(text.matches("data: {").count(), 3, "{text}");
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    fleet.eventually("it is given back", async |fleet| fleet.app.in_flight() == 0).await;
}
