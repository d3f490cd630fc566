//! OpenAI's own SDK as the judge.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::fleet::fleet;
use crate::scripted::{Scripted, Step, event, head, piece, whole};

/// A Python that has the packages `openai` and `pyzmq`.
pub(crate) fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python =
        std::env::var_os("WARMPATH_TEST_PYTHON").map_or_else(|| root.join(".cache/venv/bin/python"), Into::into);
    assert!(python.exists(), "{} is missing: scripts/check.sh makes it", python.display());
    python
}

#[tokio::test]
async fn the_openai_sdk_is_served_and_never_takes_a_cut_stream_for_whole() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/sdk_client.py");
    let router = fleet().start().await;
    let dies = Scripted::start(vec![head(), piece(event("a")), Step::Close]).await;
    let broken = fleet().engines(0).stranger(dies.address).start().await;
    let embedding = r#"{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.25,-1.0]}],
        "usage":{"prompt_tokens":1,"total_tokens":1}}"#;
    let embeds = Scripted::start(vec![whole("200 OK", embedding)]).await;
    embeds.offers(
        r#"{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"vllm","root":"/m","parent":null},
        {"id":"org/sql","object":"model","created":7,"owned_by":"vllm","root":"/sql","parent":"m"}]}"#,
    );
    let config = "engines: {models_interval: 20ms}";
    let passing = fleet().engines(0).stranger(embeds.address).second_model().config(config).start().await;
    passing
        .eventually("the adapter is known", async |fleet| fleet.get(fleet.url("/v1/models/org/sql")).await.0 == 200)
        .await;
    let mut command = Command::new(python());
    command
        .arg(script)
        .args([router.url(""), broken.url(""), passing.url("")])
        .env_remove("OPENAI_BASE_URL")
        .env("NO_PROXY", "*");
    let output: Output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("Python starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((String::from_utf8_lossy(&output.stdout).trim(), output.status.code()), ("ok", Some(0)), "{told}");
}
