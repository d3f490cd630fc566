//! What a search came to, as a page with plots.

use warmpath_core::count::real_len;

use super::figures::{Aim, Figures};
use super::outcome::{Cell, Outcome, SHOWN, Share};
use crate::report::{Bars, Page, Plot, Section, Series, Table};

/// The page of a search on the trace of this name.
pub fn page(trace: &str, outcome: &Outcome) -> Page {
    let fleets: Vec<String> = outcome.cells.iter().map(Cell::name).collect();
    Page::new(format!("Weights of {} for {}", outcome.policy, outcome.aim))
        .lead(unbroken(&format!("{} Trace: {trace}. Workers × speed: {}.", outcome.said(), fleets.join(", "))))
        .fact("held back", outcome.change(outcome.change_held_back))
        .fact("tuned on", outcome.change(outcome.change_tuned))
        .fact("choices of weights", outcome.points.to_string())
        .fact("simulations", outcome.simulations.to_string())
        .section(parts(outcome))
        .section(weights(outcome))
        .section(front(outcome))
        .section(worlds(outcome))
}

/// The text, where no number is parted from its unit at the end of a line.
fn unbroken(text: &str) -> String {
    text.replace(" %", "\u{a0}%").replace(" × ", "\u{a0}×\u{a0}").replace(" points", "\u{a0}points")
}

fn titles<const N: usize>(titles: [&str; N]) -> Vec<String> {
    titles.map(str::to_owned).to_vec()
}

/// Start and best on both parts of the trace.
fn parts(outcome: &Outcome) -> Section {
    let head = titles(["", "start, tuned on", "found, tuned on", "start, held back", "found, held back"]);
    let columns = [&outcome.start.tuned, &outcome.found.tuned, &outcome.start.held_back, &outcome.found.held_back];
    let row = |(name, show): &super::outcome::Shown| {
        std::iter::once((*name).to_owned()).chain(columns.map(|share| show(&share.all))).collect()
    };
    let names: Vec<String> = outcome.cells.iter().map(Cell::name).collect();
    let bars = |name: &str, share: &Share| {
        Bars::new(name, share.cells.iter().map(|figures| height(outcome.aim, figures)).collect())
    };
    let groups = [
        bars("start, tuned on", columns[0]),
        bars("found, tuned on", columns[1]),
        bars("start, held back", columns[2]),
        bars("found, held back", columns[3]),
    ];
    Section::new("What was found, beside what it began with")
        .text(format!(
            "The search saw the first {} requests that count. The {} behind them were held back: nothing was chosen by \
             them. They come once the fleet has run empty, and are drawn {} times with other chances. Times are geometric \
             means over all fleets and loads, there over all draws as well, so that none counts for more than another.",
            outcome.tuned_requests,
            outcome.held_back_requests,
            outcome.changes_held_back.len()
        ))
        .table(Table { head, rows: SHOWN.iter().map(row).collect() })
        .plot(by_aim(
            outcome.aim,
            Plot::bars(title(outcome.aim), "workers × speed", unit(outcome.aim), &names, &groups),
        ))
}

fn title(aim: Aim) -> &'static str {
    match aim {
        Aim::MeanTtft => "Mean time to first token by fleet and load",
        Aim::P99Ttft => "99th percentile of the time to first token by fleet and load",
        Aim::Goodput => "Share of good answers by fleet and load",
    }
}

fn unit(aim: Aim) -> &'static str {
    if aim == Aim::Goodput { "" } else { "ms" }
}

fn by_aim(aim: Aim, plot: Plot) -> Plot {
    if aim == Aim::Goodput { plot.share_y() } else { plot }
}

fn height(aim: Aim, figures: &Figures) -> f64 {
    if aim == Aim::Goodput { figures.good } else { aim.score(figures) }
}

fn weights(outcome: &Outcome) -> Section {
    let value = |weights: &std::collections::BTreeMap<String, serde_json::Value>, name: &str| {
        weights.get(name).map(ToString::to_string).unwrap_or_default()
    };
    let row =
        |name: &String| vec![name.clone(), value(&outcome.start.weights, name), value(&outcome.found.weights, name)];
    let head = titles(["weight", "start", "found"]);
    let mut best = f64::INFINITY;
    let course = outcome.tried.iter().enumerate().map(|(place, figures)| {
        best = best.min(outcome.aim.score(figures));
        let shown = if outcome.aim == Aim::Goodput { 1.0 - best } else { best };
        (real_len(place + 1), shown)
    });
    let course = Series::new("best so far", course.collect());
    let plot = Plot::lines(
        "The best so far, of what was measured on all of the tuned part",
        "choice",
        unit(outcome.aim),
        &[course],
    );
    Section::new("Weights")
        .table(Table { head, rows: outcome.start.weights.keys().map(row).collect() })
        .plot(by_aim(outcome.aim, plot.tight_y()))
}

/// All that was measured, and what nothing beats.
fn front(outcome: &Outcome) -> Section {
    let place = |figures: &Figures| (figures.ttft_mean_ms, figures.ttft_p99_ms);
    let series = [
        Series::new("measured", outcome.tried.iter().map(place).collect()).scattered(),
        Series::new("not beaten", outcome.front.iter().map(|point| place(&point.tuned)).collect()).scattered(),
        Series::new("start", vec![place(&outcome.start.tuned.all)]).scattered(),
        Series::new("found", vec![place(&outcome.found.tuned.all)]).scattered(),
    ];
    let mut head = titles(["TTFT mean", "TTFT p99", "ITL mean", "hit rate"]);
    head.extend(outcome.start.weights.keys().cloned());
    let row = |point: &super::outcome::FrontPoint| {
        let Figures { ttft_mean_ms, ttft_p99_ms, itl_mean_ms, hit_rate, .. } = point.tuned;
        let mut row = vec![
            format!("{ttft_mean_ms:.1} ms"),
            format!("{ttft_p99_ms:.1} ms"),
            format!("{itl_mean_ms:.2} ms"),
            format!("{:.1} %", hit_rate * 100.0),
        ];
        row.extend(point.weights.values().map(ToString::to_string));
        row
    };
    Section::new("What nothing else beats in everything")
        .text("By mean and 99th percentile of the time to first token and mean gap between tokens, on the tuned part.")
        .plot(
            Plot::lines("Mean against 99th percentile of the time to first token", "mean, ms", "p99, ms", &series)
                .tight_y(),
        )
        .table(Table { head, rows: outcome.front.iter().map(row).collect() })
}

fn worlds(outcome: &Outcome) -> Section {
    let section = Section::new("With other timing constants");
    if outcome.worlds.is_empty() {
        return section.text("What was found is what the search began with.");
    }
    let names: Vec<String> = outcome.worlds.iter().map(super::outcome::World::name).collect();
    let bars = |name: &str, figures: fn(&super::outcome::World) -> &Figures| {
        Bars::new(name, outcome.worlds.iter().map(|world| height(outcome.aim, figures(world))).collect())
    };
    let groups = [bars("start", |world| &world.start), bars("found", |world| &world.found)];
    let plot = Plot::bars("On the requests that were held back", "", unit(outcome.aim), &names, &groups);
    section
        .text(format!(
            "The constants of a timing model are estimates. With each of them 30 % smaller and larger, the weights found \
             are better than the start in {} of {} cases.",
            outcome.survived(),
            outcome.worlds.len()
        ))
        .plot(by_aim(outcome.aim, plot))
}
