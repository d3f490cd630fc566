//! Reading a part of the stream in order, however fast the server sends it and however little the client may hold.

use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::{Info, Stream};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::NatsBus;
use super::link::Link;

/// How often drops are told of at most: a burst has thousands, and each telling begins a repair.
const DROPS_APART: Duration = Duration::from_millis(100);

/// After drops, a reading that is silent for so long is begun anew behind what it has brought. By itself the client would
/// find out with the server's next heartbeat, up to five seconds later, and again for each part that it has room for.
const STALLED: Duration = Duration::from_millis(25);

/// Tells of messages that the client had no room for, seldom.
pub(super) struct Drops {
    link: watch::Receiver<Link>,
    told: u64,
    next: Instant,
}

impl Drops {
    /// Of those from now on.
    pub(super) fn new(bus: &NatsBus) -> Self {
        let link = bus.link.clone();
        let told = link.borrow().drops;
        Self { link, told, next: Instant::now() }
    }

    /// Waits for drops that were not told of. Cancelling it loses none.
    pub(super) async fn more(&mut self) {
        let told = self.told;
        sleep_until(self.next).await;
        let drops = self.link.wait_for(|link| link.drops != told).await.map(|link| link.drops);
        match drops {
            Ok(drops) => self.told = drops,
            Err(_) => std::future::pending().await,
        }
        self.next = Instant::now() + DROPS_APART;
    }
}

/// One subject's messages in the stream, from some place on.
pub(super) struct Reader<'a, I = Info> {
    bus: &'a NatsBus,
    stream: Stream<I>,
    subject: &'a str,
    messages: Ordered,
    /// The place of the last message.
    read: u64,
    /// Messages that were there already when the reading began.
    pub(super) pending: u64,
    drops: Drops,
    /// When, after drops, silence means that no more comes.
    stalled: Option<Instant>,
}

/// What comes next.
pub(super) enum Next {
    /// A message, its place in the stream, and how many follow it there.
    Message(Box<Message>, u64, u64),
    /// The client had no room for some; they come again.
    Drops,
    /// Nobody brings any more.
    End,
}

impl<'a, I> Reader<'a, I> {
    /// Reads what lies behind the place `read`; 0 is before the first message.
    ///
    /// # Errors
    /// When the server refuses, or does not answer.
    pub(super) async fn open(
        bus: &'a NatsBus,
        stream: Stream<I>,
        subject: &'a str,
        read: u64,
    ) -> Result<Self, async_nats::Error> {
        let drops = Drops::new(bus);
        let (messages, pending) = consume(bus, &stream, subject, read).await?;
        Ok(Self { bus, stream, subject, messages, read, pending, drops, stalled: None })
    }

    /// What comes next. May be dropped and called again.
    ///
    /// # Errors
    /// When the server refuses, or does not answer.
    pub(super) async fn next(&mut self) -> Result<Next, async_nats::Error> {
        loop {
            let stalled = self.stalled;
            let silent = async {
                match stalled {
                    Some(stalled) => sleep_until(stalled).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.messages.next() => {
                    let Some(message) = message.transpose()? else { return Ok(Next::End) };
                    let (place, pending) = message.info().map(|info| (info.stream_sequence, info.pending))?;
                    self.read = place;
                    self.stalled = self.stalled.map(|_| Instant::now() + STALLED);
                    return Ok(Next::Message(Box::new(message), place, pending));
                }
                () = self.drops.more() => {
                    self.stalled = Some(Instant::now() + STALLED);
                    return Ok(Next::Drops);
                }
                () = silent => {
                    (self.messages, _) = consume(self.bus, &self.stream, self.subject, self.read).await?;
                    self.stalled = None;
                }
            }
        }
    }
}

/// All messages of `subject` behind a place, and how many there are now.
async fn consume<I>(
    bus: &NatsBus,
    stream: &Stream<I>,
    subject: &str,
    read: u64,
) -> Result<(Ordered, u64), async_nats::Error> {
    let consumer = stream
        .create_consumer(OrderedConfig {
            deliver_subject: bus.client.new_inbox(),
            filter_subject: subject.to_owned(),
            deliver_policy: match read {
                0 => DeliverPolicy::All,
                read => DeliverPolicy::ByStartSequence { start_sequence: read + 1 },
            },
            ..OrderedConfig::default()
        })
        .await?;
    let pending = consumer.cached_info().num_pending;
    Ok((consumer.messages().await?, pending))
}
