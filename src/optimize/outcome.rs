//! What was found, for people: a table, CSV, and a page with plots.

use warmpath_core::count::{real, real_len};

use super::{Capacity, Outcome, Row};
use crate::report::axis::grouped;
use crate::report::{Bars, Page, Plot, Section, Series, Table};

/// Lines in one plot; more cannot be told apart.
const LINES_MAX: usize = 12;

/// A table with a line for each row.
pub fn table(outcome: &Outcome) -> String {
    let mut text = format!(
        "{:>12} {:<15} {:>7} {:<14} {:>12} {:>9} {:>9} {:>12} {:>8}\n",
        "capacity", "eviction", "workers", "placement", "block hits", "of blocks", "of tokens", "saved GPU s", "GPUs"
    );
    for row in &outcome.rows {
        text += &format!(
            "{:>12} {:<15} {:>7} {:<14} {:>12} {:>7.2} % {:>7.2} % {:>12.1} {:>8.2}\n",
            row.capacity_blocks.to_string(),
            row.eviction,
            row.workers,
            row.policy,
            row.block_hits,
            row.block_hit_rate * 100.0,
            row.hit_rate * 100.0,
            row.savings.saved_gpu_s,
            row.savings.gpus,
        );
    }
    text + &format!(
        "\n{} requests over {:.0} s, {} different blocks of {} tokens.{}\n",
        outcome.requests,
        outcome.span_s,
        outcome.unique_blocks,
        outcome.block_size,
        outcome.kv_volume.map_or(String::new(), |volume| {
            format!(" Their KV: {:.3} GB/s, {:.3} PB a day.", volume.gb_per_s, volume.pb_per_day)
        }),
    )
}

/// Comma-separated values: the rows, with a head.
pub fn csv(outcome: &Outcome) -> String {
    let mut text = "capacity_blocks,eviction,workers,policy,rule,order,blocks,block_hits,tokens,token_hits,hit_rate,\
                    block_hit_rate,saved_gpu_s,gpus_without,gpus\n"
        .to_owned();
    for row in &outcome.rows {
        let Row { capacity_blocks, eviction, workers, policy, rule, order, .. } = row;
        text += &format!(
            "{capacity_blocks},{eviction},{workers},{policy},{rule},{order},{},{},{},{},{},{},{},{},{}\n",
            row.blocks,
            row.block_hits,
            row.tokens,
            row.token_hits,
            row.hit_rate,
            row.block_hit_rate,
            row.savings.saved_gpu_s,
            row.savings.gpus_without,
            row.savings.gpus,
        );
    }
    text
}

/// Comma-separated values of the hits over time: the end of each span, its prompt tokens, and the hits at each capacity.
pub fn csv_over_time(outcome: &Outcome) -> String {
    let heads: Vec<_> = outcome.over_time_capacities.iter().map(|at| format!(",token_hits_{at}")).collect();
    let mut text = format!("until_s,tokens{}\n", heads.concat());
    for span in &outcome.over_time {
        let hits: Vec<_> = span.token_hits.iter().map(|hits| format!(",{hits}")).collect();
        text += &format!("{},{}{}\n", span.until_s, span.tokens, hits.concat());
    }
    text
}

/// A page with plots, loading nothing.
pub fn page(outcome: &Outcome, trace: &str) -> Page {
    let best = outcome.rows.iter().max_by(|one, other| one.hit_rate.total_cmp(&other.hit_rate));
    let percent = |row: &Row| format!("{:.2} %", row.hit_rate * 100.0);
    let mut page = Page::new("Capacity against hit rate")
        .lead(format!(
            "{trace}: what caches of these sizes would have hit, without time. Blocks of {} tokens; capacities are each \
             worker's.",
            outcome.block_size
        ))
        .fact("requests", grouped(real_len(outcome.requests)))
        .fact("different blocks", grouped(real_len(outcome.unique_blocks)));
    if let Some(best) = best {
        page = page
            .fact("highest token hit rate", percent(best))
            .fact("GPUs of prefill without it", format!("{:.2}", best.savings.gpus_without))
            .fact("and with it", format!("{:.2}", best.savings.gpus));
    }
    if let Some(volume) = outcome.kv_volume {
        page = page.fact("KV a day", format!("{:.3} PB", volume.pb_per_day));
    }
    page = page.section(capacity_section(outcome));
    if !outcome.over_time.is_empty() {
        page = page.section(time_section(outcome));
    }
    page.section(histograms_section(outcome)).section(rows_section(outcome))
}

