//! What the process takes of its machine, as the kernel says it, and which build it is.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use warmpath_core::count::{real, real_len};

use metrics::{Gauge, Label};

use super::{BUILD, PROCESS_CPU, PROCESS_FILES, PROCESS_FILES_MAX, PROCESS_MEMORY, Registry};

/// Parts of a second in which Linux tells processor time, on every machine that it runs on here.
const TICKS: f64 = 100.0;

/// Handles of the process. Where the kernel tells nothing, they stay as they are.
#[derive(Clone)]
pub(super) struct ProcessMetrics {
    /// A count with parts of seconds, which counters do not have.
    cpu: Gauge,
    memory: Gauge,
    files: Gauge,
    files_max: Gauge,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        registry.gauge(&BUILD, vec![Label::new("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        Self {
            cpu: registry.gauge(&PROCESS_CPU, Vec::new()),
            memory: registry.gauge(&PROCESS_MEMORY, Vec::new()),
            files: registry.gauge(&PROCESS_FILES, Vec::new()),
            files_max: registry.gauge(&PROCESS_FILES_MAX, Vec::new()),
        }
    }

    /// Asks the kernel. O(open files).
    pub(super) fn measure(&self) {
        let of = Path::new("/proc/self");
        let text = |name: &str| fs::read_to_string(of.join(name)).ok();
        let told = [
            (&self.cpu, text("stat").and_then(|stat| cpu_seconds(&stat))),
            (&self.memory, text("status").and_then(|status| resident_bytes(&status))),
            (&self.files, fs::read_dir(of.join("fd")).ok().map(|files| real_len(files.count()))),
            (&self.files_max, text("limits").and_then(|limits| open_files_max(&limits))),
        ];
        for (gauge, value) in told {
            value.into_iter().for_each(|value| gauge.set(value));
        }
    }
}

/// Time in user mode and in the kernel: the twelfth and thirteenth number behind the name, which may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, numbers) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> = numbers.split_whitespace().skip(11).take(2).map_while(|number| number.parse().ok()).collect();
    (ticks.len() == 2).then(|| real(ticks.iter().sum()) / TICKS)
}

fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(real(kib) * 1024.0)
}

fn open_files_max(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok().map(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_and_what_is_odd_is_not() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 9 0 55 1 2";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2.0 * 1024.0 * 1024.0));
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files            20000   524288   files\n";
        assert_eq!(open_files_max(limits), Some(20_000.0));
        for text in ["", "x", "7 (a) S 1", "VmRSS: much", "Max open files unlimited unlimited files"] {
            assert_eq!((cpu_seconds(text), resident_bytes(text), open_files_max(text)), (None, None, None), "{text}");
        }
    }
}
