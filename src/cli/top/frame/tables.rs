//! The two tables of a frame, and what is said of the row that is selected.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, HighlightSpacing, Row, Table, TableState};

use super::{BAD, FINE, SOFT, STRONG, WARN, is_active, sources, titled};
use crate::cli::top::figures::{clock, count, percent, short, span};
use crate::cli::top::looker::{Decision, Picture, Source, Worker};
use crate::cli::top::state::{Pane, State};

/// From so many columns on there is room for the model's name.
const WIDE: u16 = 100;

/// Columns of a name.
pub(super) const NAME: u16 = 24;

/// The same, or as many as the longest name has where it is to be read whole.
pub(super) fn name_width(picture: &Picture, live: bool) -> u16 {
    if live {
        return NAME;
    }
    let workers = picture.workers.iter().map(Worker::name);
    let sources = picture.bus.sources.iter().map(Source::name);
    let chosen = picture.decisions.iter().map(Decision::chosen);
    let longest = workers.chain(sources).chain(chosen).map(|name| name.chars().count()).max();
    u16::try_from(longest.unwrap_or_default()).unwrap_or(u16::MAX).max(NAME)
}

/// Columns of workers behind the name: heading, width, whether numbers stand in it.
const COLUMNS: [(&str, u16, bool); 10] = [
    ("state", 8, false),
    ("in flight", 9, true),
    ("queue", 5, true),
    ("KV use", 6, true),
    ("hits", 5, true),
    ("blocks", 7, true),
    ("events", 7, true),
    ("trust", 5, true),
    ("breaker", 7, false),
    ("model", 16, false),
];

pub(super) fn draw_workers(frame: &mut Frame<'_>, area: Rect, state: &mut State, live: bool) {
    let workers = &state.picture.workers;
    let up = workers.iter().filter(|worker| worker.state == "up").count();
    let place = place(&state.workers, workers.len(), live);
    let title = format!("Workers: {up} of {} up{place} ", workers.len());
    let columns = &COLUMNS[..if area.width >= WIDE { COLUMNS.len() } else { COLUMNS.len() - 1 }];
    let heading = columns.iter().map(|(name, _, is_number)| cell((*name).to_owned(), *is_number, SOFT));
    let heading = Row::new(std::iter::once(cell("worker".to_owned(), false, SOFT)).chain(heading));
    let rows = workers.iter().map(|worker| {
        let cells = figures(worker).into_iter().zip(columns);
        let cells = cells.map(|((text, style), (_, _, is_number))| cell(text, *is_number, style));
        Row::new(std::iter::once(Cell::from(worker.name())).chain(cells))
    });
    let widths = columns.iter().map(|(_, width, _)| Constraint::Length(*width));
    let table = Table::new(rows, std::iter::once(Constraint::Fill(1)).chain(widths)).header(heading);
    let active = is_active(state, Pane::Workers, live);
    render(frame, area, table.block(titled(title, active)), (&mut state.workers, active, live));
}

pub(super) fn draw_decisions(frame: &mut Frame<'_>, area: Rect, state: &mut State, live: bool) {
    let place = place(&state.decisions, state.picture.decisions.len(), live);
    let title = if state.picture.history.points.is_empty() {
        "Decisions are not kept (decisions.kept is 0) ".to_owned()
    } else {
        format!("Decisions: {} so far{place} (UTC; cached of prompt tokens; first token) ", state.picture.decided)
    };
    let rows = state.picture.decisions.iter().map(|decision| {
        let (came, style) = came(decision);
        Row::new([
            cell(clock(decision.at_ms), false, SOFT),
            Cell::from(decision.chosen()),
            cell(format!("{}/{}", decision.overlap_tokens, decision.prompt_tokens), true, Style::new()),
            cell(came, true, style),
            cell(decision.why.clone(), false, SOFT),
        ])
    });
    let name = if area.width >= WIDE { name_width(&state.picture, live) } else { 14 };
    let widths = [8, name, 15, 11].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let table = Table::new(rows, widths);
    let active = is_active(state, Pane::Decisions, live);
    render(frame, area, table.block(titled(title, active)), (&mut state.decisions, active, live));
}

