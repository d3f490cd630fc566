//! Reports as a browser shows them: nothing runs out of its place, nothing covers anything else, and all text can be read,
//! light and dark, on a wide window and on a narrow one.
//!
//! `WARMPATH_TEST_BROWSER` names the browser (`scripts/check.sh` sets it); without it there is nothing to look with.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The Mooncake conversation trace.
const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/mooncake-conversation.jsonl.gz");

/// Notes in the document what is wrong with it; the pages themselves have no scripts.
const LOOK: &str = r#"<pre id="seen"></pre><script>
const faults = [];
const box = element => element.getBoundingClientRect();
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
if (wide > 0) faults.push(`the page is ${wide} px wider than its window`);
if (innerWidth >= 1200) {
  for (const table of document.querySelectorAll('.wide'))
    if (table.scrollWidth > table.clientWidth) faults.push(`"${table.textContent.slice(0, 40)}" is ${table.scrollWidth - table.clientWidth} px too wide`);
}
let texts = 0;
for (const svg of document.querySelectorAll('figure > svg')) {
  const title = svg.getAttribute('aria-label'), frame = box(svg), labels = [...svg.querySelectorAll('text')];
  texts += labels.length;
  for (const label of labels) {
    const at = box(label);
    if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.top < frame.top - 1 || at.bottom > frame.bottom + 1)
      faults.push(`${title}: "${label.textContent}" runs out of the plot`);
  }
  labels.forEach((one, place) => labels.slice(place + 1).forEach(other => {
    const a = box(one), b = box(other);
    if (a.width && b.width && a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2)
      faults.push(`${title}: "${one.textContent}" and "${other.textContent}" cover each other`);
  }));
  for (const mark of svg.querySelectorAll('.bar, .dot, .curve')) {
    const at = box(mark);
    if (at.left < frame.left - 2 || at.right > frame.right + 2 || at.top < frame.top - 2 || at.bottom > frame.bottom + 2)
      faults.push(`${title}: a ${mark.getAttribute('class')} runs out of the plot`);
  }
}
const parts = colour => colour.match(/[\d.]+/g).map(Number);
const light = colour => parts(colour).slice(0, 3).map(part => part / 255)
  .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const ground = element => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (parts(colour)[3] !== 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
for (const element of document.querySelectorAll('h1, h2, p, dt, dd, figcaption, li, th, td, svg text')) {
  const style = getComputedStyle(element), ink = element.tagName === 'text' ? style.fill : style.color;
  const ratio = contrast(ink, ground(element));
  if (ratio < 4.5) faults.push(`"${element.textContent}" has a contrast of ${ratio.toFixed(1)}`);
}
for (const mark of document.querySelectorAll('svg .bar, svg .dot')) {
  const ratio = contrast(getComputedStyle(mark).fill, ground(mark));
  if (ratio < 1.8) faults.push(`a ${mark.getAttribute('class')} has a contrast of ${ratio.toFixed(1)}`);
}
document.getElementById('seen').textContent = JSON.stringify({
  faults: [...new Set(faults)], texts, plots: document.querySelectorAll('figure').length,
  dark: matchMedia('(prefers-color-scheme: dark)').matches, width: innerWidth });
</script>"#;

/// The status page, which has its figures from the admin port.
const STATUS: &str = include_str!("../src/http/admin/page.html");

/// Tells what the page's own functions make of what they are given.
const GIVEN: &str = r#"<pre id="seen"></pre><script>
{
const told = {};
const point = (requests, prompt_tokens, hit_rate) =>
  ({at_ms: 0, requests, prompt_tokens, hit_rate, first_tokens: 0, ttft_ms: null, requests_max_over_mean: null});
tiles({step_ms: 5000, points: [point(8, 80, 1), point(8, 80, 1), point(0, 0, null), point(1, 1000, 0), point(0, 0, null)]});
const tile = document.querySelector('.tile');
told.hit_rate = tile.querySelector('.big').textContent;
told.lines = [...tile.querySelectorAll('polyline')].map(line => line.getAttribute('points'));
told.areas = tile.querySelectorAll('polygon').length;
const lines = more => {
  health({status: 'ok', ready: false, degraded: [], off_duty: [], not_ready: null, version: '1', ...more});
  return [...document.querySelectorAll('#troubles li')].map(line => line.textContent);
};
told.unserved = lines({not_ready: 'nobody', off_duty: ['w: draining']});
told.once = lines({not_ready: 'nobody', degraded: ['disk', 'nobody']});
told.well = lines({ready: true});
window.fetch = async () => ({status: 401});
const refused = sent => { token = sent; return ask('/').catch(error => error.message); };
refused('').then(message => { told.missing = message; return refused('x'); }).then(message => {
  told.wrong = message;
  document.getElementById('seen').textContent = JSON.stringify(told);
});
}
</script>"#;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn made(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let page = folder.join(format!("{name}.html"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    let command = command.args([name, "--trace", TRACE, "--html", page.to_str().unwrap()]).args(options);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&page).unwrap().replace("</main>", &format!("</main>{LOOK}"));
    std::fs::write(&page, text).unwrap();
    page
}