/// The rows that differ only in capacity, with a name that tells them from the others.
fn lines(outcome: &Outcome) -> Vec<(String, Vec<&Row>)> {
    let mut lines: Vec<(String, Vec<&Row>)> = Vec::new();
    let is_fleet = outcome.rows.iter().any(|row| row.workers > 1 || row.policy != "pooled");
    for row in &outcome.rows {
        let name = if is_fleet {
            format!("{}, {} × {}", row.eviction, row.workers, row.policy)
        } else {
            row.eviction.clone()
        };
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rows)) => rows.push(row),
            None => lines.push((name, vec![row])),
        }
    }
    lines
}

fn capacity_section(outcome: &Outcome) -> Section {
    let mut section = Section::new("Hit rate by capacity").text(
        "Where a line turns flat, more memory buys nothing; where lines of one capacity lie apart, placement or eviction \
         does.",
    );
    for lines in lines(outcome).chunks(LINES_MAX) {
        let series: Vec<_> = lines
            .iter()
            .map(|(name, rows)| {
                let mut points: Vec<_> =
                    rows.iter().map(|row| (shown(row.capacity_blocks, outcome), row.hit_rate)).collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                Series::new(name, points)
            })
            .collect();
        let plot = Plot::lines("Token hit rate", "blocks of each worker", "of prompt tokens", &series);
        section = section.plot(plot.log_x().share_y());
    }
    section
}

/// Where a capacity stands on the axis: no bound is as good as room for every block.
fn shown(capacity: Capacity, outcome: &Outcome) -> f64 {
    let most = outcome.unique_blocks.max(1);
    real_len(if capacity == Capacity::INFINITE { most } else { capacity.0 })
}

fn time_section(outcome: &Outcome) -> Section {
    let series: Vec<_> = outcome
        .over_time_capacities
        .iter()
        .enumerate()
        .map(|(at, capacity)| {
            let spans = outcome.over_time.iter().filter(|span| span.tokens > 0);
            let points = spans.map(|span| (span.until_s, real(span.token_hits[at]) / real(span.tokens)));
            let name =
                if *capacity == Capacity::INFINITE { "no bound".to_owned() } else { format!("{capacity} blocks") };
            Series::new(name, points.collect())
        })
        .collect();
    Section::new("Hit rate over time")
        .text("One LRU cache. A cache that is large enough for the trace keeps rising; a smaller one levels off.")
        .plot(Plot::lines("Token hit rate over time", "seconds", "of prompt tokens", &series).share_y())
}

fn histograms_section(outcome: &Outcome) -> Section {
    let found = &outcome.histograms;
    let labels: Vec<_> = found.time_locality.iter().map(|bar| format!("≤{} s", bar.within_s)).collect();
    let uses = found.time_locality.iter().map(|bar| real(bar.uses)).collect();
    let locality =
        Plot::bars("Time locality", "since a block was last used", "uses", &labels, &[Bars::new("uses", uses)]);
    let labels: Vec<_> = found.access_frequency.iter().map(|bar| format!("≤{}", bar.up_to)).collect();
    let groups = [
        Bars::new("different blocks", found.access_frequency.iter().map(|bar| real(bar.blocks)).collect()),
        Bars::new("their uses", found.access_frequency.iter().map(|bar| real(bar.uses)).collect()),
    ];
    let frequency = Plot::bars("Access frequency", "uses of a block", "blocks and uses", &labels, &groups);
    Section::new("How blocks are used")
        .text(
            "A block that is not used again within the time that it stays in the cache is no hit; blocks that are used once \
             only take room.",
        )
        .plot(locality)
        .plot(frequency)
}

