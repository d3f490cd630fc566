//! The data-parallel ranks of an engine behind one address: a request names one in a header, or goes where the fewest
//! sequences are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::HeaderMap;
use tokio::sync::oneshot;

use super::driver::{Command, Commands};

/// The header by which requests name a rank, as vLLM has it.
const HEADER: &str = "x-data-parallel-rank";

/// One rank, as requests see it.
pub(super) struct Seat {
    pub(super) commands: Commands,
    sequences: Arc<AtomicUsize>,
}

/// All of them.
pub(super) struct Ranks {
    seats: Vec<Seat>,
    turn: AtomicUsize,
}

/// A rank that was named and is not there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("data_parallel_rank {named} is out of range [0, {count}).")]
pub(super) struct NoSuchRank {
    named: i64,
    count: usize,
}

/// A sequence on a rank, for as long as this lives.
pub(super) struct Seated(Arc<AtomicUsize>);

impl Seat {
    /// A rank that obeys these commands, and has no sequences yet.
    pub(super) fn new(commands: Commands) -> Self {
        Self { commands, sequences: Arc::default() }
    }

    /// One more sequence.
    pub(super) fn take(&self) -> Seated {
        self.sequences.fetch_add(1, Ordering::Relaxed);
        Seated(Arc::clone(&self.sequences))
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ranks {
    /// At least one.
    pub(super) fn new(seats: Vec<Seat>) -> Self {
        Self { seats, turn: AtomicUsize::new(0) }
    }

    /// The rank for a request with these headers. A name that is no number names nobody. Among those with as few sequences
    /// each has its turn.
    ///
    /// # Errors
    /// [`NoSuchRank`]: it names one that is not there.
    pub(super) fn choose(&self, headers: &HeaderMap) -> Result<&Seat, NoSuchRank> {
        let count = self.seats.len();
        let named = headers.get(HEADER).and_then(|name| name.to_str().ok()?.trim().parse::<i64>().ok());
        if let Some(named) = named {
            let seat = usize::try_from(named).ok().and_then(|named| self.seats.get(named));
            return seat.ok_or(NoSuchRank { named, count });
        }
        let begin = self.turn.fetch_add(1, Ordering::Relaxed) % count;
        let (front, back) = self.seats.split_at(begin);
        let fewest = back.iter().chain(front).min_by_key(|seat| seat.sequences.load(Ordering::Relaxed));
        Ok(fewest.expect("there is one rank at least"))
    }

    /// Has every rank obey, and gathers what they say; none of those that are shutting down.
    pub(super) async fn command<T>(&self, command: impl Fn(oneshot::Sender<T>) -> Command) -> Vec<Option<T>> {
        let mut said = Vec::new();
        for seat in &self.seats {
            let (answer, done) = oneshot::channel();
            said.push(match seat.commands.send(command(answer)).await {
                Ok(()) => done.await.ok(),
                Err(_) => None,
            });
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock_engine::driver;

    fn ranks(count: usize) -> Ranks {
        Ranks::new((0..count).map(|_| Seat::new(driver::commands().0)).collect())
    }

    fn place(ranks: &Ranks, headers: &HeaderMap) -> Result<usize, String> {
        let chosen = ranks.choose(headers).map_err(|error| error.to_string())?;
        Ok(ranks.seats.iter().position(|seat| std::ptr::eq(seat, chosen)).unwrap())
    }

    fn naming(rank: &str) -> HeaderMap {
        HeaderMap::from_iter([(HEADER.parse().unwrap(), rank.parse().unwrap())])
    }

    #[test]
    fn a_rank_that_is_named_is_taken_if_it_is_there() {
        let ranks = ranks(2);
        let _busy = ranks.seats[1].take();
        assert_eq!([place(&ranks, &naming("0")), place(&ranks, &naming("1"))], [Ok(0), Ok(1)]);
        for named in ["2", "-1"] {
            let refusal = format!("data_parallel_rank {named} is out of range [0, 2).");
            assert_eq!(place(&ranks, &naming(named)), Err(refusal));
        }
    }

    #[test]
    fn otherwise_it_is_the_one_with_the_fewest_sequences_in_turn() {
        let (ranks, nobody) = (ranks(3), naming("any"));
        let mut seated = Vec::new();
        for expected in [0, 1, 2, 0] {
            assert_eq!(place(&ranks, &nobody), Ok(expected));
            seated.push(ranks.seats[expected].take());
        }
        drop(seated.remove(2));
        assert_eq!([place(&ranks, &nobody), place(&ranks, &HeaderMap::new())], [Ok(2), Ok(2)]);
    }
}