/// What a browser with a window of this width sees of a page.
fn seen(browser: &str, folder: &Path, page: &Path, width: u32, dark: bool) -> Value {
    let scheme = if dark { "0" } else { "1" };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--timeout=60000"])
        .arg(format!("--window-size={width},1000"))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .expect("the browser runs");
    let document = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = document.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (told, _) = told.unwrap_or_else(|| panic!("{browser}: {}", String::from_utf8_lossy(&output.stderr)));
    let told = told.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&told).expect("the script tells in JSON")
}

#[test]
fn the_status_page_shows_what_it_is_told() {
    let Ok(browser) = std::env::var("WARMPATH_TEST_BROWSER") else {
        eprintln!("SKIPPED: WARMPATH_TEST_BROWSER names no browser");
        return;
    };
    let folder = Folder(std::env::temp_dir().join(format!("warmpath-status-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let page = folder.0.join("status.html");
    std::fs::write(&page, STATUS.replace("</body>", &format!("{GIVEN}</body>"))).unwrap();
    let told = seen(&browser, &folder.0, &page, 1300, false);
    assert_eq!(told["hit_rate"], "13.8 %", "160 of 1160 tokens");
    // Two points, a gap, and one alone.
    let lines = ["0.00,4.74 40.00,4.74 40.00,4.74", "120.00,39.00 120.00,39.00"];
    assert_eq!((&told["lines"], &told["areas"]), (&json!(lines), &json!(2)));
    assert_eq!(told["unserved"], json!(["nobody", "w: draining"]));
    assert_eq!((&told["once"], &told["well"]), (&json!(["nobody", "disk"]), &json!([])));
    assert_eq!(told["missing"], "an admin token is needed: press Token");
    assert_eq!(told["wrong"], "the token is not that of listen.admin_token: press Token");
}

#[test]
fn every_report_can_be_read_light_and_dark_wide_and_narrow() {
    let Ok(browser) = std::env::var("WARMPATH_TEST_BROWSER") else {
        eprintln!("SKIPPED: WARMPATH_TEST_BROWSER names no browser");
        return;
    };
    let folder = Folder(std::env::temp_dir().join(format!("warmpath-{}-{}", "pages".repeat(20), std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let few = ["--requests", "240"];
    let replay = ["--policy", "kv,round_robin,least_requests", "--workers", "4,20", "--speed", "4", "--ablate"];
    let optimize = ["--eviction", "lru,lfu", "--workers", "1,4"];
    let tune = ["--speed", "4,8", "--trials", "12"];
    let pages = [
        (made(&folder.0, "replay", &[&few[..], &replay].concat()), 16),
        (made(&folder.0, "optimize", &[&few[..], &optimize].concat()), 4),
        (made(&folder.0, "tune", &[&few[..], &tune].concat()), 4),
    ];
    let mut faults = Vec::new();
    for (page, plots) in &pages {
        for (width, dark) in [(1300, false), (1300, true), (600, false)] {
            let seen = seen(&browser, &folder.0, page, width, dark);
            assert_eq!((&seen["dark"], &seen["width"]), (&dark.into(), &width.into()), "{}", page.display());
            assert!(seen["plots"].as_u64().unwrap() >= *plots && seen["texts"].as_u64().unwrap() > 30, "{seen}");
            let found = seen["faults"].as_array().unwrap().iter();
            let what =
                format!("{} {width} px{}", page.file_name().unwrap().display(), if dark { ", dark" } else { "" });
            faults.extend(found.map(|fault| format!("{what}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
