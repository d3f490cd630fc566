//! What a replay showed, as a page with plots: each fleet and load by itself, and the policies on it side by side.

use warmpath_core::count::{real, real_len};
use warmpath_simulator::fleet::{Outcome, RequestOutcome};

use super::report::{Row, shown};
use super::simulated::{Trials, Tried};
use crate::report::plot::{Bars, Plot, Series};
use crate::report::{Page, Section, Table};

/// Points of a line; more are not seen.
const POINTS: usize = 240;

/// The page of all that was tried on the trace of this name.
pub fn page(trace: &str, trials: &Trials<'_>, tried: &[Tried]) -> Page {
    let hours = trials.prepared().span().0 / 3_600_000.0;
    let input: u64 = (0..trials.prepared().len()).map(|number| u64::from(trials.prepared().lengths(number).0)).sum();
    let mut page = Page::new(format!("Replay of {trace}"))
        .lead(
            "Simulated engines in virtual time, behind the scheduler, the index and the decoder of the gateway. Requests \
             arrive as the trace says, whatever became of those before them, unless the command sets clients that wait for \
             answers. Times are those of requests that were completed.",
        )
        .fact("requests", trials.prepared().len().to_string())
        .fact("prompt tokens", format!("{:.1} M", real(input) / 1e6))
        .fact("recorded over", format!("{hours:.2} h"));
    let whole: Vec<&Tried> = tried.iter().filter(|tried| tried.row.ablation.is_none()).collect();
    if let Some(best) = whole.iter().min_by(|one, other| one.row.ttft_ms.mean.total_cmp(&other.row.ttft_ms.mean)) {
        page = page.fact("lowest mean TTFT", format!("{:.0} ms, {}", best.row.ttft_ms.mean, best.row.policy));
    }
    let all = Section::new("All figures").table(figures(&whole));
    page = page.section(match incomplete(&whole) {
        Some(text) => all.text(text),
        None => all,
    });
    let mut fleets: Vec<(usize, f64)> = Vec::new();
    for row in whole.iter().map(|tried| &tried.row) {
        if !fleets.contains(&(row.workers, row.speed)) {
            fleets.push((row.workers, row.speed));
        }
    }
    for (workers, speed) in fleets {
        let of_fleet =
            whole.iter().filter(|tried| tried.row.workers == workers && tried.row.speed.total_cmp(&speed).is_eq());
        page = page.section(fleet(trials, &of_fleet.copied().collect::<Vec<_>>()));
    }
    let ablations: Vec<&Row> = tried.iter().map(|tried| &tried.row).filter(|row| row.ablation.is_some()).collect();
    if !ablations.is_empty() {
        page = page.section(ablated(&ablations));
    }
    page
}

/// Of how many requests the figures of those rows are in which not all were completed.
fn incomplete(tried: &[&Tried]) -> Option<String> {
    let rows = tried.iter().map(|tried| &tried.row).filter(|row| row.completed < row.requests);
    let told = rows.map(|row| {
        let Row { policy, workers, speed, completed, requests, .. } = row;
        format!("{policy}, {workers} workers, speed {speed}: {completed} of {requests}")
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("Requests that were completed, whose times these are: {}.", told.join("; ")))
}

fn figures(tried: &[&Tried]) -> Table {
    let head = [
        "policy",
        "workers",
        "speed",
        "hit rate",
        "reachable",
        "TTFT mean, ms",
        "TTFT p50, ms",
        "TTFT p99, ms",
        "ITL mean, ms",
        "E2E mean, ms",
        "requests/s",
        "requests max/mean",
        "new tokens max/mean",
        "balance",
    ];
    let row = |row: &Row| {
        vec![
            row.policy.clone(),
            row.workers.to_string(),
            row.speed.to_string(),
            row.hit_rate.map_or_else(|| "–".to_owned(), percent),
            percent(row.reachable_hit_rate),
            format!("{:.0}", row.ttft_ms.mean),
            format!("{:.0}", row.ttft_ms.p50),
            format!("{:.0}", row.ttft_ms.p99),
            format!("{:.1}", row.itl_ms.mean),
            format!("{:.0}", row.e2e_ms.mean),
            format!("{:.2}", row.requests_per_s),
            shown(row.requests_max_over_mean, 2),
            shown(row.new_tokens_max_over_mean, 2),
            shown(row.load_balance_score, 3),
        ]
    };
    Table { head: head.map(str::to_owned).to_vec(), rows: tried.iter().map(|tried| row(&tried.row)).collect() }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The policies on one fleet at one speed.
fn fleet(trials: &Trials<'_>, tried: &[&Tried]) -> Section {
    let Some(first) = tried.first().map(|tried| &tried.row) else { return Section::new("") };
    let by_policy = |points: fn(&Outcome) -> Vec<(f64, f64)>| -> Vec<Series> {
        tried.iter().map(|tried| Series::new(tried.row.policy.clone(), thinned(points(&tried.outcome)))).collect()
    };
    let mut hits = by_policy(hit_rate);
    hits.push(Series::new("reachable", bound(trials, tried, first)).dashed());
    let workers: Vec<String> = (1..=first.workers).map(|worker| worker.to_string()).collect();
    let requests = |tried: &&Tried| {
        let counts = tried.row.requests_by_worker.iter().copied().map(real_len);
        Bars::new(tried.row.policy.clone(), counts.collect())
    };
    let computed = |tried: &&Tried| Bars::new(tried.row.policy.clone(), computed(&tried.outcome, first.workers));
    let names: Vec<String> = tried.iter().map(|tried| tried.row.policy.clone()).collect();
    let times =
        |name: &str, figure: fn(&Row) -> f64| Bars::new(name, tried.iter().map(|tried| figure(&tried.row)).collect());
    let ttft = [
        times("mean", |row| row.ttft_ms.mean),
        times("p50", |row| row.ttft_ms.p50),
        times("p90", |row| row.ttft_ms.p90),
        times("p99", |row| row.ttft_ms.p99),
    ];
    Section::new(format!("{} workers, {} times as fast as recorded", first.workers, first.speed))
        .plot(Plot::bars("Time to first token", "", "ms", &names, &ttft))
        .plot(
            Plot::lines("Time to first token: share of requests at or below", "ms", "", &by_policy(ttft_shares))
                .log_x()
                .share_y(),
        )
        .plot(Plot::lines("Hit rate so far, against what one cache as large as all reaches", "s", "", &hits).share_y())
        .plot(Plot::lines(
            "Requests that wait in the engines' queues",
            "s",
            "",
            &by_policy(|outcome| waiting(outcome, sum)),
        ))
        .plot(Plot::lines("The longest queue of one engine", "s", "", &by_policy(|outcome| waiting(outcome, most))))
        .plot(Plot::lines("Deviation of the workers' KV load over its mean", "s", "", &by_policy(balance)))
        .plot(Plot::bars("Requests by worker", "worker", "", &workers, &tried.iter().map(requests).collect::<Vec<_>>()))
        .plot(Plot::bars(
            "Prompt tokens computed by worker",
            "worker",
            "millions",
            &workers,
            &tried.iter().map(computed).collect::<Vec<_>>(),
        ))
}

/// The reachable hit rate by time, at the speed of these trials.
fn bound(trials: &Trials<'_>, tried: &[&Tried], row: &Row) -> Vec<(f64, f64)> {
    let course = tried.first().map_or_else(Vec::new, |tried| trials.reachable_by_time(tried));
    thinned(course.into_iter().map(|(at, rate)| (at / 1e3 / row.speed, rate)).collect())
}

/// About as many points as are seen, the first and the last among them.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(POINTS).max(1);
    let last = points.len().saturating_sub(1);
    points.into_iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last).map(|(_, point)| point).collect()
}

