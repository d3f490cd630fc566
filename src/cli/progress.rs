//! How far long work is, told on standard error.

use indicatif::{ProgressBar, ProgressStyle};

use crate::telemetry::has_moves;

/// A bar over `total` of what `unit` says; none where standard error is no terminal that a line can be written over on.
pub(super) fn bar(total: usize, unit: &str) -> ProgressBar {
    if !has_moves(&std::io::stderr()) {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(total).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template(&format!("[{{wide_bar}}] {{pos}}/{{len}} {unit}, {{eta}} left"));
    bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
    bar
}
