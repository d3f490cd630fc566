//! One frame: what is known, drawn. On a terminal or as text, by the same code.

use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Sparkline, Wrap};

use super::figures::{LEVELS, clock, course, percent, recent, short, span};
use super::looker::{Picture, Point};
use super::state::{Pane, State};

mod sources;
mod tables;

/// Lines that explain what is selected.
const DETAIL: u16 = 2;

/// Lines of the figures over time: their values, and bars below.
const FIGURES: u16 = 3;

/// The most lines of what needs attention, where there is no room for all.
const TROUBLES: usize = 3;

/// What a line that goes on begins with.
const INDENT: &str = "  ";

/// Decisions that are printed.
const PRINTED: usize = 20;

const SOFT: Style = Style::new().fg(Color::DarkGray);
const FINE: Style = Style::new().fg(Color::Green);
const WARN: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

const KEYS: &str = "q quit  tab pane  j/k select  d drain  u undrain  e eject  r breaker  ? help";

const HELP: &str = " tab            workers, decisions, or
                events and other routers
 up k, down j   select
 pgup, pgdn     ten rows
 g home, G end  the first, the last
 d  drain: it finishes what it has
 u  undrain: put it back
 e  eject: what it has not begun to
    answer goes to others
 r  reset its breaker
 c  have its engine empty its cache
 q  quit";

/// Draws it as somebody at a terminal sees it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    let bottom = Layout::vertical([Constraint::Fill(1), Constraint::Length(DETAIL), Constraint::Length(1)]);
    let [top, detail, footer] = bottom.areas(area);
    draw_known(frame, top, state, true);
    frame.render_widget(Paragraph::new(tables::explained(state)).wrap(Wrap { trim: true }), detail);
    frame.render_widget(foot(state), footer);
    if state.help {
        draw_help(frame, area);
    }
}

/// The same as text, as long as it takes to show every worker, and as much wider than so many columns as names are longer than
/// usual.
pub(super) fn printed(state: &mut State, columns: u16) -> String {
    state.picture.decisions.truncate(PRINTED);
    let columns = columns.saturating_add(tables::name_width(&state.picture, false) - tables::NAME);
    let Picture { workers, decisions, bus, .. } = &state.picture;
    let told = if sources::is_told(bus) { sources::height(bus) + 1 } else { 0 };
    let troubles = wrapped(&troubles(state), columns).len();
    let rows = workers.len() + decisions.len() + told + troubles + usize::from(FIGURES) + 4;
    let size = (columns, u16::try_from(rows).unwrap_or(u16::MAX));
    text(&drawn(size, |frame| draw_known(frame, frame.area(), state, false)))
}

