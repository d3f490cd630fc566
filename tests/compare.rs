//! The page about policies, as `scripts/compare/table.jq` makes it of rows: what it says of them is what they say. And what
//! else speaks of it says what the page says.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/compare/table.jq");

/// What a search found.
const WEIGHTS: &str = r#"[{"kind": "agent", "timing": "polynomial", "trials": 6, "policies": [
    {"policy": "logit", "change_tuned": -0.03, "change_held_back": -0.02, "weights": {"logit.overlap": 2}}]}]"#;

/// What one policy did in one draw of a cell of eight workers at half of the load.
fn row(setting: &str, trace: &str, draw: u32, policy: &str, weights: &str, (mean, p99): (f64, f64)) -> Value {
    json!({
        "setting": setting, "trace": trace, "draw": draw, "timing": "polynomial", "blocks": 2048, "policy": policy,
        "weights": weights, "workers": 8, "load": 0.5, "mean": mean, "p50": mean / 2.0, "p99": p99, "itl": 10.0, "hit": 0.5,
        "reachable": 0.5, "balance": 1.1, "lost": 0,
    })
}

fn page(rows: &[Value]) -> String {
    let mut jq = Command::new("jq")
        .args(["-rs", "--argjson", "weights", WEIGHTS, "--argjson", "overload", "5000", "-f", TABLE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("jq (Debian: jq)");
    let mut input = jq.stdin.take().unwrap();
    for row in rows {
        writeln!(input, "{row}").unwrap();
    }
    drop(input);
    let output = jq.wait_with_output().unwrap();
    assert!(output.status.success());
    // Paragraphs are folded; what they say is not.
    String::from_utf8(output.stdout).unwrap().replace('\n', " ")
}

#[track_caller]
fn says(page: &str, text: &str) {
    assert!(page.contains(text), "{text}: {page}");
}

#[test]
fn a_cell_is_the_mean_of_its_draws() {
    let page = page(&[
        row("plain", "agent", 1, "predicted", "default", (100.0, 500.0)),
        row("plain", "agent", 3, "predicted", "default", (104.0, 520.0)),
        row("plain", "agent", 1, "logit", "default", (99.0, 600.0)),
        row("plain", "agent", 3, "logit", "default", (109.0, 400.0)),
    ]);
    // 102 for 104, and 510 for 500.
    says(&page, "Over all 1 cells below overload");
    says(&page, "as geometric means: `predicted` 1 and 1.02, `logit` 1.0196 and 1. Of the 0");
    says(&page, "** 1 of 2 figures");
    says(&page, "of the workloads that it was made with, 1 and 1 of 2, 0 and 0");
    says(&page, "Searches had 6 choices for each policy.");
    says(&page, "drawn 2 times");
    // 100 for 99 and 104 for 109; 500 for 600 and 520 for 400.
    says(
        &page,
        "standard deviation of 4 % (the median; at most 4 %) of a mean and 33 % (the median; at most 33 %) of a 99th",
    );
    // Of the draws, the mean of one and the 99th percentile of the other.
    says(&page, "Each draw by itself: 2 of 4 figures");
    says(&page, "the worst mean by 1 %, the worst 99th percentile by 30 %.");
    says(&page, "Both figures are in 0 of 1 cells, in 0 where others are tuned as well; in 0 is any one other policy");
    says(&page, "| agent | polynomial | 2048 | 8 | 0.5 | 102 ms | 104 ms `logit` | 0.98 |");
}

#[test]
fn what_is_lost_is_told() {
    let page = page(&[
        row("plain", "conversation", 0, "predicted", "default", (100.0, 500.0)),
        row("plain", "conversation", 0, "logit", "default", (101.0, 510.0)),
        row("plain", "conversation", 0, "logit", "tuned", (90.0, 505.0)),
        row("fresh", "agent", 7664, "predicted", "default", (100.0, 550.0)),
        row("fresh", "agent", 7664, "logit", "default", (101.0, 500.0)),
        row("one worker 2× slower", "conversation", 0, "predicted", "default", (100.0, 500.0)),
        row("one worker 2× slower", "conversation", 0, "logit", "default", (101.0, 500.0)),
        row("fresh", "few-shot", 7664, "predicted", "default", (9_000.0, 50_000.0)),
        row("fresh", "few-shot", 7664, "logit", "default", (8_000.0, 20_000.0)),
    ]);
    says(&page, "`predicted` has the lowest mean in 1, and in 0 where others are tuned as well.**");
    says(&page, "3 of 4 figures");
    says(&page, "2 where others are tuned as well; 1 and 2 are more than 3 % above the best");
    says(
        &page,
        "These are: 1 mean of `conversation`, by 11.1 % (only against tuned weights); \
         1 p99 of `agent` drawn last, by 10 %.",
    );
    // Of the trace the mean is another's, of agents the 99th percentile: nobody has both.
    says(&page, "Both figures are in 1 of 2 cells, in 0 where others are tuned as well; in 0 is any one other policy");
    says(&page, "The highest mean is 11.1 % above the best. In 0 of the 1 cells under the conditions");
    // What all others are overloaded by counts by itself.
    says(&page, "| few-shot, overloaded | | 1 | 0, 1.13 (1.13) |");
    assert!(!page.contains("Each draw by itself"));
}

#[test]
fn who_is_lower_in_both_is_told() {
    let page = page(&[
        row("plain", "agent", 1, "predicted", "default", (100.0, 500.0)),
        row("plain", "agent", 1, "logit", "default", (101.0, 490.0)),
        row("plain", "agent", 1, "logit", "tuned", (99.0, 490.0)),
        row("plain", "few-shot", 1, "predicted", "default", (100.0, 500.0)),
        row("plain", "few-shot", 1, "logit", "default", (99.0, 510.0)),
        row("plain", "few-shot", 1, "product", "default", (101.0, 490.0)),
    ]);
    says(
        &page,
        "Both figures are in 0 of 2 cells, in 0 where others are tuned as well; in 1 is any one other policy at or below",
    );
}

/// Whichever of them that is.
#[test]
fn of_those_who_hit_equally_much_the_fastest_counts() {
    let own = row("plain", "agent", 1, "predicted", "default", (100.0, 500.0));
    let [fast, slow] = [("kv", 150.0), ("logit", 400.0)]
        .map(|(policy, mean)| row("plain", "agent", 1, policy, "default", (mean, 500.0)));
    let mut rows = [own, fast, slow];
    rows[0]["hit"] = json!(0.4);
    for _ in 0..2 {
        says(&page(&rows), "the one that hits most, the fastest of equals, is 1.5 times that of `predicted` there.");
        (rows[1]["mean"], rows[2]["mean"]) = (json!(400.0), json!(150.0));
    }
}

#[test]
fn what_the_first_sentence_leaves_out_is_told_beside_it() {
    let mut rows = vec![
        row("plain", "conversation", 0, "predicted", "default", (100.0, 500.0)),
        row("plain", "conversation", 0, "logit", "default", (101.0, 510.0)),
        row("in turn", "few-shot", 1, "predicted", "default", (104.0, 500.0)),
        row("in turn", "few-shot", 1, "logit", "default", (100.0, 510.0)),
    ];
    (rows[0]["hit"], rows[0]["balance"]) = (json!(0.43), json!(1.25));
    let page = page(&rows);
    says(&page, "Over all 1 cells below overload but 1 of few-shot tasks in turn, nearest");
    // The second of them 1.04 times as long: together as the square root.
    says(&page, "`predicted` 1 and 1, `logit` 1.01 and 1.02; over all 2 `predicted` 1.0198 and 1. Of the 1");
    says(&page, "Over all 2 cells, those in turn among them, 3 of 4 figures");
    says(&page, "3 where others are tuned as well; 1 and 1 are more than 3 % above the best.");
    says(&page, "It finds less than 0.88 of what can be found in 1 of 1 cells, of which 1 are of the 1 of the trace,");
    says(&page, "of the trace, the least of them 0.86; at half of the rate");
    says(&page, "its busiest worker computes more than 1.2 times the mean in 1 of 1, at most 1.25 times.");
}

/// The word of `text` behind these words.
#[track_caller]
fn word<'a>(text: &'a str, before: &str) -> &'a str {
    let behind = text.split_once(before).unwrap_or_else(|| panic!("`{before}` is not on the page")).1;
    behind.split([' ', ',', ';']).next().unwrap()
}

