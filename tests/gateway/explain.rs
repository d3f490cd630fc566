//! Why requests went where they went, and where one would go: by HTTP and by the commands.

use std::process::Command;

use serde_json::{Value, json};

use crate::faulty::{Act, Faulty, refusal};
use crate::fleet::{TestFleet, fleet};

impl TestFleet {
    async fn told(&self, path: &str) -> Value {
        let (status, text) = self.admin(path).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) async fn explain(&self, body: &Value) -> (u16, Value) {
        let url = format!("http://{}/api/v1/explain", self.app.admin_address());
        let response = self.client.post(url).json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// What a command that asks this router says.
    async fn run(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        command.args(args).arg("--admin").arg(format!("http://{}", self.app.admin_address()));
        let output = tokio::task::spawn_blocking(move || command.output().expect("the binary runs")).await.unwrap();
        let said = if output.status.success() { &output.stdout } else { &output.stderr };
        (output.status.success(), String::from_utf8(said.clone()).unwrap())
    }
}

fn body(prompt: &[u32]) -> Value {
    json!({"model": "m", "prompt": prompt, "max_tokens": 2})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_explained_is_what_happens_and_what_happened_is_explained() {
    let fleet = fleet().engines(3).start().await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    let (status, dry) = fleet.explain(&body(&prompt)).await;
    assert_eq!((status, &dry["number"], &dry["outcome"]), (200, &json!(0), &Value::Null));
    assert_eq!((dry["worker"].as_str(), dry["overlap_tokens"].as_u64()), (Some(first.worker.as_str()), Some(20)));
    assert_eq!((dry["unit"].as_str(), dry["considered"].as_array().map(Vec::len)), (Some("share"), Some(3)));
    assert!(dry["why"].as_str().unwrap().contains(" share cheaper than engine-"), "{}", dry["why"]);
    assert_eq!(fleet.told("/api/v1/decisions").await["last"], 1, "nothing was decided");
    assert_eq!(fleet.app.in_flight(), 0, "nothing was reserved");
    let second = fleet.complete(prompt.clone().into()).await;
    let id = second.headers["x-request-id"].to_str().unwrap().to_owned();
    let list = fleet.told("/api/v1/decisions").await;
    let rows = list["decisions"].as_array().unwrap();
    assert_eq!((list["last"].as_u64(), rows.len(), rows[0]["number"].as_u64()), (Some(2), 2, Some(2)));
    for key in ["worker", "cost", "why", "overlap_tokens", "new_tokens", "policy", "model"] {
        assert_eq!(rows[0][key], dry[key], "{key}");
    }
    assert_eq!(rows[0]["request"].as_str(), Some(id.as_str()));
    let told = fleet.told(&format!("/api/v1/decisions/{id}")).await;
    // What each would add, which this policy does not go by, a dry run finds out all the same.
    let considered = |told: &Value| {
        let mut considered = told["considered"].clone();
        let each = considered.as_array_mut().into_iter().flatten();
        each.for_each(|at| at["seen"]["added_blocks"] = Value::Null);
        considered
    };
    assert_eq!((considered(&told), &told["reproduced"]), (considered(&dry), &json!(true)));
    let found_out = |told: &Value| told["question"]["has_added_blocks"].as_bool();
    assert_eq!((found_out(&told), found_out(&dry)), (Some(false), Some(true)));
    assert_eq!((told["outcome"].as_str(), told["reported_cached_tokens"].as_u64()), (Some("answered"), Some(20)));
    let nobody = format!("/api/v1/decisions?worker=nobody&after={}", 0);
    assert_eq!(fleet.told(&nobody).await["decisions"], json!([]));
    assert_eq!(fleet.admin("/api/v1/decisions/99").await.0, 404);
    assert_eq!(fleet.admin("/api/v1/decisions?wrong=1").await.0, 400);
    assert_eq!(fleet.explain(&json!({"model": "nobody", "prompt": "x"})).await.0, 404);
    assert_eq!(fleet.explain(&json!({"model": "m", "prompt": {}})).await.0, 400);
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    assert_eq!(fleet.explain(&chat).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_tell_the_same_and_what_another_configuration_would_have_done() {
    let fleet = fleet().start().await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    fleet.complete(prompt.into()).await;
    let (fine, text) = fleet.run(&["explain", "--request", "2"]).await;
    assert!(fine && text.starts_with("decision 2, request "), "{text}");
    assert!(text.contains(&format!("> {}", first.worker)) && text.contains("cost (share)"), "{text}");
    let file = std::env::temp_dir().join(format!("warmpath-explain-{}.yaml", std::process::id()));
    let yaml = "models: [{name: m}]\nworkers: [{id: a, url: 'http://a:1', model: m}]\nrouting: {policy: product}\n";
    std::fs::write(&file, yaml).unwrap();
    let (fine, text) = fleet.run(&["explain", "--request", "2", "--config", file.to_str().unwrap(), "--json"]).await;
    std::fs::remove_file(&file).unwrap();
    assert!(fine, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((told["made"]["policy"].as_str(), told["under"]["policy"].as_str()), (Some("kv"), Some("product")));
    assert_eq!((told["under"]["worker"].as_str(), &told["same"]), (Some(first.worker.as_str()), &json!(true)));
    assert_eq!(told["under"]["unit"].as_str(), Some("tokens"));
    let (fine, text) = fleet.run(&["tap", "--last", "5", "--count", "2"]).await;
    let lines: Vec<_> = text.lines().collect();
    assert!(fine && lines.len() == 2 && lines[1].starts_with(&format!("2 m {} 20/24 ", first.worker)), "{text}");
    let (fine, text) = fleet.run(&["explain", "--request", "none"]).await;
    assert!(!fine && text.contains("404"), "{text}");
}

/// `explain --config` under `kv`, and what it says of the JSON.
async fn under_kv(fleet: &TestFleet, (what, of): (&str, &str), more: &[&str]) -> String {
    let file = std::env::temp_dir().join(format!("warmpath-unread-{}-{}.yaml", std::process::id(), more.len()));
    let yaml = "models: [{name: m}]\nworkers: [{id: a, url: 'http://a:1', model: m}]\nrouting: {policy: kv}\n";
    std::fs::write(&file, yaml).unwrap();
    let args = [&["explain", what, of, "--config", file.to_str().unwrap()], more].concat();
    let (fine, text) = fleet.run(&args).await;
    std::fs::remove_file(&file).unwrap();
    assert!(fine, "{text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_was_not_read_is_not_said_to_be_cached_nowhere_and_a_dry_run_reads_it() {
    let fleet = fleet().policy("least_requests").start().await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    let text = under_kv(&fleet, ("--request", "1"), &[]).await;
    assert!(text.contains("\nprompt of about 24 tokens, which was not read: "), "{text}");
    assert!(text.contains("nobody can be told under the other configuration: this prompt was not read"), "{text}");
    assert!(!text.contains("the same") && !text.contains("another one"), "{text}");
    let told: Value = serde_json::from_str(&under_kv(&fleet, ("--request", "1"), &["--json"]).await).unwrap();
    assert_eq!((&told["same"], &told["under"], &told["costs"]), (&Value::Null, &Value::Null, &json!("unread")));
    let file = std::env::temp_dir().join(format!("warmpath-unread-{}.json", std::process::id()));
    std::fs::write(&file, body(&prompt).to_string()).unwrap();
    let told = under_kv(&fleet, ("--body", file.to_str().unwrap()), &["--json"]).await;
    std::fs::remove_file(&file).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["costs"], &told["under"]["overlap_tokens"]), (&json!("candidates"), &json!(20)));
    assert_eq!((&told["made"]["best_overlap_tokens"], &told["under"]["worker"]), (&json!(20), &json!(first.worker)));
    let shape = &told["made"]["question"]["shape"];
    assert!(shape["opening"].is_u64() && shape["opening_characters"].is_null(), "{shape}");
    let (_, told) = fleet.explain(&json!({"model": "m", "prompt": "how it begins"})).await;
    assert_eq!(told["question"]["shape"]["opening_characters"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_its_client_calls_by_a_number_is_not_the_one_of_this_number() {
    let fleet = fleet().start().await;
    fleet.complete("first".into()).await;
    let named = fleet.client.post(fleet.url("/v1/completions")).header("x-request-id", "1");
    let body = json!({"model": "m", "prompt": "second", "max_tokens": 1});
    assert_eq!(named.json(&body).send().await.unwrap().status(), 200);
    let number = async |path: &str| fleet.told(path).await["number"].as_u64();
    assert_eq!(number("/api/v1/decisions/1").await, Some(2));
    assert_eq!(number("/api/v1/decisions/1?by=number").await, Some(1));
    let (fine, text) = fleet.run(&["explain", "--request", "1"]).await;
    assert!(fine && text.starts_with("decision 2, request 1, "), "{text}");
    assert_eq!(fleet.admin("/api/v1/decisions/1?by=name").await.0, 400);
}

#[tokio::test]
async fn who_has_no_token_learns_nothing() {
    let fleet = fleet().listen("admin_token: secret").start().await;
    for path in ["/api/v1/decisions", "/api/v1/decisions/1"] {
        assert_eq!(fleet.admin(path).await.0, 401);
    }
    let url = format!("http://{}/api/v1/explain", fleet.app.admin_address());
    let asked = fleet.client.post(&url).body("{}").send().await.unwrap();
    assert_eq!(asked.status(), 401);
    let wrong = "the token that was sent is not that of `listen.admin_token`";
    let asked = fleet.client.post(&url).bearer_auth("secret2").body("{}").send().await.unwrap();
    assert_eq!((asked.status().as_u16(), asked.text().await.unwrap()), (401, format!("{wrong}\n")));
    let drain = format!("http://{}/api/v1/workers/engine-1/drain", fleet.app.admin_address());
    let asked = fleet.client.post(&drain).bearer_auth("secret2").send().await.unwrap();
    let said: Value = asked.json().await.unwrap();
    assert_eq!(said, json!({"error": {"message": wrong, "code": 401}}));
    let asked = fleet.client.post(&url).bearer_auth("secret").json(&body(&[97, 98])).send().await.unwrap();
    assert_eq!(asked.status(), 200);
}

#[tokio::test]
async fn the_status_page_is_shown_to_anybody_and_tells_nothing_by_itself() {
    let fleet = fleet().listen("admin_token: secret").start().await;
    let url = format!("http://{}/", fleet.app.admin_address());
    let mut nonces = Vec::new();
    for _ in 0..2 {
        let answer = fleet.client.get(&url).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()),
            (200, "text/html; charset=utf-8")
        );
        let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let page = answer.text().await.unwrap();
        assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert!(!page.contains("engine-1"));
        nonces.push(nonce);
    }
    assert_ne!(nonces[0], nonces[1]);
    assert_eq!(fleet.admin("/api/v1/history").await.0, 401);
}

/// A worker that computes a long prompt is not done with it because something else was answered meanwhile.
#[tokio::test]
async fn what_passes_through_tells_nothing_of_the_prompts_that_were_sent_before_it() {
    let answers = |prompt: &str, _| if prompt == "hi" { refusal("200 OK", "") } else { vec![Act::Hold] };
    let worker = Faulty::start(answers).await;
    let fleet = fleet().engines(0).policy("predicted").stranger(worker.address).start().await;
    let cost = async || fleet.explain(&body(&[97])).await.1["cost"].as_f64().unwrap();
    let idle = cost().await;
    let long = json!({"model": "m", "prompt": "x".repeat(600_000), "max_tokens": 2, "stream": true});
    let watching = async {
        fleet.eventually("the long prompt is there", async |_| worker.count() == 1).await;
        assert_eq!(fleet.post("/tokenize", &json!({"model": "m", "prompt": "hi"})).await.status, 200);
        // It falls by a millisecond each millisecond, and is of ten seconds at first.
        let after = cost().await;
        assert!(after > 2.0 * idle, "idle {idle}, then {after}");
    };
    tokio::select! {
        _ = fleet.post("/v1/completions", &long) => panic!("nobody has answered"),
        () = watching => {}
    }
}
