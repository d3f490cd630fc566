//! The command line.

use std::path::PathBuf;

use anyhow::Context;

use crate::proxy::program;

/// What `--help` says.
pub(crate) const HELP: &str = "\
Measures the router as a proxy beside nginx, and what its decisions cost.

    scripts/bench.sh proxy [--quick] [--json FILE] [--only PART,..] [--rounds N] [--seconds S] [--connections 1,32,256]
                           [--threads N] [--streams N]
    scripts/bench.sh decision [--quick] [--json FILE]

  --json FILE      writes every figure with its unit, its target and whether that is met
  --quick          one short round of everything, in under a minute: shows that it works; the figures are rough
  --only PART,..   proxy: rest, short, chat, ids, streams
  --rounds N       rounds of which the median is told (5; 1 if quick)
  --seconds S      how long requests are begun in each turn (2; 0.3 if quick)
  --connections L  client connections, each of which has one request under way (1,32,256)
  --threads N      worker processes of nginx, and threads of the router's runtime (1)
  --streams N      streams that are held at once to measure their memory (8000; 400 if quick)
  --router FILE    the router; --nginx FILE: the other one; --tokenizer FOLDER: Qwen3's; --root FOLDER: the repository

How to read it, proxy. Processor time is what the kernel booked for all processes of a proxy, their connections open and
warm, until the last answer. `cpu_ratio_to_nginx` is that over nginx's in the same round. `added` is a percentile through
the proxy minus the same percentile of clients that ask a worker directly; with more connections than cores it is queueing
for the processor, which clients, workers and proxy share, so only one connection tells how long a hop takes. Rows:
short, a line of text; chat, 32 KiB in ten messages, `warm` where all but the last turn was seen before and is in the
index, `cold` where nothing was; ids, 2 048 token ids, in the index; each through `round_robin`, without tokenizer and
events, and through `kv`, with both. No request is sent twice. A worker's answer is a function of the request's bytes, and
each is compared byte by byte: any other status, any other byte and any lost request fails the run with exit code 1.
Targets do not.

How to read it, decision. Each step timed by itself, 50th and 99th percentile. `place` is the whole of hash, match, score,
pick and reserve, with token ids in hand; a million (worker, block) pairs are in the index. `tokenise` is the gateway's own
way from a chat's bytes to the hashes of its blocks, parsing, the template and other threads included: `cold`, never seen;
`warm`, all but the last turn was; `repeated`, all of it was. `reference` is Hugging Face's tokenizer, to token ids only.
Rows `policy`: before 500 workers with four requests in flight each, where the overlaps of a prompt of five blocks are given;
`choose` is candidates, cost, pick and the note of what was chosen, `score` cost and pick alone. None of it allocates:
`tests/allocations.rs` counts that for every policy.
";

/// What was asked for.
pub(crate) enum Arguments {
    Help,
    Proxy(ProxyPlan),
    Decision(DecisionPlan),
    /// Be an engine with so many ports.
    Worker(usize),
    /// Be a client, as a specification in JSON says.
    Client(String),
}

/// A run of `proxy`.
pub(crate) struct ProxyPlan {
    pub(crate) quick: bool,
    pub(crate) json: Option<PathBuf>,
    /// Parts to measure; none means all.
    only: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) window_ms: u64,
    pub(crate) connections: Vec<usize>,
    pub(crate) threads: usize,
    pub(crate) streams: usize,
    /// Blocks of each worker in the index.
    pub(crate) index_blocks: usize,
    /// How long a router is left alone before its memory is read, and while its processor time is.
    pub(crate) settle_ms: u64,
    pub(crate) idle_ms: u64,
    pub(crate) router: PathBuf,
    pub(crate) nginx: PathBuf,
    pub(crate) tokenizer: PathBuf,
    pub(crate) root: PathBuf,
}

impl ProxyPlan {
    /// Whether this part is to be measured.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

/// A run of `decision`.
pub(crate) struct DecisionPlan {
    pub(crate) quick: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) tokenizer: PathBuf,
    pub(crate) root: PathBuf,
}

/// Parts of `proxy`.
const PARTS: [&str; 5] = ["rest", "short", "chat", "ids", "streams"];

#[derive(Default)]
struct Given {
    quick: bool,
    json: Option<PathBuf>,
    only: Vec<String>,
    rounds: Option<usize>,
    window_ms: Option<u64>,
    connections: Option<Vec<usize>>,
    threads: Option<usize>,
    streams: Option<usize>,
    router: Option<PathBuf>,
    nginx: Option<PathBuf>,
    tokenizer: Option<PathBuf>,
    root: Option<PathBuf>,
}

impl Arguments {
    /// Reads the command line without the program's name.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        match arguments.next().as_deref() {
            None | Some("-h" | "--help") => Ok(Self::Help),
            Some("worker") => Ok(Self::Worker(arguments.next().context("how many ports?")?.parse()?)),
            Some("client") => Ok(Self::Client(arguments.next().context("what to do?")?)),
            Some("proxy") => Ok(Given::read(arguments)?.map_or(Self::Help, |given| Self::Proxy(given.proxy()))),
            Some("decision") => {
                Ok(Given::read(arguments)?.map_or(Self::Help, |given| Self::Decision(given.decision())))
            }
            Some(other) => anyhow::bail!("unknown bench `{other}`; --help tells what there is"),
        }
    }
}