fn rows_section(outcome: &Outcome) -> Section {
    let head = [
        "capacity",
        "eviction",
        "workers",
        "placement",
        "block hits",
        "of blocks",
        "token hits",
        "of tokens",
        "saved GPU s",
        "GPUs",
    ];
    let rows = outcome.rows.iter().map(|row| {
        let capacity = match row.capacity_blocks {
            Capacity::INFINITE => "∞".to_owned(),
            Capacity(blocks) => grouped(real_len(blocks)),
        };
        vec![
            capacity,
            row.eviction.clone(),
            row.workers.to_string(),
            row.policy.clone(),
            grouped(real(row.block_hits)),
            format!("{:.2} %", row.block_hit_rate * 100.0),
            grouped(real(row.token_hits)),
            format!("{:.2} %", row.hit_rate * 100.0),
            format!("{:.1}", row.savings.saved_gpu_s),
            format!("{:.2}", row.savings.gpus),
        ]
    });
    let rule = outcome.rows.first().map_or("any-block", |row| row.rule.as_str());
    let text = if rule == "engine" {
        "Counted by the engine's own rule: only full blocks are stored, and the last token of a prompt is always computed."
    } else {
        "Counted by every block of the trace, partial ones included; the engine's own rule (--rule engine) is stricter."
    };
    Section::new("All rows").text(text).table(Table { head: head.map(str::to_owned).to_vec(), rows: rows.collect() })
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    fn outcome() -> Outcome {
        let request = |at_ms, ids: &[u64]| TraceRequest {
            at_ms,
            input_length: 8,
            hash_ids: ids.to_vec(),
            ..TraceRequest::default()
        };
        let requests = [request(0, &[1, 2]), request(1_000, &[1, 2]), request(2_000, &[1, 3])];
        let plan = Plan {
            block_size: 4,
            capacities: Capacities::Listed(vec![Capacity(1), Capacity::INFINITE]),
            evictions: vec![Eviction::Lru, Eviction::Lfu],
            workers: vec![1],
            placements: vec![Placement::Pooled],
            rule: Rule::AnyBlock,
            order: Order::SuffixOlder,
            ttl_ms: 0,
            seed: 1,
            us_per_token: 100.0,
            bytes_per_token: Some(1e9),
        };
        run(&requests, &plan, &|_, _| {})
    }

    #[test]
    fn the_table_and_the_values_tell_the_same() {
        let outcome = outcome();
        let table = table(&outcome);
        let line = table.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line, "1 lru 1 pooled 2 33.33 % 33.33 % 0.0 0.00");
        assert!(table.ends_with(
            "3 requests over 2 s, 3 different blocks of 4 tokens. Their KV: 12.000 GB/s, 1.037 PB a day.\n"
        ));
        let csv = csv(&outcome);
        let line = csv.lines().nth(2).unwrap();
        assert!(line.starts_with("inf,lru,1,pooled,any-block,suffix-older,6,3,24,12,0.5,0.5,0.0012,"), "{line}");
        assert_eq!(csv.lines().count(), 5);
        let csv = csv_over_time(&outcome);
        assert!(csv.starts_with("until_s,tokens,token_hits_1,token_hits_inf\n"), "{csv}");
    }

    #[test]
    fn the_page_has_a_line_for_each_eviction_and_all_rows() {
        let html = page(&outcome(), "trace <x>").render();
        assert!(html.contains("trace &lt;x&gt;: what caches"), "escaped");
        for text in ["<li>", "lfu</li>", "Time locality", "Access frequency", "Token hit rate over time", "∞"] {
            assert!(html.contains(text), "{text}");
        }
        assert!(!html.contains("<script") && !html.contains("http"));
    }
}
