//! Reading a part of the stream in order, however fast it could be sent and however little the client may hold.
//!
//! Messages are asked for in parts that the client has room for. Of what a server sends by itself, as fast as it can, a
//! small client drops most, finds that out by silence, and begins anew behind the little that it has got.

use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Info, Stream};
use futures_util::StreamExt;

/// Messages that are asked for at once. More are asked for when half of them have come, so that one and a half as many are
/// on their way at most: fewer than the smallest subscription has room for (`events.nats.queue_messages`).
const PART: usize = 512;

/// How long the server waits with what was asked for, and how often it says that it does. Two times that without a word,
/// and the reading has failed.
const ASKED_FOR: Duration = Duration::from_secs(30);
const ALIVE: Duration = Duration::from_secs(5);

/// How long the server remembers a reading for which nobody asks.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// One subject's messages in the stream, from some place on.
pub(super) struct Reader<'a, I = Info> {
    stream: Stream<I>,
    subject: &'a str,
    messages: pull::Stream,
    /// The place of the last message.
    read: u64,
    /// Messages since the reading began, as the server counts them.
    count: u64,
    /// Messages that were there already when the reading began.
    pub(super) pending: u64,
}

/// A message, its place in the stream, and how many follow it there.
pub(super) struct Read {
    pub(super) message: Message,
    pub(super) place: u64,
    pub(super) pending: u64,
}

impl<'a, I> Reader<'a, I> {
    /// Reads what lies behind the place `read`; 0 is before the first message.
    ///
    /// # Errors
    /// When the server refuses, or does not answer.
    pub(super) async fn open(stream: Stream<I>, subject: &'a str, read: u64) -> Result<Self, async_nats::Error> {
        let (messages, pending) = consume(&stream, subject, read).await?;
        Ok(Self { stream, subject, messages, read, count: 0, pending })
    }

    /// What comes next; none when nobody brings any more. May be dropped and called again.
    ///
    /// # Errors
    /// When the server refuses, or is silent.
    pub(super) async fn next(&mut self) -> Result<Option<Read>, async_nats::Error> {
        loop {
            let Some(message) = self.messages.next().await.transpose()? else { return Ok(None) };
            let (place, pending, number) =
                message.info().map(|info| (info.stream_sequence, info.pending, info.consumer_sequence))?;
            if number == self.count + 1 {
                (self.read, self.count) = (place, number);
                return Ok(Some(Read { message, place, pending }));
            }
            // Something was lost on the way: once more from behind what has come.
            (self.messages, _) = consume(&self.stream, self.subject, self.read).await?;
            self.count = 0;
        }
    }
}

/// All messages of `subject` behind a place, and how many there are now.
async fn consume<I>(stream: &Stream<I>, subject: &str, read: u64) -> Result<(pull::Stream, u64), async_nats::Error> {
    let consumer = stream
        .create_consumer(pull::Config {
            filter_subject: subject.to_owned(),
            deliver_policy: match read {
                0 => DeliverPolicy::All,
                read => DeliverPolicy::ByStartSequence { start_sequence: read + 1 },
            },
            ack_policy: AckPolicy::None,
            inactive_threshold: FORGOTTEN_AFTER,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        })
        .await?;
    let pending = consumer.cached_info().num_pending;
    let messages =
        consumer.stream().max_messages_per_batch(PART).expires(ASKED_FOR).heartbeat(ALIVE).messages().await?;
    Ok((messages, pending))
}