fn completed(outcome: &Outcome) -> impl Iterator<Item = &RequestOutcome> {
    outcome.requests.iter().filter(|request| request.completed)
}

fn ttft_shares(outcome: &Outcome) -> Vec<(f64, f64)> {
    let mut times: Vec<f64> = completed(outcome).map(|request| request.ttft.0).collect();
    times.sort_by(f64::total_cmp);
    let count = real_len(times.len().max(1));
    times.into_iter().enumerate().map(|(place, ms)| (ms, real_len(place + 1) / count)).collect()
}

fn hit_rate(outcome: &Outcome) -> Vec<(f64, f64)> {
    let known = outcome.samples.iter().filter(|sample| sample.input_tokens > 0);
    known.map(|sample| (sample.at.0 / 1e3, real(sample.cached_tokens) / real(sample.input_tokens))).collect()
}

fn waiting(outcome: &Outcome, over: fn(&[u32]) -> u32) -> Vec<(f64, f64)> {
    outcome.samples.iter().map(|sample| (sample.at.0 / 1e3, f64::from(over(&sample.waiting)))).collect()
}

fn sum(counts: &[u32]) -> u32 {
    counts.iter().sum()
}

fn most(counts: &[u32]) -> u32 {
    counts.iter().copied().max().unwrap_or(0)
}

fn balance(outcome: &Outcome) -> Vec<(f64, f64)> {
    outcome.samples.iter().map(|sample| (sample.at.0 / 1e3, sample.balance)).collect()
}

fn computed(outcome: &Outcome, workers: usize) -> Vec<f64> {
    let mut millions = vec![0.0; workers];
    for request in completed(outcome) {
        let worker = usize::from(request.worker.unwrap_or_default());
        millions[worker] += f64::from(request.input_tokens - request.cached_tokens) / 1e6;
    }
    millions
}

fn ablated(rows: &[&Row]) -> Section {
    let head = [
        "policy",
        "workers",
        "speed",
        "without",
        "hit rate",
        "TTFT mean",
        "TTFT p99",
        "ITL mean",
        "E2E mean",
        "requests/s",
    ];
    let mut table = Table { head: head.map(str::to_owned).to_vec(), rows: Vec::new() };
    for row in rows {
        let Some(left_out) = &row.ablation else { continue };
        table.rows.push(vec![
            row.policy.clone(),
            row.workers.to_string(),
            row.speed.to_string(),
            left_out.without.clone(),
            format!("{:+.2} %", left_out.hit_rate * 100.0),
            format!("{:+.1} ms", left_out.ttft_mean_ms),
            format!("{:+.1} ms", left_out.ttft_p99_ms),
            format!("{:+.2} ms", left_out.itl_mean_ms),
            format!("{:+.1} ms", left_out.e2e_mean_ms),
            format!("{:+.3}", left_out.requests_per_s),
        ]);
    }
    Section::new("What each effect of the model is worth")
        .text("The difference that it makes to leave the effect out; hit rates in percentage points.")
        .table(table)
}
