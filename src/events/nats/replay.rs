//! Reading again what the stream has kept of one (worker, rank).

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::DirectGetErrorKind;
use tokio::time::timeout;

use super::follow::Line;
use super::reader::{Read, Reader};
use super::{NatsBus, stream};
use crate::events::source::{AskId, Heard, Message};
use crate::events::subject;

/// The longest silence within a replay; then it has failed.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Marks that are kept, and batches between two.
const MARKS: usize = 1024;
const APART: u64 = 64;

/// Where in the stream some batches lie, so that a short replay need not read all of it.
#[derive(Debug, Default)]
pub(super) struct Marks(VecDeque<Mark>);

#[derive(Debug)]
struct Mark {
    epoch: u64,
    seq: u64,
    at: u64,
}

impl Marks {
    /// Remembers some of the batches that pass: `at` is the place of this one in the stream.
    pub(super) fn note(&mut self, batch: &Message, at: u64) {
        let (Some(seq), Some(epoch)) = (batch.seq, batch.epoch) else { return };
        let near = |last: &Mark| last.epoch == epoch && seq < last.seq.saturating_add(APART);
        if self.0.back().is_some_and(near) {
            return;
        }
        if self.0.len() == MARKS {
            self.0.pop_front();
        }
        self.0.push_back(Mark { epoch, seq, at });
    }

    /// A place in the stream with nothing before it that has this number or a later one.
    fn before(&self, epoch: Option<u64>, seq: u64) -> Option<u64> {
        self.0.iter().rev().find(|mark| Some(mark.epoch) == epoch && mark.seq <= seq).map(|mark| mark.at)
    }
}

impl NatsBus {
    /// Hands on every batch of the newest epoch from this number on that the stream has now.
    pub(super) async fn replay(&self, line: &Line, id: AskId, from: u64) -> Result<(), async_nats::Error> {
        let losses = self.link.borrow().losses;
        if !self.settings.jetstream || !self.has_jetstream(losses).await? {
            return Ok(());
        }
        let Some(last) = self.last_message(&line.subject).await? else { return Ok(()) };
        let epoch = stream::number(Some(&last.headers), subject::EPOCH_HEADER);
        let start = line.marks.lock().unwrap_or_else(PoisonError::into_inner).before(epoch, from);
        let context = jetstream::new(self.client.clone());
        let stream = context.get_stream_no_info(subject::stream_name(&self.settings.prefix)).await?;
        let read = start.map_or(0, |start| start.saturating_sub(1));
        let mut reader = Reader::open(stream, &line.subject, read).await?;
        while let Some(Read { message, place, .. }) = timeout(SILENCE_MAX, reader.next()).await?? {
            let batch = stream::batch(&message.payload, message.headers.as_ref());
            if batch.epoch == epoch && batch.seq.is_none_or(|seq| seq >= from) {
                line.to.send(Heard::Replayed(id, line.room.take(batch).await)).await?;
            }
            if place >= last.sequence {
                break;
            }
        }
        Ok(())
    }

    /// Epoch and number of the newest batch that the stream has of a (worker, rank); none without JetStream or stream.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn last_batch(
        &self,
        (model, worker, rank): (&str, &str, u32),
    ) -> Result<Option<(u64, u64)>, async_nats::Error> {
        let losses = self.link.borrow().losses;
        if !self.settings.jetstream || !self.has_jetstream(losses).await? {
            return Ok(None);
        }
        stream::ensure(&self.client, &self.settings.prefix).await?;
        let subject = subject::events_of(&self.settings.prefix, model, worker, rank);
        let last = self.last_message(&subject).await?;
        let number = |name| stream::number(last.as_ref().map(|last| &last.headers), name);
        Ok(number(subject::EPOCH_HEADER).zip(number(subject::SEQUENCE_HEADER)))
    }

    async fn last_message(&self, subject: &str) -> Result<Option<StreamMessage>, async_nats::Error> {
        let context = jetstream::new(self.client.clone());
        let stream = context.get_stream_no_info(subject::stream_name(&self.settings.prefix)).await?;
        // Got directly: that can be allowed for one worker's subjects alone.
        match stream.direct_get_last_for_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_leads_to_the_batch_or_to_one_before_it() {
        let mut marks = Marks::default();
        for seq in 0..200 {
            marks.note(&Message { payload: vec![].into(), seq: Some(seq), epoch: Some(7) }, 1000 + 3 * seq);
        }
        assert_eq!(marks.0.len(), 4);
        for (from, at) in [(0, 1000), (63, 1000), (64, 1192), (199, 1576), (5000, 1576)] {
            assert_eq!(marks.before(Some(7), from), Some(at), "{from}");
        }
        assert_eq!((marks.before(Some(8), 64), marks.before(None, 64)), (None, None));
    }

    #[test]
    fn marks_are_bounded() {
        let mut marks = Marks::default();
        for seq in 0..2000 {
            marks.note(&Message { payload: vec![].into(), seq: Some(seq * APART), epoch: Some(7) }, seq);
        }
        assert_eq!((marks.0.len(), marks.before(Some(7), 0)), (MARKS, None));
    }
}
