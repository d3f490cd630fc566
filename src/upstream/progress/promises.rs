//! What was promised of an answer, held against what came: cached tokens, and what its class was promised.

use std::time::Instant;

use warmpath_core::observe::Usage;
use warmpath_core::trust::Answered;

use super::{Progress, Promise, Ticket};

impl Progress {
    /// Of a whole answer: whether as much was cached as was promised.
    pub(super) fn compare(&self, now: Instant, usage: Usage) {
        let Ticket { worker, promise, sent, .. } = &self.ticket;
        worker.reported(usage);
        let Some(Promise { sender, prompt, cached, trust }) = promise else {
            return worker.unpromised(now, usage);
        };
        if !worker.tells_events {
            worker.stand_in(now, usage);
        }
        let (metrics, Some(trust)) = (&worker.metrics, trust) else { return };
        if let Some(reported) = usage.cached {
            metrics.prediction(cached.0, reported.0);
        }
        if let Some(counted) = usage.prompt {
            metrics.belief.counted(counted == *prompt);
        }
        trust.heard(now, metrics.belief.heard());
        let answered = Answered {
            sent: *sent,
            sender: *sender,
            prompt: *prompt,
            promised: *cached,
            counted: usage.prompt,
            reported: usage.cached,
            block_size: self.ticket.pool.block_size,
        };
        trust.answered(now, &answered);
    }

    /// Of an answer that has ended before its end, by what came until then.
    pub(super) fn judge_what_came(&self, now: Instant) {
        if self.started.is_none() {
            let waited = now.saturating_duration_since(self.ticket.arrived);
            self.ticket.pool.metrics.no_first_token(waited, self.ticket.objectives.ttft);
        }
        self.judge_gaps(now, Usage::default());
    }

    /// Whether its tokens were as close together as its class was promised.
    pub(super) fn judge_gaps(&self, now: Instant, usage: Usage) {
        let (Some(limit), Some(first)) = (self.ticket.objectives.itl, self.started) else { return };
        // Those of several sequences come side by side.
        let tokens = self.output(usage) / self.ticket.sequences.max(1);
        if let Some(gaps) = tokens.checked_sub(1).filter(|gaps| *gaps > 0) {
            self.ticket.pool.metrics.gaps(now.saturating_duration_since(first) / gaps, limit);
        }
    }
}
