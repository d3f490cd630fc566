//! Whether texts become the same token ids here and in an engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::namespace::Namespace;

use super::corpus::Sample;
use super::engine::{Engine, Reply};
use super::finding::{Check, Finding};
use super::remedy;
use crate::config::{Model, TokenizerSource};
use crate::openai::{Endpoint, RequestView};
use crate::tokenize::remote::RemoteTokenizer;
use crate::tokenize::{Prompts, TokenizeLimits, TokenizeShared, TokenizerHandle, TokenizerState};

/// Samples that are told by name.
const NAMED: usize = 3;

/// The most of an answer of `/tokenize`.
const ANSWER_MAX: usize = 16 << 20;

/// What one model's samples become here.
pub(super) enum Ours {
    /// Their ids, in the order of the samples; or why they are unknown.
    Ids(Vec<Result<Vec<u32>, &'static str>>),
    /// No tokenizer is configured.
    Absent,
    /// The engine's own is asked, so each has to be asked for itself.
    Remote,
    /// It cannot be loaded, and why.
    Failed(String),
    /// It takes longer than this to load.
    Late(Duration),
}

impl Ours {
    /// Tokenizes every sample with the tokenizer that the configuration names for `model`.
    pub(super) async fn of(model: &Model, samples: &[Sample], patience: Duration) -> Self {
        if model.tokenizer == Some(TokenizerSource::Remote) {
            return Self::Remote;
        }
        let limits = TokenizeLimits { wait_max: patience, ..TokenizeLimits::default() };
        let handle = TokenizerHandle::configured(model, Arc::new(TokenizeShared::new(limits)), None).giving_ids(true);
        match timeout(patience, handle.settled()).await {
            Ok(TokenizerState::Ready) => Self::Ids(tokenize(model, &handle, samples).await),
            Ok(TokenizerState::Absent) => Self::Absent,
            Ok(TokenizerState::Failed(why)) => Self::Failed(why),
            Ok(TokenizerState::Loading) | Err(_) => Self::Late(patience),
        }
    }
}

async fn tokenize(model: &Model, handle: &TokenizerHandle, samples: &[Sample]) -> Vec<Result<Vec<u32>, &'static str>> {
    // Only ids are asked for, and they follow nothing.
    let root = Root::new(&Namespace::plain(model.name.value.as_str(), model.block_size), DEFAULT_ROOT_SEED);
    let mut all = Vec::with_capacity(samples.len());
    for sample in samples {
        let body = Bytes::from(sample.fields.to_string());
        let ids = match RequestView::parse(sample.endpoint, &body, 64) {
            Ok(mut view) => handle.prompts(&body, &mut view, &root).await,
            Err(_) => Prompts::Ids(Vec::new()),
        };
        all.push(match ids {
            Prompts::Ids(mut lists) => Ok(lists.pop().unwrap_or_default()),
            Prompts::Hashed(_) => Err("hashes instead of ids"),
            Prompts::Unknown(reason) => Err(reason.label()),
            Prompts::Unread(_) => Err("not read"),
        });
    }
    all
}

/// What an engine makes of a sample.
enum Theirs {
    Ids(Vec<u32>),
    Count(usize),
}

/// What came of comparing them.
#[derive(Default)]
struct Comparison {
    texts: usize,
    chats: usize,
    /// Whether only numbers of tokens could be compared.
    by_count: bool,
    differing: Vec<Difference>,
    /// Why the last sample that could not be compared could not.
    unanswered: Option<String>,
}

struct Difference {
    is_chat: bool,
    /// How many more tokens there are there than here, where both are known.
    more: Option<i64>,
    what: String,
}