fn drawn((columns, rows): (u16, u16), draw: impl FnOnce(&mut Frame<'_>)) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_) = terminal.draw(draw);
    terminal.backend().buffer().clone()
}

/// Its lines, without what is empty at their ends.
fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content.chunks(usize::from(buffer.area.width).max(1)) {
        let mut whole = String::new();
        let mut covered = 0;
        for cell in line {
            // What is wide lies over the cell behind it.
            if covered == 0 {
                whole.push_str(cell.symbol());
                covered = Span::raw(cell.symbol()).width();
            }
            covered = covered.saturating_sub(1);
        }
        text.push_str(whole.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn draw_known(frame: &mut Frame<'_>, area: Rect, state: &mut State, live: bool) {
    let troubles = troubles(state);
    let troubles = if live { shown(troubles, TROUBLES) } else { wrapped(&troubles, area.width) };
    let (workers, decisions) = (state.picture.workers.len() + 2, state.picture.decisions.len() + 1);
    let rows = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
    let trouble = rows(troubles.len());
    let is_told = sources::is_told(&state.picture.bus);
    let summary = u16::from(is_told);
    let left = area.height.saturating_sub(1 + trouble + summary + FIGURES);
    // The workers get what they need, but for the half that decisions need, too.
    let workers = rows(workers).min(left.saturating_sub(rows(decisions).min(left / 2)));
    let whole = if live || !is_told { 0 } else { rows(sources::height(&state.picture.bus)) };
    let parts = [1, trouble, summary, FIGURES, workers, whole].map(Constraint::Length);
    let [head, trouble, summary, figures, workers, whole] = Layout::vertical(parts).areas(area);
    let below = whole.bottom();
    let rest = Rect { y: below, height: area.bottom().saturating_sub(below), ..area };
    frame.render_widget(heading(state), head);
    let troubles: Vec<_> = troubles.into_iter().map(|trouble| Line::styled(trouble, WARN)).collect();
    frame.render_widget(Paragraph::new(troubles), trouble);
    draw_figures(frame, figures, &state.picture);
    tables::draw_workers(frame, workers, state, live);
    if is_told {
        frame.render_widget(sources::summary(&state.picture.bus), summary);
    }
    if whole.height > 0 {
        sources::draw(frame, whole, state, live);
    }
    match state.pane {
        Pane::Events if live => sources::draw(frame, rest, state, live),
        _ => tables::draw_decisions(frame, rest, state, live),
    }
}

fn heading(state: &State) -> Paragraph<'static> {
    let Picture { health, config, .. } = &state.picture;
    let (word, style) = match (&state.fault, health.ready) {
        (Some(_), _) => ("no answer".to_owned(), BAD),
        (None, false) => ("not ready".to_owned(), BAD),
        (None, true) => (health.status.clone(), if health.status == "ok" { FINE } else { WARN }),
    };
    let mut line =
        vec![Span::styled(format!("warmpath {}", health.version), STRONG), Span::raw("  "), Span::styled(word, style)];
    if !config.hash.is_empty() {
        let hash: String = config.hash.chars().take(8).collect();
        line.push(Span::raw(format!("  config {hash} since {} UTC", clock(config.loaded_at_ms))));
    }
    if health.queued > 0 {
        line.push(Span::styled(format!("  {} waiting for a worker", health.queued), WARN));
    }
    if let Some(reload) = &config.last_reload {
        let came = if reload.ok { "followed" } else { "not followed" };
        let text = format!("  last read {} ({}): {came}", clock(reload.at_ms), reload.asked_by);
        line.push(Span::styled(text, if reload.ok { SOFT } else { BAD }));
    }
    Paragraph::new(Line::from(line))
}

/// The first of them, and how many more there are.
fn shown(mut troubles: Vec<String>, lines: usize) -> Vec<String> {
    let more = troubles.len().saturating_sub(lines);
    if more > 0 {
        troubles.truncate(lines - 1);
        troubles.push(format!("and {} more: see /healthz, or `warmpath top --once`", more + 1));
    }
    troubles
}

/// All of them whole, on as many lines as that takes: the remedy stands at the end.
fn wrapped(troubles: &[String], columns: u16) -> Vec<String> {
    let columns = usize::from(columns);
    let mut lines = Vec::new();
    for trouble in troubles {
        let mut line = String::new();
        for word in trouble.split(' ') {
            if !line.trim().is_empty() && Span::raw(&line).width() + 1 + Span::raw(word).width() > columns {
                lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
            } else if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// What needs attention.
fn troubles(state: &State) -> Vec<String> {
    let Picture { health, config, .. } = &state.picture;
    let mut all: Vec<String> = state.fault.iter().cloned().collect();
    // Why nobody is served comes first; what it says may be among the rest, too.
    all.extend(health.not_ready.clone());
    let is_new = |trouble: &&String| health.not_ready.as_ref() != Some(*trouble);
    all.extend(health.degraded.iter().filter(is_new).chain(&health.off_duty).cloned());
    all.extend(config.last_reload.iter().flat_map(|reload| reload.faults.iter().cloned()));
    if !config.needs_restart.is_empty() {
        let keys: Vec<&str> = config.needs_restart.iter().map(|change| change.key.as_str()).collect();
        all.push(format!("needs a restart: {}", keys.join(", ")));
    }
    all
}

/// A figure: its name, its value over the last minute, its course.
type Figure = (&'static str, String, fn(&Point) -> Option<f64>);

fn draw_figures(frame: &mut Frame<'_>, area: Rect, picture: &Picture) {
    let history = &picture.history;
    // The last step is not over: it would always look like a fall.
    let points = history.points.split_last().map_or(&[][..], |(_, points)| points);
    let requests: fn(&Point) -> Option<f64> = |point| Some(point.requests);
    let each_second = |requests: f64| requests * 1000.0 / warmpath_core::count::real(history.step_ms.max(1));
    let by_requests: fn(&Point) -> f64 = |point| point.requests;
    let rate = recent(points, requests, |_| 1.0).map(each_second);
    let hit_rate: fn(&Point) -> Option<f64> = |point| point.hit_rate;
    let ttft: fn(&Point) -> Option<f64> = |point| point.ttft_ms;
    let balance: fn(&Point) -> Option<f64> = |point| point.requests_max_over_mean;
    let figures: [Figure; 4] = [
        ("hit rate", percent(recent(points, hit_rate, |point| point.prompt_tokens), 1), hit_rate),
        ("first token", span(recent(points, ttft, |point| point.first_tokens).map(|ms| ms / 1000.0)), ttft),
        ("requests", rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1} /s")), requests),
        ("balance", short(recent(points, balance, by_requests)), balance),
    ];
    let columns: [Rect; 4] = Layout::horizontal([Constraint::Fill(1); 4]).spacing(2).areas(area);
    for ((name, value, figure), area) in figures.into_iter().zip(columns) {
        let [words, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let line = [Span::styled(name, SOFT), Span::raw(" "), Span::styled(value, STRONG)];
        frame.render_widget(Paragraph::new(Line::from(line.to_vec())), words);
        let course = course(points, figure, usize::from(bars.width));
        frame.render_widget(Sparkline::default().data(course).max(LEVELS).style(Style::new().fg(Color::Cyan)), bars);
    }
}

/// A heading over a table, strong where keys move.
fn titled(title: String, is_active: bool) -> Block<'static> {
    let style = if is_active { STRONG.fg(Color::Cyan) } else { SOFT };
    Block::new().borders(Borders::TOP).border_style(SOFT).title(Line::styled(title, style))
}

fn foot(state: &State) -> Paragraph<'static> {
    let line = match (&state.asked, &state.said) {
        (Some(wish), _) => Line::from(vec![Span::styled(wish.question(), STRONG), Span::styled("  y/n", WARN)]),
        (None, Some(said)) => Line::styled(said.text.clone(), if said.fine { FINE } else { BAD }),
        (None, None) => Line::styled(KEYS, SOFT),
    };
    Paragraph::new(line)
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = u16::try_from(HELP.lines().count()).unwrap_or(u16::MAX);
    let (width, height) = (40.min(area.width), (lines + 2).min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys ")), area);
}

/// Whether keys move in `pane`.
fn is_active(state: &State, pane: Pane, live: bool) -> bool {
    live && state.pane == pane
}

#[cfg(test)]
mod tests;
