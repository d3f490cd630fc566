//! What a [`Repair`](super::Repair) wants done, and what it tells of itself.

use std::time::Duration;

use warmpath_core::trust::ViewState;

/// What the owner of a repair does next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Applies the batch to the view.
    Apply(T),
    /// Empties the view; if a snapshot is being put in, it is given up.
    Clear(Emptied),
    /// Asks the source.
    Ask(Ask),
    /// Tells whoever decides how far the view can be believed from now on.
    View(ViewState),
    /// Takes note that something was repaired.
    Repaired(Repaired),
}

/// Why a view is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// The engine's process began anew, with an empty cache.
    Restarted,
    /// So many batches are lost for good, as far as anybody knows how many.
    Lost(u64, Cold),
}

/// Why a view began empty although its engine's cache may not have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// Events were lost, and the source brings nothing again.
    NoReplay,
    /// The source does not go back far enough, and there is no snapshot.
    HistoryGone,
    /// The source did not answer, several times.
    Unanswered,
    /// More came than can be held meanwhile.
    Overflow,
    /// What came cannot be read.
    Unreadable,
    /// It was filled from a snapshot of a view that began in the middle itself.
    Inherited,
}

impl Cold {
    /// In one word, for a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoReplay => "no_replay",
            Self::HistoryGone => "history_gone",
            Self::Unanswered => "unanswered",
            Self::Overflow => "overflow",
            Self::Unreadable => "unreadable",
            Self::Inherited => "inherited",
        }
    }

    /// Whether another snapshot may fill what is missing. Whoever gave one of a view that began in the middle learns no
    /// more of it until the engine's process begins anew, of which the events tell.
    pub(super) fn may_be_filled(self) -> bool {
        self != Self::Inherited
    }
}

/// Names a question, so that what answers it is told from a late answer to an earlier one. Each is used once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskId(u64);

impl AskId {
    /// The name of the next question.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// All that there is was handed on.
    Whole,
    /// It failed or was given up: there may be more.
    CutShort,
}

/// Something that a source can be asked for. It is answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// All batches from this number on that are still there.
    Replay {
        /// What the answers are to name.
        id: AskId,
        /// The first.
        from: u64,
    },
    /// The worker's blocks, from whoever keeps them.
    Snapshot {
        /// What the answers are to name.
        id: AskId,
    },
}

/// How a view was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was missing.
    Whole,
    /// What was missing was sent again.
    Replayed,
    /// It was filled from a snapshot.
    Snapshot,
    /// It was emptied.
    Cleared(Cold),
}

impl Outcome {
    /// In one word, for a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Replayed => "replayed",
            Self::Snapshot => "snapshot",
            Self::Cleared(cold) => cold.name(),
        }
    }
}

/// A repair that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// How it ended.
    pub outcome: Outcome,
    /// Batches that were sent again, known ones among them.
    pub replayed: u64,
    /// Attempts that failed before.
    pub failures: u32,
    /// From the first doubt to the end.
    pub took: Duration,
}