/// Compares each sample with what the engine makes of it. `longest` is the most that it takes, where it tells.
pub(super) async fn compare(
    engine: &Engine,
    model: &Model,
    (samples, ours): (&[Sample], &Ours),
    longest: Option<u64>,
    patience: Duration,
) -> Finding {
    let check = Check::Tokens;
    let asked;
    let (ours, is_remote) = match ours {
        Ours::Absent => {
            let why = "no tokenizer is configured: prompts that are sent as text are routed by load";
            return Finding::skipped(check, why).with_remedy("set models[].tokenizer to the model's tokenizer.json");
        }
        Ours::Failed(why) => {
            let finding = format!("the tokenizer cannot be loaded: {why}");
            return Finding::failed(check, finding, "correct the path in models[].tokenizer, or the file there");
        }
        Ours::Late(patience) => {
            let finding = format!("the tokenizer was not loaded within {patience:?}");
            return Finding::skipped(check, finding).with_remedy("raise --timeout");
        }
        Ours::Remote => {
            let remote = RemoteTokenizer::new(patience, ANSWER_MAX);
            remote.set_engines(engine.tokenizing().into_iter());
            let shared = Arc::new(TokenizeShared::new(TokenizeLimits::default()));
            let handle = TokenizerHandle::absent(shared).with_remote(remote).giving_ids(true);
            asked = tokenize(model, &handle, samples).await;
            (&asked, true)
        }
        Ours::Ids(ids) => (ids, false),
    };
    let mut comparison = Comparison { by_count: is_remote, ..Comparison::default() };
    for (sample, ours) in samples.iter().zip(ours) {
        let fits = |ids: &Vec<u32>| longest.is_none_or(|longest| u64::try_from(ids.len()).is_ok_and(|n| n < longest));
        if ours.as_ref().is_ok_and(|ids| !fits(ids)) {
            continue;
        }
        comparison.add(engine, &model.name.value, sample, ours).await;
    }
    comparison.finding(is_remote)
}

impl Comparison {
    async fn add(&mut self, engine: &Engine, model: &str, sample: &Sample, ours: &Result<Vec<u32>, &'static str>) {
        let theirs = if self.by_count { None } else { self.tokens(engine, model, sample).await };
        let theirs = match theirs {
            None if self.by_count => self.count(engine, model, sample).await,
            theirs => theirs,
        };
        let Some(theirs) = theirs else { return };
        match sample.endpoint {
            Endpoint::Completions => self.texts += 1,
            Endpoint::Chat => self.chats += 1,
        }
        if let Some((more, what)) = difference(ours, &theirs) {
            let what = format!("`{}` {what}", sample.name);
            self.differing.push(Difference { is_chat: sample.endpoint == Endpoint::Chat, more, what });
        }
    }

    /// The ids by the engine's own word. An engine without `/tokenize` is asked for its usage from then on.
    async fn tokens(&mut self, engine: &Engine, model: &str, sample: &Sample) -> Option<Theirs> {
        let more = match sample.endpoint {
            Endpoint::Completions => json!({"model": model, "add_special_tokens": true}),
            Endpoint::Chat => json!({"model": model, "add_generation_prompt": true, "add_special_tokens": false}),
        };
        let reply = self.answer(engine, "/tokenize", &merged(&sample.fields, more)).await?;
        if matches!(reply.status, 404 | 405 | 501) {
            self.by_count = true;
            return None;
        }
        let tokens = self.good(reply)?.json()?.get_mut("tokens")?.take();
        serde_json::from_value(tokens).ok().map(Theirs::Ids)
    }

    async fn count(&mut self, engine: &Engine, model: &str, sample: &Sample) -> Option<Theirs> {
        let path = match sample.endpoint {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
        };
        let more = json!({"model": model, "max_tokens": 1, "n": 1, "temperature": 0});
        let reply = self.answer(engine, path, &merged(&sample.fields, more)).await?;
        let count = self.good(reply)?.usage().prompt?.0;
        usize::try_from(count).ok().map(Theirs::Count)
    }

    async fn answer(&mut self, engine: &Engine, path: &'static str, body: &Value) -> Option<Reply> {
        let reply = engine.post(path, body).await;
        reply.map_err(|error| self.unanswered = Some(error.to_string())).ok()
    }

    /// An engine may refuse what it has no template for, or what is too long for it. It might repeat the text, so its
    /// words are left out.
    fn good(&mut self, reply: Reply) -> Option<Reply> {
        if !reply.is_good() {
            self.unanswered = Some(format!("HTTP {}", reply.status));
        }
        Some(reply).filter(Reply::is_good)
    }

