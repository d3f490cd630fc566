//! Following one (worker, rank) over NATS, through lost connections and streams that are made anew.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Info;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;

use super::link::{Drops, Missing};
use super::reader::{Read, Reader};
use super::replay::Marks;
use super::{NatsBus, RETRY, refuses, stream};
use crate::events::Message;
use crate::events::course::{Course, Way};
use crate::events::source::{self, Ask, Asked, Heard, ReplayEnd, Room};
use crate::events::subject;

/// By then nobody makes a stream any more who found none when we did.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// How long nobody tries again to subscribe to what the server refuses, unless the connection is made anew.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How long a server that has refused a subscription may take to refuse it again, before it counts as made.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// One (worker, rank)'s subscription, and how far it has come.
pub(super) struct Line {
    pub(super) worker: String,
    pub(super) rank: u32,
    pub(super) subject: String,
    pub(super) to: mpsc::Sender<Heard>,
    pub(super) room: Room,
    pub(super) marks: Arc<Mutex<Marks>>,
    course: Arc<Course>,
    missing: Option<Missing>,
    /// The stream that was read last, and the last message of it that was handed on.
    read: Option<(Info, u64)>,
}

impl NatsBus {
    /// Hands on one (worker, rank)'s batches, subscribing again whenever the subscription ends, and does what it is asked
    /// for; the future ends when nobody listens any more.
    ///
    /// [`Heard::Connected`] is told once the way is there and, with JetStream, all that the stream has kept was handed on;
    /// and again after each lost connection and, without JetStream, whenever the client had to drop something.
    pub fn follow(
        self,
        (model, worker, rank): (&str, &str, u32),
        line: source::Line,
    ) -> impl Future<Output = ()> + Send + use<> {
        let subject = subject::events_of(&self.settings.prefix, model, worker, rank);
        let missing = Some(Missing::new(&self.missing));
        let marks = Arc::<Mutex<Marks>>::default();
        let live = Line {
            worker: worker.to_owned(),
            rank,
            subject: subject.clone(),
            to: line.tell.clone(),
            room: line.room.clone(),
            marks: Arc::clone(&marks),
            course: Arc::clone(&line.course),
            missing,
            read: None,
        };
        line.course.comes(Way::Nats, &subject);
        let asked = Line {
            worker: worker.to_owned(),
            rank,
            subject,
            to: line.tell,
            room: line.room,
            marks,
            course: line.course,
            missing: None,
            read: None,
        };
        async move {
            tokio::join!(self.keep_following(live), self.answer(asked, line.asked));
        }
    }

