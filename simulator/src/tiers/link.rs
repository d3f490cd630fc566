//! Ways over which KV moves: a bandwidth that transfers share, and a latency.

use std::fmt;
use std::str::FromStr;

use warmpath_core::count::real_len;

use crate::clock::Ms;

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// From the start of a transfer to its first byte.
    pub latency: Ms,
}

/// Why a text names no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no link: a number of GB/s above 0, or one of {}", LinkSpec::known())]
pub struct LinkError {
    /// The text.
    text: String,
}

impl LinkSpec {
    /// Links with a name, effective bandwidths in one direction. `3fs-node` is a share of the 6.6 TiB/s that 180 nodes of
    /// 3FS give together; `egs` and `lingjun-storage` are what Alibaba's GPU machines have for storage.
    pub const PRESETS: [(&'static str, Self); 7] = [
        ("pcie5x16", Self::of(50e9)),
        ("100gbe", Self::of(10e9)),
        ("egs", Self::of(20e9)),
        ("lingjun-storage", Self::of(25e9)),
        ("lingjun-scale-out", Self::of(200e9)),
        ("ndr", Self::of(40e9)),
        ("3fs-node", Self::of(6.6 * 1_099_511_627_776.0 / 180.0)),
    ];

    /// A link of this many bytes a second, without latency.
    pub const fn of(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, latency: Ms::ZERO }
    }

    /// How long `bytes` take by themselves.
    pub fn time(&self, bytes: f64) -> Ms {
        Ms(self.latency.0 + 1e3 * bytes / self.bytes_per_second)
    }

    fn known() -> String {
        Self::PRESETS.map(|(name, _)| name).join(", ")
    }
}

impl FromStr for LinkSpec {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if let Some((_, spec)) = Self::PRESETS.iter().find(|(name, _)| *name == text) {
            return Ok(*spec);
        }
        let gigabytes = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
        let unknown = || LinkError { text: text.chars().take(64).collect() };
        gigabytes.map(|speed| Self::of(speed * 1e9)).ok_or_else(unknown)
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::PRESETS.iter().find(|(_, spec)| spec == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.bytes_per_second / 1e9),
        }
    }
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferId(u64);

#[derive(Clone, Copy, Debug)]
struct Transfer {
    id: TransferId,
    bytes: f64,
    arrived: f64,
    /// When its first byte can come.
    from: Ms,
}

impl Transfer {
    /// Rounding leaves less than a byte undone.
    fn is_whole(&self) -> bool {
        self.bytes - self.arrived < 1.0
    }
}

/// A link on which all transfers go equally fast. A change costs O(transfers under way).
#[derive(Clone, Debug)]
pub struct Link {
    spec: LinkSpec,
    now: Ms,
    under_way: Vec<Transfer>,
    started: u64,
}

impl Link {
    /// A link on which nothing is under way.
    pub fn new(spec: LinkSpec) -> Self {
        Self { spec, now: Ms::ZERO, under_way: Vec::new(), started: 0 }
    }

    /// Begins to transfer `bytes`.
    pub fn start(&mut self, now: Ms, bytes: f64) -> TransferId {
        self.advance(now);
        let id = TransferId(self.started);
        self.started += 1;
        self.under_way.push(Transfer { id, bytes, arrived: 0.0, from: self.now + self.spec.latency });
        id
    }

    /// Ends a transfer, and says how many of its bytes have arrived. None are missing of one that is whole.
    pub fn stop(&mut self, now: Ms, id: TransferId) -> f64 {
        self.advance(now);
        let Some(at) = self.under_way.iter().position(|transfer| transfer.id == id) else { return 0.0 };
        let transfer = self.under_way.swap_remove(at);
        if transfer.is_whole() { transfer.bytes } else { transfer.arrived }
    }

    /// Ends a transfer whose bytes nobody wants any more, as of the last time that the link was looked at.
    pub fn cancel(&mut self, id: TransferId) {
        self.under_way.retain(|transfer| transfer.id != id);
    }

    /// Whether all bytes of a transfer that was not ended have arrived.
    pub fn is_whole(&mut self, now: Ms, id: TransferId) -> bool {
        self.advance(now);
        self.under_way.iter().any(|transfer| transfer.id == id && transfer.is_whole())
    }

    /// When the next transfer will be whole if none begins or ends before; none if nothing is under way.
    pub fn next_whole(&mut self, now: Ms) -> Option<Ms> {
        self.advance(now);
        let mut copy = self.clone();
        while copy.under_way.iter().any(|transfer| !transfer.is_whole()) {
            copy.turn(Ms(f64::INFINITY))?;
            if copy.under_way.iter().zip(&self.under_way).any(|(then, now)| then.is_whole() && !now.is_whole()) {
                return Some(copy.now);
            }
        }
        None
    }