    fn finding(self, is_remote: bool) -> Finding {
        let (texts, chats, compared) = (self.texts, self.chats, self.texts + self.chats);
        let alike = match (self.by_count, is_remote) {
            (false, _) => "the same ids",
            (true, false) => "as many tokens (it has no /tokenize)",
            (true, true) => "as many tokens as its /tokenize tells",
        };
        let finding = match (self.differing.as_slice(), self.unanswered) {
            (_, why) if texts == 0 => {
                let why = why.unwrap_or_else(|| "no token ids in its answers".to_owned());
                Finding::skipped(Check::Tokens, format!("the engine tokenizes nothing for us ({why})"))
            }
            ([], why) => {
                let chats = match (chats, why) {
                    (0, Some(why)) => format!("no chats ({why})"),
                    (chats, _) => format!("{chats} chats"),
                };
                Finding::ok(Check::Tokens, format!("{texts} awkward texts and {chats}: {alike}"))
            }
            (differing, _) => {
                let named: Vec<_> = differing.iter().take(NAMED).map(|one| one.what.as_str()).collect();
                let rest = differing.len().saturating_sub(NAMED);
                let rest = if rest == 0 { String::new() } else { format!(", and {rest} more") };
                let count = differing.len();
                let finding = format!("{count} of {compared} texts and chats differ: {}{rest}", named.join(", "));
                Finding::failed(Check::Tokens, finding, remedy_for(differing, texts, is_remote))
            }
        };
        finding.with("compared", compared).with("different", self.differing.len())
    }
}

fn remedy_for(differing: &[Difference], texts: usize, is_remote: bool) -> String {
    let mut of_texts = differing.iter().filter(|one| !one.is_chat);
    let Some(first) = of_texts.next() else { return remedy::TEMPLATE.to_owned() };
    let alike = of_texts.clone().all(|one| one.more == first.more) && of_texts.count() + 1 == texts;
    match first.more {
        _ if is_remote => remedy::REMOTE_TOKENIZER.to_owned(),
        Some(more @ (-2..=-1 | 1..=2)) if alike => {
            let (who, count) = if more > 0 { ("the engine", more) } else { ("our tokenizer", -more) };
            format!("{who} adds {count} special token(s), such as a BOS, to each text: {}", remedy::TOKENIZER)
        }
        _ => remedy::TOKENIZER.to_owned(),
    }
}

/// How the two differ; none if they do not. What nobody knows here and somebody knows there differs.
fn difference(ours: &Result<Vec<u32>, &'static str>, theirs: &Theirs) -> Option<(Option<i64>, String)> {
    let there = match theirs {
        Theirs::Ids(ids) => ids.len(),
        Theirs::Count(count) => *count,
    };
    let ours = match ours {
        Ok(ours) => ours,
        Err(reason) => return Some((None, format!("has {there} tokens there and is unknown here ({reason})"))),
    };
    let here = ours.len();
    if here != there {
        let more = i64::try_from(there).unwrap_or(i64::MAX).saturating_sub(i64::try_from(here).unwrap_or(i64::MAX));
        return Some((Some(more), format!("has {here} tokens here and {there} there")));
    }
    let Theirs::Ids(theirs) = theirs else { return None };
    let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)?;
    Some((Some(0), format!("has {here} tokens that differ from the {}. on", at + 1)))
}

fn merged(fields: &Value, more: Value) -> Value {
    let mut body = fields.clone();
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(counts: &[(bool, i64)]) -> Vec<Difference> {
        counts
            .iter()
            .map(|(is_chat, more)| Difference { is_chat: *is_chat, more: Some(*more), what: String::new() })
            .collect()
    }

    #[test]
    fn a_difference_is_told_by_counts_or_by_its_place() {
        let theirs = Theirs::Ids(vec![1, 2, 3]);
        let told = |ours: Result<Vec<u32>, &'static str>| difference(&ours, &theirs);
        assert_eq!(told(Ok(vec![1, 2, 3])), None);
        assert_eq!(told(Ok(vec![2, 3])), Some((Some(1), "has 2 tokens here and 3 there".to_owned())));
        assert_eq!(told(Ok(vec![1, 5, 3])), Some((Some(0), "has 3 tokens that differ from the 2. on".to_owned())));
        let unknown = "has 3 tokens there and is unknown here (no_template)".to_owned();
        assert_eq!(told(Err("no_template")), Some((None, unknown)));
        assert!(difference(&Ok(vec![7, 7]), &Theirs::Count(2)).is_none());
    }

    #[test]
    fn the_remedy_names_what_differs() {
        let remedy = |counts: &[(bool, i64)], texts| remedy_for(&differences(counts), texts, false);
        assert_eq!(remedy(&[(true, 5)], 3), remedy::TEMPLATE);
        assert_eq!(remedy(&[(false, 4), (true, 5)], 3), remedy::TOKENIZER);
        let bos = format!("the engine adds 1 special token(s), such as a BOS, to each text: {}", remedy::TOKENIZER);
        assert_eq!(remedy(&[(false, 1), (false, 1), (true, 0)], 2), bos);
        assert_eq!(remedy(&[(false, 1), (false, 1)], 3), remedy::TOKENIZER);
    }
}
