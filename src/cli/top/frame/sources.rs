//! The tables of event sources and of other routers, and the line that sums them up.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table};

use super::tables::{NAME, cell, name_width, place, render};
use super::{BAD, FINE, SOFT, STRONG, WARN, is_active, titled};
use crate::cli::top::figures::span;
use crate::cli::top::looker::{Bus, Router, Source};
use crate::cli::top::state::{Pane, State};

/// Columns of sources behind the name: heading, width, whether numbers stand in it.
const COLUMNS: [(&str, u16, bool); 8] = [
    ("over", 9, false),
    ("state", 9, false),
    ("for", 7, true),
    ("/s", 7, true),
    ("last", 7, true),
    ("lag", 7, true),
    ("gaps", 5, true),
    ("last error", 0, false),
];

/// Columns of routers behind the name.
const ROUTERS: [(&str, u16, bool); 4] =
    [("state", 9, false), ("heard", 7, true), ("in flight", 9, true), ("configuration", 0, false)];

/// Whether anything is known of them: older routers do not tell.
pub(super) fn is_told(bus: &Bus) -> bool {
    !bus.buses.is_empty() || !bus.sources.is_empty() || !bus.replicas.heard.is_empty()
}

/// Lines of both tables in whole.
pub(super) fn height(bus: &Bus) -> usize {
    let routers = bus.replicas.heard.len();
    bus.sources.len() + 2 + if routers == 0 { 0 } else { routers + 2 }
}

/// Both in one line.
pub(super) fn summary(bus: &Bus) -> Line<'static> {
    let up = bus.sources.iter().filter(|source| source.state == "connected").count();
    let all = bus.sources.len();
    // The sum of nothing is a negative 0.
    let rate = bus.sources.iter().fold(0.0, |sum, source| sum + source.events_per_s);
    let gaps: u64 = bus.sources.iter().map(|source| source.gaps).sum();
    let mut line = vec![
        Span::styled("events ", SOFT),
        Span::styled(format!("{up} of {all} connected"), if up == all { FINE } else { BAD }),
        Span::raw(format!(", {rate:.1} /s, ")),
        Span::styled(format!("{gaps} gaps"), if gaps == 0 { Style::new() } else { WARN }),
    ];
    for bus in &bus.buses {
        let (word, style) = if bus.up { ("up", FINE) } else { ("down", BAD) };
        line.push(Span::raw(format!("  {} ", bus.kind.replace('_', " "))));
        line.push(Span::styled(format!("{word} {}", span(Some(bus.for_s))), style));
    }
    let heard = &bus.replicas.heard;
    let silent = heard.iter().filter(|router| router.silent).count();
    if !heard.is_empty() {
        line.push(Span::styled("  other routers ", SOFT));
        line.push(Span::raw(format!("{}, {} in flight", heard.len(), bus.replicas.in_flight)));
    }
    if silent > 0 {
        line.push(Span::styled(format!(", {silent} silent"), BAD));
    }
    Line::from(line)
}

/// Both tables, one below the other.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &mut State, live: bool) {
    let routers = match state.picture.bus.replicas.heard.len() {
        0 => 0,
        // Not more than a third of what there is.
        len => u16::try_from(len + 2).unwrap_or(u16::MAX).min(if live { area.height / 3 } else { u16::MAX }),
    };
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(routers)]).areas(area);
    draw_sources(frame, above, state, live);
    if routers > 0 {
        draw_routers(frame, below, &state.picture.bus.replicas.heard);
    }
}

fn draw_sources(frame: &mut Frame<'_>, area: Rect, state: &mut State, live: bool) {
    let sources = &state.picture.bus.sources;
    let title = format!("Event sources: {}{} ", sources.len(), place(&state.sources, sources.len(), live));
    let rows = sources.iter().map(|source| {
        let cells = figures(source).into_iter().zip(COLUMNS);
        let cells = cells.map(|((text, style), (_, _, is_number))| cell(text, is_number, style));
        Row::new(std::iter::once(cell(source.name(), false, Style::new())).chain(cells))
    });
    let table = table(rows, ("worker", name_width(&state.picture, live)), &COLUMNS);
    let active = is_active(state, Pane::Events, live);
    render(frame, area, table.block(titled(title, active)), (&mut state.sources, active, live));
}

fn draw_routers(frame: &mut Frame<'_>, area: Rect, heard: &[Router]) {
    let rows = heard.iter().map(|router| {
        let (word, style) = match (router.silent, router.ready) {
            (true, _) => ("silent", BAD),
            (false, true) => ("ready", FINE),
            (false, false) => ("not ready", WARN),
        };
        let short: String = router.config.chars().take(8).collect();
        let config =
            if router.same_config { ("the same".to_owned(), SOFT) } else { (format!("another: {short}"), WARN) };
        Row::new([
            cell(router.name.clone(), false, Style::new()),
            cell(word.to_owned(), false, style),
            cell(span(Some(router.last_heard_s)), true, Style::new()),
            cell(router.in_flight.to_string(), true, Style::new()),
            cell(config.0, false, config.1),
        ])
    });
    let title = titled(format!("Other routers: {} ", heard.len()), false);
    frame.render_widget(table(rows, ("router", NAME), &ROUTERS).block(title), area);
}

fn table<'a>(
    rows: impl Iterator<Item = Row<'a>>,
    (name, widest): (&str, u16),
    columns: &[(&str, u16, bool)],
) -> Table<'a> {
    let heading = columns.iter().map(|(name, _, is_number)| cell((*name).to_owned(), *is_number, SOFT));
    let heading = Row::new(std::iter::once(cell(name.to_owned(), false, SOFT)).chain(heading));
    let width = |width: &u16| if *width == 0 { Constraint::Fill(1) } else { Constraint::Length(*width) };
    let widths = columns.iter().map(|(_, length, _)| width(length));
    Table::new(rows, std::iter::once(Constraint::Max(widest)).chain(widths)).header(heading)
}

/// What stands behind a source's name, in the order of [`COLUMNS`].
fn figures(source: &Source) -> [(String, Style); 8] {
    let plain = Style::new();
    let state = match source.state.as_str() {
        "connected" => FINE,
        "waiting" => WARN,
        _ => BAD,
    };
    let error = if source.state == "down" { BAD } else { SOFT };
    [
        (source.way.clone(), plain),
        (source.state.clone(), state),
        (span(Some(source.for_s)), plain),
        (format!("{:.1}", source.events_per_s), plain),
        (span(source.last_event_age_s), plain),
        (span(source.lag_s), plain),
        (source.gaps.to_string(), if source.gaps == 0 { plain } else { WARN }),
        (source.last_error.clone().unwrap_or_default(), error),
    ]
}

/// What a source's row does not tell.
pub(super) fn explained(source: &Source) -> Line<'static> {
    let Source { at, events, missing, behind, held, .. } = source;
    let error = match (&source.last_error, source.last_error_age_s) {
        (Some(error), Some(age)) => format!("; {} ago: {error}", span(Some(age))),
        _ => String::new(),
    };
    let text = format!(
        ": {at}, {events} events so far, {missing} batches lost in {} gaps, {behind} still to be read, {held} held back{error}",
        source.gaps
    );
    Line::from(vec![Span::styled(source.name(), STRONG), Span::raw(text)])
}