    fn advance(&mut self, now: Ms) {
        while self.now < now && self.turn(now).is_some() {}
        if self.now < now {
            self.now = now;
        }
    }

    /// Goes on to `until`, or to the next moment at which the number of those changes who share. None if nobody moves.
    fn turn(&mut self, until: Ms) -> Option<()> {
        let now = self.now;
        let begun = |transfer: &&Transfer| !transfer.is_whole() && transfer.from <= now;
        let sharing = self.under_way.iter().filter(begun).count();
        let per_ms = self.spec.bytes_per_second / 1e3 / real_len(sharing.max(1));
        let ends = self.under_way.iter().filter(begun).map(|transfer| (transfer.bytes - transfer.arrived) / per_ms);
        let starts = self.under_way.iter().filter(|transfer| !transfer.is_whole() && transfer.from > now);
        let span = ends.chain(starts.map(|transfer| (transfer.from - now).0)).min_by(f64::total_cmp)?;
        let span = span.min((until - now).0);
        for transfer in self.under_way.iter_mut().filter(|transfer| !transfer.is_whole() && transfer.from <= now) {
            transfer.arrived += per_ms * span;
        }
        self.now += Ms(span);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(bytes_per_ms: f64, latency: f64) -> Link {
        Link::new(LinkSpec { bytes_per_second: bytes_per_ms * 1e3, latency: Ms(latency) })
    }

    #[test]
    fn four_thousand_tokens_of_an_8b_model_take_26_8435_ms_at_20_gb_a_second() {
        let spec: LinkSpec = "20".parse().unwrap();
        assert_eq!((spec.time(4096.0 * 131_072.0).0 * 1e4).round() / 1e4, 26.8435);
    }

    #[test]
    fn what_begins_together_shares_and_what_is_alone_has_all() {
        let mut link = link(10.0, 0.0);
        let (long, short) = (link.start(Ms(0.0), 100.0), link.start(Ms(4.0), 20.0));
        assert_eq!(link.next_whole(Ms(4.0)), Some(Ms(8.0)), "5 a millisecond each");
        assert!(!link.is_whole(Ms(7.5), short));
        assert!(link.is_whole(Ms(8.0), short));
        assert_eq!(link.stop(Ms(8.0), short), 20.0);
        assert_eq!(link.next_whole(Ms(8.0)), Some(Ms(12.0)), "40 + 20 have come, 40 are left");
        assert_eq!(link.stop(Ms(9.0), long), 70.0);
        assert_eq!((link.next_whole(Ms(9.0)), link.stop(Ms(9.0), long)), (None, 0.0));
    }

    #[test]
    fn a_whole_transfer_that_nobody_has_ended_shares_no_longer() {
        let mut link = link(10.0, 0.0);
        let (short, long) = (link.start(Ms(0.0), 20.0), link.start(Ms(0.0), 100.0));
        assert_eq!(link.next_whole(Ms(5.0)), Some(Ms(12.0)));
        assert!(link.is_whole(Ms(5.0), short));
        assert_eq!(link.stop(Ms(11.0), long), 90.0);
    }

    #[test]
    fn nothing_comes_before_the_latency_is_over() {
        let mut link = link(10.0, 3.0);
        let first = link.start(Ms(1.0), 50.0);
        assert_eq!(link.next_whole(Ms(1.0)), Some(Ms(9.0)));
        assert_eq!(link.stop(Ms(4.0), first), 0.0);
        let second = link.start(Ms(4.0), 50.0);
        assert_eq!(link.stop(Ms(8.0), second), 10.0);
    }

    #[test]
    fn every_preset_is_parsed_and_printed_alike() {
        for (name, spec) in LinkSpec::PRESETS {
            assert_eq!(name.parse::<LinkSpec>().unwrap(), spec);
            assert_eq!(spec.to_string(), name);
        }
        let speeds = LinkSpec::PRESETS.map(|(_, spec)| (spec.bytes_per_second / 1e8).round() / 10.0);
        assert_eq!(speeds, [50.0, 10.0, 20.0, 25.0, 200.0, 40.0, 40.3]);
        let node = LinkSpec::PRESETS[6].1.bytes_per_second / f64::from(1 << 30);
        assert_eq!((node * 10.0).round() / 10.0, 37.5, "GiB a second");
        assert_eq!("12.5".parse::<LinkSpec>().unwrap().to_string(), "12.5");
        for bad in ["", "0", "-1", "inf", "fast"] {
            assert!(bad.parse::<LinkSpec>().is_err(), "{bad}");
        }
    }
}
