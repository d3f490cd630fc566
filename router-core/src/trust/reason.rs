//! Why a view is not believed, for people.

use std::fmt;
use std::time::Duration;

use crate::units::{BlockSize, Tokens};

/// One reason to believe a target's view less. Made of counts alone: nothing of any prompt is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Events are missing and being fetched.
    Repairing,
    /// The connection was made anew, nobody can be asked, and the next event tells whether any is missing.
    Unproven,
    /// The engine counts other tokens in prompts than the router.
    TokenCounts {
        /// By how many they differed last.
        difference: u32,
    },
    /// The engine finds less in its cache than the view promises.
    PromisesTooMuch {
        /// Tokens promised last.
        promised: Tokens,
        /// Tokens reported then.
        reported: Tokens,
    },
    /// The engine finds more in its cache than the view promises.
    PromisesTooLittle {
        /// Tokens promised last.
        promised: Tokens,
        /// Tokens reported then.
        reported: Tokens,
    },
    /// Its events carry blocks of another size than its pool's.
    BlockSize {
        /// The engine's size, where it says so.
        carried: Option<u32>,
        /// The pool's.
        configured: BlockSize,
    },
    /// Requests finish that must have filled blocks, and no event tells of them.
    NoEvents {
        /// For how long.
        silent: Duration,
    },
}

impl Reason {
    /// Every label, for metrics.
    pub const LABELS: [&str; 7] = [
        "repairing",
        "unproven",
        "token_counts",
        "promises_too_much",
        "promises_too_little",
        "block_size",
        "no_events",
    ];

    /// Its name in metrics.
    pub fn label(&self) -> &'static str {
        let [repairing, unproven, token_counts, too_much, too_little, block_size, no_events] = Self::LABELS;
        match self {
            Reason::Repairing => repairing,
            Reason::Unproven => unproven,
            Reason::TokenCounts { .. } => token_counts,
            Reason::PromisesTooMuch { .. } => too_much,
            Reason::PromisesTooLittle { .. } => too_little,
            Reason::BlockSize { .. } => block_size,
            Reason::NoEvents { .. } => no_events,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Repairing => write!(f, "events are missing and being fetched"),
            Reason::Unproven => {
                write!(
                    f,
                    "nothing was heard over the present connection yet: the next event tells whether any is missing"
                )
            }
            Reason::TokenCounts { difference } => {
                write!(f, "token counts differ by {difference}: chat template?")
            }
            Reason::PromisesTooMuch { promised: Tokens(promised), reported: Tokens(reported) } => write!(
                f,
                "promises {promised} cached tokens, the engine reports {reported}: prefix caching off, or removals lost?"
            ),
            Reason::PromisesTooLittle { promised: Tokens(promised), reported: Tokens(reported) } => {
                write!(f, "promises {promised} cached tokens, the engine reports {reported}: events lost?")
            }
            Reason::BlockSize { carried: Some(carried), configured } => {
                write!(f, "events carry block size {carried}, configured {}", configured.get())
            }
            Reason::BlockSize { carried: None, configured } => {
                write!(f, "events carry another block size than the configured {}", configured.get())
            }
            Reason::NoEvents { silent } => {
                write!(f, "no events for {} s although requests finish", silent.as_secs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_say_what_to_look_at() {
        let size = BlockSize::new(16).unwrap();
        let (promised, reported) = (Tokens(512), Tokens(0));
        for (reason, text) in [
            (Reason::Repairing, "events are missing and being fetched"),
            (
                Reason::Unproven,
                "nothing was heard over the present connection yet: the next event tells whether any is missing",
            ),
            (Reason::TokenCounts { difference: 7 }, "token counts differ by 7: chat template?"),
            (
                Reason::PromisesTooMuch { promised, reported },
                "promises 512 cached tokens, the engine reports 0: prefix caching off, or removals lost?",
            ),
            (
                Reason::PromisesTooLittle { promised: reported, reported: promised },
                "promises 0 cached tokens, the engine reports 512: events lost?",
            ),
            (Reason::BlockSize { carried: Some(32), configured: size }, "events carry block size 32, configured 16"),
            (
                Reason::BlockSize { carried: None, configured: size },
                "events carry another block size than the configured 16",
            ),
            (Reason::NoEvents { silent: Duration::from_secs(30) }, "no events for 30 s although requests finish"),
        ] {
            assert_eq!(reason.to_string(), text);
            assert!(Reason::LABELS.contains(&reason.label()));
        }
    }
}