/// By how many per cent a ratio is above 1.
fn percent(ratio: &str) -> f64 {
    (ratio.parse::<f64>().unwrap() - 1.0) * 100.0
}

#[test]
fn the_advice_on_tuning_says_what_the_page_says() {
    let page = include_str!("../docs/policies.md").replace('\n', " ");
    let cells = word(&page, "**Over all ");
    let nearest = page.split_once("as geometric means: ").unwrap().1;
    let (own, rest) = nearest.split_once(", `").unwrap();
    let (next, rest) = rest.split_once("` ").unwrap();
    let (own, next_ratio) = (percent(word(own, "`predicted` ")), percent(rest.split(' ').next().unwrap()));
    let (all, rest) = rest.split_once("; over all ").unwrap().1.split_once(" `predicted` ").unwrap();
    let with_turn = percent(rest.split(' ').next().unwrap());
    let lowest = word(&page, "`predicted` has the lowest mean in ");
    let behind = |text: &str| page.split_once(text).unwrap().0.rsplit(' ').next().unwrap();
    let trace = behind(" of the conversation trace and of its last third `predicted` has");
    let both = behind(" is any one other policy at or below `predicted` in both");
    let turn = page.split_once("### Few-shot tasks in turn").unwrap().1;
    let (turns, rest) = turn.split_once("| all below overload | | ").unwrap().1.split_once(" | ").unwrap();
    let lowest_in_turn = rest.split(',').next().unwrap();
    let advice = format!(
        "Below overload it has the lowest mean in {lowest} of the {trace} cells of a real trace, and over all {all} cells it \
         is {with_turn:.2} % above the lowest of each (the others at their defaults): {own:.2} % over the {cells} without \
         few-shot tasks in turn, where the next, `{next}`, is {next_ratio:.0} % above, and in {both} of which any one \
         other policy is at or below it in both mean and 99th percentile. Of the {turns} with few-shot tasks in turn it has \
         the lowest mean in {lowest_in_turn};"
    );
    says(include_str!("../docs/tuning.md"), &advice);
}
