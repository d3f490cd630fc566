//! What one worker looks like at one moment, or each of some: what a new request would wait for there, and whom it would make
//! wait.

use super::ONE_STEP_MS;
use super::line::Line;
use super::reading::Flow;
use super::row::{Row, rest_of_step};
use super::visits::flow;
use super::work::{Amount, Decoding, Work};
use crate::real::{Number, larger, smaller};

/// How much slower at most a request that lets its first token wait makes a worker seem, at once. What it waits beyond that
/// is waited for by others, too.
const DISPROVED_MAX: f64 = 2.0;

/// What one worker looks like at one moment, or each of some. Looking changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'r, N: Number> {
    rows: N::Each<&'r Row>,
    /// ms to fetch what all that wait have below the device, what the first has, and its step; none where nobody has.
    fetching: Option<[N; 3]>,
}

impl<'r, N: Number> View<'r, N> {
    /// Workers of whom this was noted.
    #[inline(always)]
    pub(super) fn of(rows: N::Each<&'r Row>, line: &Line) -> Self {
        let fetching = |at: usize| N::of(&rows, |row| row.fetched.map_or(0.0, |fetched| line.fetching_ms(fetched[at])));
        let has = N::any(&rows, |row| row.fetched.is_some());
        Self { rows, fetching: has.then(|| [fetching(0), fetching(1), fetching(2)]) }
    }

    /// The same where nobody has to fetch anything; else none.
    #[inline(always)]
    pub(super) fn plain(rows: N::Each<&'r Row>) -> Option<Self> {
        let has = N::any(&rows, |row| row.fetched.is_some());
        (!has).then_some(Self { rows, fetching: None })
    }

    /// How many of so many requests that wait for their first tokens are foreign: more than are known of here.
    #[inline(always)]
    pub(super) fn foreign(&self, waiting: N) -> N {
        let [.., known] = self.pace();
        larger(waiting - known - self.unheard(), N::all(0.0))
    }

    /// The streams that it decodes.
    #[inline(always)]
    pub(super) fn decoding(&self) -> Decoding<N> {
        let [_, streams, context, _] = self.pace();
        Decoding { streams, context }
    }

    /// Those of them of whom nothing was heard.
    #[inline(always)]
    pub(super) fn unheard(&self) -> N {
        let [_, _, unheard, _] = self.heard();
        unheard
    }

    /// Those who come there, but for sessions.
    #[inline(always)]
    pub(super) fn visits(&self, now: f64) -> Flow<N> {
        flow(N::turned(&N::map(&self.rows, |row: &Row| &row.visits)), now)
    }

    #[inline(always)]
    fn pace(&self) -> [N; 4] {
        N::turned(&N::map(&self.rows, |row: &Row| &row.pace))
    }

    #[inline(always)]
    fn heard(&self) -> [N; 4] {
        N::turned(&N::map(&self.rows, |row: &Row| &row.heard))
    }

    /// All that wait and the first of them.
    #[inline(always)]
    fn queue(&self) -> [Amount<N>; 2] {
        let [tokens, pairs, first, first_pairs] = N::turned(&N::map(&self.rows, |row: &Row| &row.queue));
        let fetching = self.fetching;
        [
            Amount { tokens, pairs, fetching: fetching.map(|it| it[0]) },
            Amount { tokens: first, pairs: first_pairs, fetching: fetching.map(|it| it[1]) },
        ]
    }

    /// The step in which the first of them is, the time between two tokens, and when the last came.
    #[inline(always)]
    fn step(&self) -> (Amount<N>, [N; 2]) {
        let [tokens, pairs, gap, last] = N::turned(&N::map(&self.rows, |row: &Row| &row.step));
        (Amount { tokens, pairs, fetching: self.fetching.map(|it| it[2]) }, [gap, last])
    }

    /// ms until it comes to a new request, and how much slower than the fleet's line it is. In its queue wait so many `foreign`
    /// requests, each of which brings what is `usual`; `whole` is how long answers take that do not come as streams; `decode`
    /// is by how much its own make a step longer.
    #[inline(always)]
    pub(super) fn wait(
        &self,
        now: f64,
        line: &Line,
        (foreign, usual): (N, &Work),
        (whole, decode): (f64, N),
    ) -> (N, N) {
        let nothing = N::all(0.0);
        let [slow, _, _, waiting] = self.pace();
        let [head, _, _, streams] = self.heard();
        let [mut queued, first] = self.queue();
        let (step, since_token) = self.step();
        // Before who has nothing to compute, others come to the next step.
        let decode = waiting.if_positive(decode);
        queued.tokens = queued.tokens + N::all(usual.tokens) * foreign;
        queued.pairs = queued.pairs + N::all(usual.pairs) * foreign;
        let queued_ms = line.ms_beside(&queued, decode);
        let elapsed = larger(N::all(now) - head, nothing);
        let alone = slow * line.ms_beside(&first, decode);
        // Its token comes with the step, in which others are computed, too.
        let expected = elapsed.if_above(alone, slow * line.ms_beside(&step, decode), alone);
        // Of an answer that is no stream nothing is heard before it is whole.
        let whole = if whole > 0.0 { larger(expected, N::all(whole)) } else { nothing };
        let heard = streams.if_above(nothing, expected, whole);
        // What takes longer than it should is slower than it seemed, and what has taken long already will take as long again:
        // an estimate that was disproved must not make the queue look empty.
        let times = smaller(larger(elapsed / heard, N::all(1.0)), N::all(DISPROVED_MAX));
        let slower = slow * heard.if_above(nothing, times, N::all(1.0));
        let silent = heard.if_positive(larger(elapsed - N::all(DISPROVED_MAX) * heard, nothing));
        let until_done = larger(slower * queued_ms - elapsed, nothing) + silent;
        let until_step = slow * queued_ms + rest_of_step(since_token, now);
        (waiting.if_above(nothing, until_done, until_step), waiting.if_above(nothing, slower, slow))
    }

    /// ms for which it has been silent beyond what can be, where answers in one piece took as long as `longest`: it may hang,
    /// and then will for as long again.
    #[inline(always)]
    pub(super) fn mute(&self, now: f64, longest: f64) -> N {
        if longest <= 0.0 {
            return N::all(0.0);
        }
        let [_, silent, unheard, _] = self.heard();
        let beyond = N::all(now) - silent - N::all(DISPROVED_MAX * longest);
        unheard.if_positive(larger(beyond, N::all(0.0)))
    }

    /// ms by which work of so many thousands of `tokens`, sent now, delays the first tokens of others, where all of it takes
    /// `more` ms: those that come from the step in which it begins. It cannot delay a step under way.
    #[inline(always)]
    pub(super) fn in_step(&self, now: f64, tokens: N, more: N) -> N {
        let [mates, room, mates_after, room_after] = N::turned(&N::map(&self.rows, |row: &Row| &row.next));
        let [head, ..] = self.heard();
        let (begun, one) = (N::all(now) - head, N::all(ONE_STEP_MS));
        let (mates, room) = (one.if_above(begun, mates, mates_after), one.if_above(begun, room, room_after));
        tokens.if_positive(mates * more * smaller(room / tokens, N::all(1.0)))
    }

    /// ms between two tokens of the streams that it decodes; 0 where there are none.
    #[inline(always)]
    pub(super) fn gap(&self) -> N {
        let (_, [gap, _]) = self.step();
        gap
    }
}
