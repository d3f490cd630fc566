//! What a gateway keeps of finished requests: times, lengths and names of blocks, never text. Whoever writes it down takes
//! it from a bounded queue; what finds no room there is counted and lost, for no request waits for a disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use warmpath_core::shape::Prompt;

use crate::telemetry::metrics::RecordMetrics;

/// One prompt of a finished request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// When it arrived, since the recorder began.
    pub at: Duration,
    /// The model of its pool.
    pub model: Arc<str>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Prompt tokens.
    pub input_length: u32,
    /// Tokens that were generated.
    pub output_length: u32,
    /// The sequence hashes of its full blocks.
    pub hashes: Vec<u64>,
}

/// The way to whoever writes down finished requests.
#[derive(Clone)]
pub struct Recorder {
    to: mpsc::Sender<Finished>,
    metrics: RecordMetrics,
    begin: Instant,
}

/// A request under way, as it will be recorded if it finishes.
pub struct Recording {
    recorder: Recorder,
    prompts: Vec<Finished>,
}

impl Recorder {
    /// A recorder whose time begins now.
    pub fn new(to: mpsc::Sender<Finished>, metrics: RecordMetrics) -> Self {
        Self { to, metrics, begin: Instant::now() }
    }

    /// A request that arrived at `arrived`. None, and counted, where its prompts are not known. Hashes them: O(tokens).
    pub fn recording(
        &self,
        arrived: Instant,
        model: &Arc<str>,
        block_size: u32,
        prompts: &[Prompt<'_>],
    ) -> Option<Box<Recording>> {
        if prompts.is_empty() {
            self.metrics.count("unknown_tokens");
            return None;
        }
        let at = arrived.saturating_duration_since(self.begin);
        let prompts = prompts.iter().map(|prompt| {
            let mut hashes = Vec::new();
            prompt.hash_into(&mut hashes);
            let hashes = hashes.into_iter().map(|hash| hash.0).collect();
            let (model, input_length) = (Arc::clone(model), prompt.len().0);
            Finished { at, model, block_size, input_length, output_length: 0, hashes }
        });
        Some(Box::new(Recording { prompts: prompts.collect(), recorder: self.clone() }))
    }
}

impl Recording {
    /// The request finished after so many tokens, which its prompts share.
    pub fn finished(self, output: u32) {
        let count = u32::try_from(self.prompts.len()).unwrap_or(u32::MAX).max(1);
        for prompt in self.prompts {
            let finished = Finished { output_length: output / count, ..prompt };
            if self.recorder.to.try_send(finished).is_err() {
                self.recorder.metrics.count("dropped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::blocks::Root;
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::BlockSize;

    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn full_blocks_are_kept_by_their_hashes_and_what_finds_no_room_is_counted() {
        let metrics = Metrics::new("w");
        let (to, mut from) = mpsc::channel(1);
        let recorder = Recorder::new(to, metrics.record());
        let model: Arc<str> = "m".into();
        let root = Root::new(&Namespace::plain("m", BlockSize::new(4).unwrap()), 1337);
        let tokens: Vec<u32> = (1..=9).collect();
        let prompts = [Prompt::of(root, &tokens), Prompt::of(root, &tokens[..4])];
        recorder.recording(Instant::now(), &model, 4, &prompts).unwrap().finished(10);
        let first = from.try_recv().unwrap();
        assert_eq!((first.input_length, first.output_length, first.block_size), (9, 5, 4));
        assert_eq!(first.hashes, [15_342_114_700_230_605_370, 8_259_717_594_593_986_827]);
        assert!(from.try_recv().is_err(), "there was room for one");
        assert!(recorder.recording(Instant::now(), &model, 4, &[]).is_none());
        let text = metrics.render();
        for line in ["{outcome=\"dropped\"} 1", "{outcome=\"unknown_tokens\"} 1"] {
            assert!(text.contains(&format!("w_recorded_requests_total{line}")), "{text}");
        }
    }
}