impl Given {
    /// None if help was asked for.
    fn read(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Option<Self>> {
        let mut given = Self::default();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
            match name.as_str() {
                "-h" | "--help" => return Ok(None),
                "--quick" => given.quick = true,
                "--json" => given.json = Some(value()?.into()),
                "--only" => given.only = parts(&value()?)?,
                "--rounds" => given.rounds = Some(at_least_one(&name, &value()?)?),
                "--seconds" => {
                    let seconds: f64 = value()?.parse().context("--seconds")?;
                    given.window_ms =
                        Some(u64::try_from(std::time::Duration::try_from_secs_f64(seconds)?.as_millis())?);
                }
                "--connections" => {
                    let list = value()?.split(',').map(|one| at_least_one(&name, one)).collect::<Result<_, _>>();
                    given.connections = Some(list?);
                }
                "--threads" => given.threads = Some(at_least_one(&name, &value()?)?),
                "--streams" => given.streams = Some(at_least_one(&name, &value()?)?),
                "--router" => given.router = Some(value()?.into()),
                "--nginx" => given.nginx = Some(value()?.into()),
                "--tokenizer" => given.tokenizer = Some(value()?.into()),
                "--root" => given.root = Some(value()?.into()),
                _ => anyhow::bail!("unknown argument `{name}`; --help tells what there is"),
            }
        }
        Ok(Some(given))
    }

    fn proxy(self) -> ProxyPlan {
        let quick = self.quick;
        let pick = |full, short| if quick { short } else { full };
        let root = self.root.unwrap_or_else(|| ".".into());
        ProxyPlan {
            quick,
            json: self.json,
            only: self.only,
            rounds: self.rounds.unwrap_or(pick(5, 1)),
            window_ms: self.window_ms.unwrap_or(if quick { 300 } else { 2_000 }),
            connections: self.connections.unwrap_or(vec![1, 32, 256]),
            threads: self.threads.unwrap_or(1),
            streams: self.streams.unwrap_or(pick(8_000, 400)),
            index_blocks: pick(250_000, 40_000),
            settle_ms: if quick { 500 } else { 5_000 },
            idle_ms: if quick { 1_000 } else { 10_000 },
            router: self.router.unwrap_or_else(|| root.join("target/release/warmpath")),
            nginx: self.nginx.or_else(|| program("nginx")).unwrap_or_else(|| "nginx".into()),
            tokenizer: absolute(self.tokenizer.unwrap_or_else(|| root.join(".cache/tokenizers/qwen3"))),
            root,
        }
    }

    fn decision(self) -> DecisionPlan {
        let root = self.root.unwrap_or_else(|| ".".into());
        let tokenizer = self.tokenizer.unwrap_or_else(|| root.join(".cache/tokenizers/qwen3"));
        DecisionPlan { quick: self.quick, json: self.json, tokenizer, root }
    }
}

/// Configurations lie in another folder than the one that this path was meant for.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn parts(text: &str) -> anyhow::Result<Vec<String>> {
    let parts: Vec<String> = text.split(',').map(str::to_owned).collect();
    let unknown = parts.iter().find(|part| !PARTS.contains(&part.as_str()));
    unknown.map_or(Ok(parts.clone()), |part| anyhow::bail!("no part `{part}` (there are: {})", PARTS.join(", ")))
}

fn at_least_one(name: &str, text: &str) -> anyhow::Result<usize> {
    text.parse().ok().filter(|count| *count > 0).with_context(|| format!("{name}: `{text}` is no number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> ProxyPlan {
        match Arguments::parse(line.split_whitespace().map(str::to_owned)).unwrap() {
            Arguments::Proxy(plan) => plan,
            _ => panic!("another bench"),
        }
    }

    #[test]
    fn a_quick_run_is_shorter_and_what_is_given_counts() {
        let (full, quick) = (plan("proxy"), plan("proxy --quick"));
        assert_eq!((full.rounds, full.window_ms, full.streams), (5, 2_000, 8_000));
        assert_eq!((quick.rounds, quick.window_ms, quick.streams), (1, 300, 400));
        let given = plan("proxy --quick --rounds 3 --seconds 1.5 --connections 32,64 --only ids");
        assert_eq!((given.rounds, given.window_ms, given.connections.clone()), (3, 1_500, vec![32, 64]));
        assert!(given.wants("ids") && !given.wants("rest") && full.wants("rest"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let refused = |line: &str| Arguments::parse(line.split_whitespace().map(str::to_owned)).is_err();
        assert!(refused("proxies") && refused("proxy --rounds 0") && refused("proxy --only all"));
        assert!(refused("proxy --json") && refused("proxy --slow"));
    }
}
