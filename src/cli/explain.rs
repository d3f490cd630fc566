//! `warmpath explain`: why a request went where it went, or where one would go.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use warmpath_core::cost::Standing;
use warmpath_core::policy::PolicyName;
use warmpath_core::units::Tokens;

use super::admin::AdminArgs;
use super::misuse::OrMisuse;
use super::{runtime, say};
use crate::config::Config;
use crate::decisions::Standing as Course;
use crate::decisions::told::{CostsFrom, Instead, Told, ToldCandidate};
use crate::printable;

/// The largest body that is asked about; the router's own bound may be lower.
const BODY_MAX: u64 = 1 << 30;

/// Asks a running router why a request went where it went, or where one would go. With `--config`, what another
/// configuration would have done in its place.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["body", "request"])))]
pub struct ExplainArgs {
    /// An OpenAI request, a chat or a completion, that is not sent; `-` reads it from standard input.
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// A decision that was made: the request's x-request-id, or else its number.
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    request: Option<String>,
    /// Score it under this configuration's policy and weights, too.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const AFTER: &str = "\
A dry run reads, tokenizes and matches the body as if it had come now. It reserves nothing and is sent nowhere. While every
worker is full there is no choice to explain: it fails, though a request would wait.

Under another configuration the candidates are those that were recorded: what workers held, and their load. Policy,
weights, fallback and what happens while all are full are the new ones; what tiers are worth and how far views are
believed stays as it was recorded. A policy that learns keeps the costs that were recorded where it made the decision,
has no weights (predicted, round_robin), and sessions and objectives are as they were; otherwise, and preble always, it
begins without memory, as approx_tree and approx_lru do in the place of any other. The answer says which. Nobody is chosen
by what was not found out, as a prompt that the running policy does not read, or how it begins, by which chwbl goes, or
what it would add, by which blocks and predicted go: a dry run finds it out.

--json: the answer of GET /api/v1/decisions/{id}; with --config {\"made\": …, \"under\": …, \"same\": true or false,
\"costs\": \"candidates\" or \"record\" or \"assumptions\"}: where those under the other configuration are from; where
they are \"unread\", \"under\" and \"same\" are null.

Exit codes: 0 told, 1 failed or the configuration has faults, 2 wrong use or an unreadable file.";

impl ExplainArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.config.as_deref().map(Config::load).transpose()?;
        let body = self.body.as_deref().map(read).transpose()?;
        let runtime = runtime()?;
        let port = self.admin.port(&runtime)?;
        let asking = async {
            match (body, &self.request) {
                (Some(body), _) => port.post(&["api", "v1", "explain"], body).await,
                (None, id) => port.get(&["api", "v1", "decisions", id.as_deref().unwrap_or_default()], &[]).await,
            }
        };
        let made: Told = runtime.block_on(asking)?;
        let under = config.map(|config| rescored(&made, &config)).transpose()?;
        say(format_args!(
            "{}\n",
            if self.json { as_json(&made, under.as_ref())? } else { printable::lines(&as_text(&made, under.as_ref())) }
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().take(BODY_MAX).read_to_end(&mut body)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(BODY_MAX).read_to_end(&mut body))
    };
    read.with_context(|| format!("{}: cannot be read", path.display())).or_misuse()?;
    Ok(body)
}

/// The same decision by the policy and weights of `config`.
fn rescored(made: &Told, config: &Config) -> anyhow::Result<Instead> {
    let routing = &config.routing;
    let (credit, half_life) = (config.index.in_flight_credit.get(), config.engines.half_life.get());
    let scheduler = routing.scheduler(routing.policy, credit, half_life);
    let objectives = routing.objectives.of(made.question.shape.class);
    made.under(&scheduler, objectives).context("under the other configuration nobody is chosen")
}

fn as_json(made: &Told, under: Option<&Instead>) -> anyhow::Result<String> {
    Ok(match under {
        None => serde_json::to_string_pretty(made)?,
        Some(Instead { told, costs, .. }) => {
            let told = Some(told).filter(|_| *costs != CostsFrom::Unread);
            let same = told.map(|told| same(made, told));
            serde_json::to_string_pretty(&json!({"made": made, "under": told, "same": same, "costs": costs}))?
        }
    })
}

fn same(made: &Told, under: &Told) -> bool {
    (&made.row.worker, made.row.rank) == (&under.row.worker, under.row.rank)
}

pub(super) fn as_text(made: &Told, under: Option<&Instead>) -> String {
    let mut text = String::new();
    let row = &made.row;
    let number = if row.number == 0 { "dry run".to_owned() } else { format!("decision {}", row.number) };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{number}, request {}, model {}", row.request, row.model);
    let _ = if made.question.unread {
        write!(text, "prompt of about {} tokens, which was not read: its policy goes without", row.prompt_tokens)
    } else {
        write!(
            text,
            "prompt {} tokens: {} promised where it goes, {} at best; {} to compute",
            row.prompt_tokens, row.overlap_tokens, row.best_overlap_tokens, row.new_tokens
        )
    };
    if let Some(reported) = row.reported_cached_tokens {
        let _ = write!(text, "; the engine had {reported}");
    }
    if let Some(ms) = row.ttft_ms {
        let _ = write!(text, "; first token after {ms} ms");
    }
    text.push_str(match row.outcome {
        Some(Course::UnderWay) => "; under way",
        Some(Course::Failed) => "; the worker failed it, or refused it",
        Some(Course::GivenUp) => "; its client left, or its time was over",
        Some(Course::Answered) | None => "",
    });
    text.push('\n');
    told(&mut text, made);
    if !made.reproduced {
        text.push_str("its policy has learned or was changed since: terms are told where they still make the cost\n");
    }
    if let Some(Instead { told: under, costs, session_unknown }) = under {
        if *costs == CostsFrom::Unread {
            return text + unread(made, under.row.policy).trim_end();
        }
        text.push_str(if same(made, under) { "\nthe same" } else { "\nanother one" });
        text.push_str(" under the other configuration\n");
        told(&mut text, under);
        text.push_str(&basis(*costs, under.row.policy));
        if *session_unknown {
            text.push_str(SESSION_UNKNOWN);
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// What is to be known where the other configuration keeps sessions together.
const SESSION_UNKNOWN: &str = "no session is known of this request: where the running router does not tell them apart \
    (`routing.sessions.weight: 0`), nobody knows where the turns before it would have gone\n";

/// Why nobody is chosen under the other configuration, and what helps.
fn unread(made: &Told, policy: PolicyName) -> String {
    let question = &made.question;
    let lacks_blocks = matches!(policy, PolicyName::Blocks | PolicyName::Predicted);
    let lacking = match (question.unread, lacks_blocks, question.shape.opening_characters) {
        (true, _, _) => "this prompt was not read",
        (false, true, _) => "how many blocks this prompt would add was not looked at",
        (false, false, None) => "how this prompt begins was not looked at",
        (false, false, Some(characters)) => {
            return format!(
                "\nnobody can be told under the other configuration: the key of this prompt is of its first {characters} \
                 characters, and `routing.chwbl.prefix_characters` is another there: ask a router that has the same\n"
            );
        }
    };
    format!(
        "\nnobody can be told under the other configuration: {lacking}, since the running policy does not go by \
         that. `routing.shadow` asks the other policy about each request, and a dry run (`--body`) finds it out for one\n"
    )
}

/// What is to be known of costs that no weights have made.
fn basis(costs: CostsFrom, policy: PolicyName) -> String {
    match costs {
        CostsFrom::Candidates | CostsFrom::Unread => String::new(),
        CostsFrom::Record => format!(
            "{policy} learns and has no weights: these are the costs that were recorded, which no weights change\n"
        ),
        CostsFrom::Assumptions => format!(
            "{policy} goes by what it has seen, and begins here without memory: these costs are what it assumes at first. What \
             it does later is told by `routing.shadow: [{policy}]`, and by `warmpath replay` on a trace\n"
        ),
    }
}

fn told(text: &mut String, told: &Told) {
    let row = &told.row;
    let _ = writeln!(text, "{} by {} ({}): {}", row.worker, row.policy, row.decided_by, row.why);
    let names = terms(&told.considered);
    let mut table = vec![header(row.unit.as_deref(), &names)];
    table.extend(told.considered.iter().map(|candidate| line(candidate, &names, told.question.unread)));
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| table.iter().filter_map(move |row| Some(row.get(column)?.chars().count())).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in &table {
        let mut shown = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at < 2 { write!(shown, "{cell:<width$} ") } else { write!(shown, " {cell:>width$}") };
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
}

/// The names of all terms, in the order in which they are told.
fn terms(considered: &[ToldCandidate]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for term in considered.iter().flat_map(|candidate| &candidate.terms) {
        if !names.contains(&term.name) {
            names.push(term.name.clone());
        }
    }
    names
}

fn header(unit: Option<&str>, names: &[String]) -> Vec<String> {
    let cost = unit.map_or_else(|| "cost".to_owned(), |unit| format!("cost ({unit})"));
    let fixed = ["", "worker"].map(str::to_owned).into_iter().chain([cost]);
    let seen = ["cached", "new", "requests", "blocks", "standing"].map(str::to_owned);
    fixed.chain(names.iter().cloned()).chain(seen).collect()
}

fn line(candidate: &ToldCandidate, names: &[String], unread: bool) -> Vec<String> {
    let ToldCandidate { worker, rank, chosen, cost, terms, seen } = candidate;
    let name = if *rank == 0 { worker.clone() } else { format!("{worker}/{rank}") };
    let mut cells = vec![if *chosen { ">".to_owned() } else { String::new() }, name];
    cells.push(cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.4}")));
    cells.extend(names.iter().map(|name| {
        let term = terms.iter().find(|term| term.name == *name);
        let shown = |term: &crate::decisions::told::ToldTerm| {
            format!("{}{:.4}", if term.joins == "multiplies" { "×" } else { "" }, term.value)
        };
        term.map_or_else(|| "-".to_owned(), shown)
    }));
    // A cache's size that was only learned is what it has had at least.
    let at_least = if seen.total_is_learned { "+" } else { "" };
    let blocks = format!("{}/{}{at_least}", seen.active_blocks.0, seen.total_blocks.0);
    let standing = match seen.standing {
        Standing::Open => "open",
        Standing::Full => "full",
        Standing::HeldBack => "held back",
        Standing::Out => "out",
    };
    let of_prompt = |tokens: Tokens| if unread { "-".to_owned() } else { tokens.0.to_string() };
    cells.extend([of_prompt(seen.cached_tokens), of_prompt(seen.new_tokens), seen.requests.to_string(), blocks]);
    cells.push(standing.to_owned());
    cells
}
