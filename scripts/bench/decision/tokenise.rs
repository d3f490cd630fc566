//! From a parsed request to the hashes of its blocks, by the way that the gateway takes, its other threads included.
//!
//! - `cold`: a text that was never seen, of words that were.
//! - `warm`: the same with a new turn behind it.
//! - `repeated`: the same once more.
//! - `reference`: Hugging Face's `tokenizers` on the text of the first, and the hashing of its ids.
//!
//! A `text` is the prompt of a completion; a `chat` of as much text is rendered by the model's template.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use warmpath::openai::{Endpoint, RequestView};
use warmpath::tokenize::hf::{HfTokenizer, TokenizerFiles, load};
use warmpath::tokenize::{Prompts, TokenizeLimits, TokenizeShared, Tokenizer, TokenizerHandle};
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;

/// Bytes of a token in the texts that are used, about.
const BYTES_PER_TOKEN: usize = 4;
/// Bytes of one message of a chat, and of a new turn.
const MESSAGE: usize = 3_000;
const TURN: usize = 800;
/// Rounds of the reference, which takes long.
const REFERENCE_ROUNDS: usize = 5;

/// What one stage costs.
pub(crate) struct Row {
    /// The stage.
    pub(crate) stage: &'static str,
    /// What the request is.
    pub(crate) form: &'static str,
    /// What was seen before.
    pub(crate) state: &'static str,
    /// Tokens of the last prompt that was measured.
    pub(crate) tokens: u32,
    /// Median, in microseconds.
    pub(crate) p50_us: f64,
    /// 99th percentile, in microseconds.
    pub(crate) p99_us: f64,
    /// Median of the processor time of all threads, in microseconds: what a busy machine does not change. 0 where it is not
    /// told.
    pub(crate) cpu_us: f64,
}

/// What one round took, in microseconds: on the clock, and of the processor.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    wall: f64,
    cpu: f64,
}

impl Took {
    /// Measures `work`.
    pub(crate) fn by<T>(work: impl FnOnce() -> T) -> (T, Self) {
        let before = cpu_ns();
        let start = Instant::now();
        let result = black_box(work());
        let wall = start.elapsed().as_secs_f64() * 1e6;
        (result, Self { wall, cpu: (cpu_ns() - before) / 1e3 })
    }

    /// The same without what measuring takes itself.
    fn net(self, idle: Self) -> Self {
        Self { cpu: (self.cpu - idle.cpu).max(0.0), ..self }
    }

    /// What measuring takes: the median of many rounds without work.
    fn idle() -> Self {
        let mut rounds: Vec<Self> = (0..200).map(|_| Self::by(|| ()).1).collect();
        rounds.sort_by(|a, b| a.cpu.total_cmp(&b.cpu));
        rounds[rounds.len() / 2]
    }
}

/// Processor time of all threads of this process so far, as Linux's scheduler tells it; giving way makes it add up what
/// this thread has used.
fn cpu_ns() -> f64 {
    std::thread::yield_now();
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let used = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    used.filter_map(|text| text.split(' ').next()?.parse::<f64>().ok()).sum()
}

impl Row {
    /// A row of these times.
    pub(crate) fn of(
        (stage, form, state): (&'static str, &'static str, &'static str),
        tokens: u32,
        times: &[Took],
    ) -> Self {
        let at = |percent: usize, which: fn(&Took) -> f64| {
            let mut sorted: Vec<f64> = times.iter().map(which).collect();
            sorted.sort_by(f64::total_cmp);
            sorted[(sorted.len() - 1) * percent / 100]
        };
        let (p50_us, p99_us) = (at(50, |took| took.wall), at(99, |took| took.wall));
        Self { stage, form, state, tokens, p50_us, p99_us, cpu_us: at(50, |took| took.cpu) }
    }

    /// The row as it is written.
    pub(crate) fn json(&self) -> Value {
        json!({
            "stage": self.stage, "form": self.form, "state": self.state, "tokens": self.tokens,
            "p50_us": self.p50_us, "p99_us": self.p99_us, "cpu_us": self.cpu_us,
        })
    }
}

/// Lines to make prompts of, and a tokenizer for them.
pub(crate) struct Texts {
    lines: Vec<String>,
    runtime: Runtime,
    handle: TokenizerHandle,
    reference: HfTokenizer,
}

/// A request as it is sent.
#[derive(Clone)]
pub(crate) struct Body(Endpoint, Bytes);

impl Texts {
    /// The repository's own sources and documents as lines, and the tokenizer in `folder`.
    pub(crate) fn read(root: &Path, folder: &Path) -> Self {
        let mut files = Vec::new();
        for folder in ["src", "router-core/src", "indexer/src", "scripts", "config"] {
            collect(&root.join(folder), &mut files);
        }
        files.extend(["ARCHITECTURE.md", "README.md", "CHANGELOG.md"].map(|name| root.join(name)));
        files.sort();
        let lines = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        let lines = lines.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let tokenizer = folder.to_owned();
        let files = TokenizerFiles { tokenizer, chat_template: None, model_tokens_max: None, check_every: None };
        // Nothing is let go, and a busy machine makes nothing give up.
        let (cache_bytes, wait_max) = (256 << 20, Duration::from_secs(60));
        let limits = TokenizeLimits { cache_bytes, wait_max, ..TokenizeLimits::default() };
        let handle = TokenizerHandle::ready(load(&files).unwrap(), Arc::new(TokenizeShared::new(limits)));
        let reference = HfTokenizer::from_file(&folder.join("tokenizer.json")).unwrap();
        Self { lines, runtime: Runtime::new().unwrap(), handle, reference }
    }