    async fn keep_following(&self, mut line: Line) {
        let mut link = self.link.clone();
        while !line.to.is_closed() {
            let losses = match link.wait_for(|link| link.up).await {
                Ok(link) => link.losses,
                Err(_) => return,
            };
            let to = line.to.clone();
            let refusals = self.refusals(&line.subject);
            let ended = tokio::select! {
                ended = self.follow_once(&mut line, (losses, refusals)) => Some(ended),
                () = self.lost_since(losses) => None,
                () = to.closed() => return,
            };
            line.missing.get_or_insert_with(|| Missing::new(&self.missing));
            self.note_end(&line, ended.as_ref());
            match ended {
                None => continue,
                Some(Ok(())) => {}
                // The link has told of it.
                Some(Err(_)) if self.refusals(&line.subject) > refusals => {
                    tokio::select! {
                        () = tokio::time::sleep(REFUSED_AGAIN_AFTER) => {}
                        () = self.lost_since(losses) => {}
                        () = to.closed() => {}
                    }
                    continue;
                }
                Some(Err(error)) => {
                    let subject = &line.subject;
                    tracing::warn!(%subject, error = %error, "event subscription ended; subscribing again");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Whoever looks learns that nothing comes, and why.
    fn note_end(&self, line: &Line, ended: Option<&Result<(), async_nats::Error>>) {
        let why = match ended {
            None => self.trouble().unwrap_or_else(|| "the connection was lost".to_owned()),
            Some(Ok(())) => "the subscription ended".to_owned(),
            Some(Err(error)) => error.to_string(),
        };
        line.course.down(Instant::now(), &why);
    }

    /// `losses` and `refusals` are as they were before.
    async fn follow_once(&self, line: &mut Line, (losses, refusals): (u64, u64)) -> Result<(), async_nats::Error> {
        // Subscribed before the server is asked about JetStream: its answer says that the subscription is there.
        let messages = self.client.subscribe(line.subject.clone()).await?;
        if self.settings.jetstream && self.has_jetstream(losses).await? {
            drop(messages);
            return Box::pin(self.follow_stream(line)).await;
        }
        if let Err(error) = self.client.flush().await {
            tracing::debug!(error = %error, "event bus not flushed");
        }
        let refused = self.refused_since(&line.subject, refusals);
        tokio::pin!(refused);
        // A server that says nothing accepts. One that has refused before is not believed at once, or all would seem well
        // for a moment with every attempt.
        let doubt = if refusals > 0 { REFUSED_WITHIN } else { Duration::ZERO };
        if tokio::time::timeout(doubt, &mut refused).await.is_ok() {
            return Err(refuses(&line.subject).into());
        }
        line.missing = None;
        line.course.kept(false);
        line.course.up(Instant::now());
        line.to.send(Heard::History(false)).await?;
        line.to.send(Heard::Connected).await?;
        tokio::select! {
            handed = hand_on(messages.map(batch), (&line.to, &line.room), Drops::new(&self.link)) => handed,
            () = &mut refused => Err(refuses(&line.subject).into()),
        }
    }

    async fn follow_stream(&self, line: &mut Line) -> Result<(), async_nats::Error> {
        let stream = stream::ensure(&self.client, &self.settings.prefix).await?;
        let info = stream.cached_info().clone();
        let is_new = info.state.last_sequence == 0;
        let known = info.clone();
        let replaced = async {
            if is_new {
                Box::pin(self.stream_is_replaced(known)).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(replaced);
        // A stream that was made anew counts anew. The place stays known until the next one is: this may fail on the way, or
        // be given up, as often as the connection is lost again.
        let same = line.read.as_ref().filter(|(known, _)| known.created == info.created).map(|(_, read)| *read);
        if same.is_none() {
            *line.marks.lock().unwrap_or_else(PoisonError::into_inner) = Marks::default();
        }
        let read = same.unwrap_or(0);
        let Line { subject, marks, to, room, course, .. } = line;
        let mut reader = Reader::open(stream, subject, read).await?;
        let mut behind = reader.pending > 0;
        line.missing = None;
        course.kept(true);
        course.is_behind(reader.pending);
        course.up(Instant::now());
        to.send(Heard::History(true)).await?;
        let (_, read) = line.read.insert((info, read));
        if !behind {
            to.send(Heard::Connected).await?;
        }
        loop {
            let next = tokio::select! {
                next = reader.next() => next?,
                () = &mut replaced => return Ok(()),
            };
            let Some(Read { message, place, pending }) = next else { return Ok(()) };
            let batch = stream::batch(&message.payload, message.headers.as_ref());
            marks.lock().unwrap_or_else(PoisonError::into_inner).note(&batch, place);
            to.send(Heard::Live(room.take(batch).await)).await?;
            *read = place;
            course.is_behind(pending);
            if behind && pending == 0 {
                behind = false;
                to.send(Heard::Connected).await?;
            }
        }
    }

    /// Ends if the stream is not the one that was made at this time. Several clients that find none make one each, and a
    /// server may keep the last; whoever reads an earlier one hears nothing, not even that, for ten seconds.
    async fn stream_is_replaced(&self, known: Info) {
        tokio::time::sleep(SETTLED_AFTER).await;
        let found = stream::ensure(&self.client, &self.settings.prefix).await;
        if !found.is_ok_and(|found| found.cached_info().created != known.created) {
            std::future::pending::<()>().await;
        }
    }

    /// Does what is asked for, one thing after the other. While the connection is down nothing can be had.
    async fn answer(&self, line: Line, asked: Asked) {
        while let Some(ask) = asked.recv().await {
            let (up, losses) = {
                let link = self.link.borrow();
                (link.up, link.losses)
            };
            let answering = async {
                match ask {
                    _ if !up => Ok(()),
                    Ask::Replay { id, from } => self.replay(&line, id, from).await,
                    Ask::Snapshot { id } => self.fetch_snapshot(&line, id).await,
                }
            };
            let answered = tokio::select! {
                answered = answering => answered,
                () = self.lost_since(losses) => Err("the connection was lost".into()),
            };
            let end = if answered.is_ok() { ReplayEnd::Whole } else { ReplayEnd::CutShort };
            if let Err(error) = answered {
                tracing::warn!(worker = line.worker, rank = line.rank, ?ask, error = %error, "not all could be had");
            }
            let ended = match ask {
                Ask::Replay { id, .. } => Heard::ReplayEnded(id, end),
                Ask::Snapshot { id } => Heard::SnapshotEnded(id),
            };
            if line.to.send(ended).await.is_err() {
                return;
            }
        }
    }
}

fn batch(message: async_nats::Message) -> Message {
    stream::batch(&message.payload, message.headers.as_ref())
}

/// Hands on what a subscription brings, until it ends or nobody listens any more. Never waits for room: what waited in the
/// client instead, which counts messages however large, would be gigabytes. What finds none is dropped, and that is told.
async fn hand_on(
    mut messages: impl Stream<Item = Message> + Unpin,
    (to, room): (&mpsc::Sender<Heard>, &Room),
    mut drops: Drops,
) -> Result<(), async_nats::Error> {
    let mut owed = None;
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return Ok(()) };
                // Where this is the end of a sender, the next wait says so.
                let handed = room.try_take(message).is_some_and(|message| to.try_send(Heard::Live(message)).is_ok());
                if !handed {
                    drops.add();
                }
            }
            told = drops.more(), if owed.is_none() => owed = Some(told),
            free = to.reserve(), if owed.is_some() => {
                let free = free?;
                if let Some(owed) = owed.take() {
                    free.send(owed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::sync::watch;

    use super::super::link::Link;
    use super::*;

    const SENT: u64 = 4_096;

    /// 4 GiB, all the same one.
    fn batches() -> impl Stream<Item = Message> + Unpin {
        let payload = Bytes::from(vec![7; 1 << 20]);
        let batch = move |seq| Message { payload: payload.clone(), seq: Some(seq), epoch: None };
        stream::iter((0..SENT).map(batch)).chain(stream::pending())
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_does_not_wait_in_the_client_and_is_told() {
        let (_state, link) = watch::channel(Link::new(tokio::time::Instant::now(), "w"));
        let ((to, mut heard), room) = (mpsc::channel(16_384), Room::default());
        let mut left = batches();
        {
            let handing = hand_on(&mut left, (&to, &room), Drops::new(&link));
            assert!(tokio::time::timeout(Duration::from_secs(1), handing).await.is_err(), "the subscription goes on");
        }
        assert!(futures_util::FutureExt::now_or_never(left.next()).is_none(), "nothing waits in the client");
        let (mut live, mut dropped) = (0, 0);
        while let Ok(heard) = heard.try_recv() {
            match heard {
                Heard::Live(_) => live += 1,
                Heard::Dropped(batches) => dropped += batches,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((live, live + dropped), (80, SENT));
    }
}
