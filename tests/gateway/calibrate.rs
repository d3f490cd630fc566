//! The timing of a live engine is found again by measuring it.

use std::time::Duration;

use warmpath::calibrate::{Measuring, measure};
use warmpath::events::local::LocalBus;
use warmpath::events::publish::Bus;
use warmpath::events::publish::faults::EventFaults;
use warmpath::link::{Site, TlsFiles};
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath_indexer::codec::encode::{Form, HashForm};
use warmpath_simulator::{EngineConfig, Roofline, Timing};

/// What the engine lasts by: prompts of 8192 tokens take 634 ms and decode steps 20 ms, beside which HTTP is little.
const PRESET: Roofline = Roofline::PRESETS[1];

/// An engine that takes its time.
pub(crate) async fn engine(tasks: &Tasks) -> MockEngine {
    let settings = MockSettings {
        listen: "127.0.0.1:0".parse().unwrap(),
        worker: "e".to_owned(),
        model: "m".to_owned(),
        engine: EngineConfig { timing: Timing::Roofline(PRESET), vocabulary: 97..123, ..EngineConfig::default() },
        ranks: vec![Bus::Local(LocalBus::new())],
        hashes: HashForm::Int,
        faults: EventFaults::default(),
        form: Form::Map,
        speedup: 1.0,
        tokenizer: None,
    };
    MockEngine::start(settings, tasks).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measured_engine_gives_its_own_constants_back() {
    let tasks = Tasks::new();
    let engine = engine(&tasks).await;
    let measuring = Measuring {
        site: Site::new(&format!("http://{}", engine.address), TlsFiles::default(), Tasks::new()).unwrap(),
        model: None,
        api_key: None,
        prefill_tokens: 8192,
        context: 1024,
        rounds: 3,
        patience: Duration::from_secs(60),
    };
    let (prefill, decode) = measure(&measuring).await.unwrap();
    let fitted = PRESET.fitted(&prefill, &decode).unwrap();
    assert!((fitted.mfu / PRESET.mfu - 1.0).abs() < 0.1, "{fitted}");
    assert!((fitted.mbu / PRESET.mbu - 1.0).abs() < 0.1, "{fitted}");
    let absent = Measuring { model: Some("other".to_owned()), ..measuring };
    let error = measure(&absent).await.unwrap_err().to_string();
    assert_eq!(error, "the engine answered 404 Not Found to /v1/completions: The model `other` does not exist.");
    tasks.drain(Duration::ZERO).await;
}