pub(super) fn render(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    (state, active, live): (&mut TableState, bool, bool),
) {
    if !live {
        frame.render_widget(table, area);
        return;
    }
    let highlight = if active { Style::new().add_modifier(Modifier::REVERSED) } else { STRONG };
    let table = table.row_highlight_style(highlight).highlight_symbol(">").highlight_spacing(HighlightSpacing::Always);
    frame.render_stateful_widget(table, area, state);
}

/// Which row of how many is selected.
pub(super) fn place(table: &TableState, len: usize, live: bool) -> String {
    table.selected().filter(|_| live).map(|at| format!(", row {} of {len}", at + 1)).unwrap_or_default()
}

pub(super) fn cell(text: String, is_number: bool, style: Style) -> Cell<'static> {
    let line = Line::styled(text, style);
    Cell::from(if is_number { line.right_aligned() } else { line })
}

/// What stands behind a worker's name, in the order of [`COLUMNS`].
fn figures(worker: &Worker) -> [(String, Style); 10] {
    let plain = Style::new();
    let condition = match worker.condition.as_str() {
        "active" => FINE,
        "down" => BAD,
        _ => WARN,
    };
    let breaker = match worker.breaker.as_str() {
        "open" => BAD,
        "trial" => WARN,
        _ => plain,
    };
    let trust = match worker.trust_weight {
        weight if weight >= 0.95 => plain,
        weight if weight >= 0.5 => WARN,
        _ => BAD,
    };
    let waiting = worker.engine.as_ref().and_then(|engine| engine.waiting);
    let full = if worker.kv_use() >= 0.9 { WARN } else { plain };
    [
        (worker.condition.clone(), condition),
        (format!("{}/{}", worker.in_flight.sequences, worker.max_num_seqs), plain),
        (count(waiting), plain),
        (percent(Some(worker.kv_use()), 0), full),
        (percent(Some(worker.hit_rate), 0), plain),
        (worker.index_blocks.to_string(), plain),
        (span(worker.last_event_age_s), plain),
        (format!("{:.2}", worker.trust_weight), trust),
        (worker.breaker.clone(), breaker),
        (worker.model.clone(), SOFT),
    ]
}

/// How long the first token took, or how the request stands.
fn came(decision: &Decision) -> (String, Style) {
    let outcome = decision.outcome.as_deref().unwrap_or_default();
    let word = || outcome.replace('_', " ");
    match (outcome, decision.ttft_ms) {
        ("failed", _) => (word(), BAD),
        ("given_up", _) => (word(), WARN),
        (_, None) => (word(), SOFT),
        (_, Some(ms)) => (span(Some(ms / 1000.0)), Style::new()),
    }
}

/// What the selected row does not tell.
pub(super) fn explained(state: &State) -> Line<'static> {
    let line = match state.pane {
        Pane::Workers => state.workers.selected().and_then(|at| state.picture.workers.get(at)).map(of_worker),
        Pane::Decisions => state.decisions.selected().and_then(|at| state.picture.decisions.get(at)).map(of_decision),
        Pane::Events => {
            state.sources.selected().and_then(|at| state.picture.bus.sources.get(at)).map(sources::explained)
        }
    };
    line.unwrap_or_default()
}

fn of_worker(worker: &Worker) -> Line<'static> {
    let Worker { model, view, reasons, in_flight, .. } = worker;
    let doubts = if reasons.is_empty() { "nothing speaks against it".to_owned() } else { reasons.join("; ") };
    let text = format!(": {model}, {} tokens to prefill, its view is {view}; {doubts}", in_flight.prefill_tokens);
    Line::from(vec![Span::styled(worker.name(), STRONG), Span::raw(text)])
}

fn of_decision(decision: &Decision) -> Line<'static> {
    let Decision { number, request, why, policy, cost, unit, .. } = decision;
    let unit = unit.as_deref().unwrap_or_default();
    let text = format!(" {request}: {why} ({policy}, cost {} {unit})", short(*cost));
    Line::from(vec![Span::styled(number.to_string(), STRONG), Span::raw(text)])
}