    /// A text of about so many bytes, another one for each `seed`.
    pub(crate) fn text(&self, bytes: usize, seed: usize) -> String {
        let mut text = format!("{seed}\n");
        let mut at = seed;
        while text.len() < bytes {
            // Eight lines in a row read like a text.
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (at >> 33) % self.lines.len();
            for line in self.lines[start..].iter().take(8) {
                text.push_str(line);
                text.push('\n');
            }
        }
        text.truncate((0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap());
        text
    }

    /// The texts of one request: messages, or one prompt.
    fn body(&self, form: &'static str, texts: &[String]) -> Body {
        if form == "text" {
            return Body(Endpoint::Completions, json!({"model": "m", "prompt": texts.concat()}).to_string().into());
        }
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(text, role): (&String, &str)| json!({"role": role, "content": text});
        let messages: Vec<Value> = texts.iter().zip(roles).map(message).collect();
        Body(Endpoint::Chat, json!({"model": "m", "messages": messages}).to_string().into())
    }

    /// The prompts of a request below the root that all of them have here, and how long that took. Reading the body is not
    /// part of it.
    pub(crate) fn prompts(&self, body: &Body) -> (Prompts, Took) {
        let Body(endpoint, bytes) = body;
        let mut view = RequestView::parse(*endpoint, bytes, 4096).unwrap();
        Took::by(|| self.runtime.block_on(self.handle.prompts(bytes, &mut view, &root())))
    }

    /// Every form and state at one length.
    pub(crate) fn measure(&self, tokens: usize, rounds: usize) -> Vec<Row> {
        let idle = Took::idle();
        let mut rows = Vec::new();
        for (number, form) in ["text", "chat"].into_iter().enumerate() {
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            let mut counted = 0;
            for round in 0..rounds {
                let seed = (tokens * 2 + number) * 100_000 + round * 100;
                let count = (tokens * BYTES_PER_TOKEN).div_ceil(MESSAGE);
                let each = tokens * BYTES_PER_TOKEN / count;
                let mut texts: Vec<String> = (0..count).map(|at| self.text(each, seed * 1000 + at)).collect();
                times[0].push(self.prompts(&self.body(form, &texts)).1.net(idle));
                texts.extend([self.text(TURN, seed + 1), self.text(TURN / 8, seed + 2)]);
                let body = self.body(form, &texts);
                times[1].push(self.prompts(&body).1.net(idle));
                let (prompts, time) = self.prompts(&body);
                times[2].push(time.net(idle));
                counted = prompts.tokens().unwrap().0;
            }
            for (state, times) in ["cold", "warm", "repeated"].into_iter().zip(&times) {
                rows.push(Row::of(("tokenise", form, state), counted, times));
            }
        }
        rows.push(self.reference(tokens));
        rows
    }

    fn reference(&self, tokens: usize) -> Row {
        let mut counted = 0;
        let round = |round: usize| {
            let text = self.text(tokens * BYTES_PER_TOKEN, tokens * 7 + round);
            let (ids, took) = Took::by(|| {
                let (mut ids, mut blocks) = (Vec::new(), Vec::new());
                self.reference.encode(&text, true, &mut ids).unwrap();
                hash_blocks(&root(), &ids, &[], &mut blocks);
                black_box(blocks);
                ids
            });
            counted = u32::try_from(ids.len()).unwrap();
            took
        };
        let times: Vec<Took> = (0..REFERENCE_ROUNDS).map(round).collect();
        Row::of(("tokenise", "text", "reference"), counted, &times)
    }
}

/// The root that all requests have here.
pub(crate) fn root() -> Root {
    Root::new(&Namespace::plain("m", BlockSize::new(16).unwrap()), DEFAULT_ROOT_SEED)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path
            .extension()
            .is_some_and(|kind| ["rs", "md", "sh", "py", "yaml"].iter().any(|known| kind == *known))
        {
            files.push(path);
        }
    }
}
