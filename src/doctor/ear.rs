//! Between a bus and the task that keeps a view: hears what passes, and asks for something of its own in between.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use warmpath_core::ids::{SequenceHash, TokenId};
use warmpath_indexer::codec::{decode, decode_json};
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Stored};
use warmpath_indexer::snapshot::SnapshotDecoder;

use crate::events::source::Line;
use crate::events::{Ask, Heard, Message, Source};

/// What has passed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Whether the way was made.
    pub(super) connected: bool,
    /// Whether the bus keeps what was sent, where it has said so.
    pub(super) history: Option<bool>,
    /// What the task has asked for and was not answered yet.
    pub(super) pending: usize,
    /// Batches as they came from the engine.
    pub(super) batches: u64,
    /// The number of the last one.
    pub(super) last_seq: Option<u64>,
    /// Why the last batch that could not be read could not.
    pub(super) unreadable: Option<String>,
    /// The batch with the prompt that was sought.
    pub(super) found: Option<Found>,
    /// Tokens in a block, as the engine's events have it.
    pub(super) carried: Option<u32>,
    /// Questions of the ear's own.
    pub(super) asked: u64,
    /// What came of the last of them.
    pub(super) own: Own,
}

/// The batch that was sought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Its number, where the bus tells it.
    pub(super) seq: Option<u64>,
    /// When it came.
    pub(super) at: Instant,
    /// The rank that it names.
    pub(super) rank: Option<u32>,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// Batches, or parts of a snapshot.
    pub(super) parts: u64,
    /// The least number of a batch.
    pub(super) first: Option<u64>,
    /// Whether the parts are of a snapshot that routers do not take: of another model, block size or seed.
    pub(super) refused: bool,
    /// Nothing more comes.
    pub(super) ended: bool,
}

/// The ear.
pub(super) struct Ear {
    /// What it hears.
    pub(super) bus: Source,
    /// Whom it hands that on to, and what they ask for.
    pub(super) line: Line,
    /// What it is to ask for itself; one thing after the other.
    pub(super) own: mpsc::Receiver<Ask>,
    /// The tokens of the prompt that is sought.
    pub(super) sought: watch::Receiver<Arc<[TokenId]>>,
    /// What has passed.
    pub(super) notes: watch::Sender<Notes>,
    /// Whose snapshots are taken: of which pool, and of which owner.
    pub(super) taken: (SequenceHash, u64),
}

impl Ear {
    /// Works until either side is gone.
    pub(super) async fn listen(mut self) {
        let mut asking = false;
        loop {
            let pending = self.notes.borrow().pending;
            tokio::select! {
                heard = self.bus.heard.recv() => {
                    let Some(heard) = heard else { return };
                    if asking && is_answer(&heard) {
                        asking = !self.note_own(&heard);
                        continue;
                    }
                    self.note(&heard);
                    if self.line.tell.send(heard).await.is_err() {
                        return;
                    }
                }
                ask = self.line.asked.recv(), if !asking => {
                    let Some(ask) = ask else { return };
                    self.notes.send_modify(|notes| notes.pending += 1);
                    if self.bus.asks.send(ask).await.is_err() {
                        return;
                    }
                }
                Some(ask) = self.own.recv(), if !asking && pending == 0 => {
                    asking = true;
                    self.notes.send_modify(|notes| {
                        notes.asked += 1;
                        notes.own = Own::default();
                    });
                    if self.bus.asks.send(ask).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn note(&self, heard: &Heard) {
        match heard {
            Heard::Connected => self.notes.send_modify(|notes| notes.connected = true),
            Heard::History(there) => self.notes.send_modify(|notes| notes.history = Some(*there)),
            Heard::Live(message) => self.note_batch(message),
            Heard::ReplayEnded(..) | Heard::SnapshotEnded(_) => {
                self.notes.send_modify(|notes| notes.pending = notes.pending.saturating_sub(1));
            }
            Heard::Dropped(_) | Heard::Replayed(..) | Heard::SnapshotChunk(..) => {}
        }
    }

    /// Notes a part of the own question's answer; returns whether it was the end.
    fn note_own(&self, heard: &Heard) -> bool {
        let ended = matches!(heard, Heard::ReplayEnded(..) | Heard::SnapshotEnded(_));
        self.notes.send_modify(|notes| {
            let own = &mut notes.own;
            if let (0, Heard::SnapshotChunk(_, part)) = (own.parts, heard) {
                own.refused = SnapshotDecoder::new(self.taken.0, self.taken.1).read(part, |_| Ok(())).is_err();
            }
            own.ended = ended;
            own.parts += u64::from(!ended);
            if let Heard::Replayed(_, Message { seq: Some(seq), .. }) = heard {
                own.first = Some(own.first.map_or(*seq, |first| first.min(*seq)));
            }
        });
        ended
    }

    fn note_batch(&self, message: &Message) {
        let read = match message.payload.first() {
            Some(b'{') => decode_json(&message.payload).map(|event| (Some(event.event_id), event.batch)),
            _ => decode(&message.payload).map(|batch| (message.seq, batch)),
        };
        let sought = Arc::clone(&self.sought.borrow());
        self.notes.send_modify(|notes| {
            notes.batches += 1;
            match read {
                Ok((seq, batch)) => {
                    notes.last_seq = seq;
                    notes.read(&batch, seq, &sought);
                }
                Err(error) => notes.unreadable = Some(error.to_string()),
            }
        });
    }
}

fn is_answer(heard: &Heard) -> bool {
    matches!(heard, Heard::Replayed(..) | Heard::ReplayEnded(..) | Heard::SnapshotChunk(..) | Heard::SnapshotEnded(_))
}

impl Notes {
    fn read(&mut self, batch: &EventBatch, seq: Option<u64>, sought: &[TokenId]) {
        for event in &batch.events {
            let CacheEvent::Stored(stored) = event else { continue };
            if !counts(stored) {
                continue;
            }
            let is_found = begins(stored, sought);
            if let Some(size) = stored.block_size.filter(|size| *size > 0 && (is_found || self.found.is_none())) {
                self.carried = Some(size);
            }
            if is_found && self.found.is_none() {
                self.found = Some(Found { seq, at: Instant::now(), rank: batch.dp_rank });
            }
        }
    }
}

/// Whether the index would take it in: other groups of blocks have sizes of their own.
fn counts(stored: &Stored) -> bool {
    match stored.attention {
        Attention::Prefix => true,
        Attention::Unstated => stored.group.unwrap_or_default() == 0,
        Attention::Other => false,
    }
}

fn begins(stored: &Stored, sought: &[TokenId]) -> bool {
    let Content::Tokens(tokens) = &stored.content else { return false };
    let shared = tokens.len().min(sought.len());
    stored.parent.is_none() && shared > 0 && tokens[..shared] == sought[..shared]
}

#[cfg(test)]
mod tests {
    use crate::events::ReplayEnd;
    use futures_util::FutureExt;
    use warmpath_core::ids::EngineHash;
    use warmpath_core::units::Tier;
    use warmpath_indexer::codec::encode::{Form, HashForm, encode};
    use warmpath_indexer::feed::Patience;

    use super::*;
    use crate::events::Abilities;
    use crate::events::AskId;
    use crate::events::source::source;

    fn stored(first: u32, block_size: u32) -> CacheEvent {
        let blocks = 2;
        let tokens = (first..first + blocks * block_size).collect();
        let hashes = (1..=u64::from(blocks)).map(|block| EngineHash(u64::from(first) * 100 + block)).collect();
        Stored {
            hashes,
            parent: None,
            content: Content::Tokens(tokens),
            block_size: Some(block_size),
            tier: Tier::Device,
            group: Some(0),
            attention: Attention::Prefix,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        }
        .into()
    }

    fn live(seq: u64, event: CacheEvent) -> Heard {
        let batch = EventBatch { ts: Some(1.0), dp_rank: Some(0), events: vec![event], ..EventBatch::default() };
        let payload = encode(&batch, Form::Map, HashForm::Int).unwrap().into();
        Heard::Live(Message { payload, seq: Some(seq), epoch: None })
    }

    /// An ear, with the bus before it and the task behind it.
    struct Bench {
        bus: Line,
        task: Source,
        own: mpsc::Sender<Ask>,
        notes: watch::Receiver<Notes>,
    }

    fn bench(sought: Arc<[TokenId]>) -> (Ear, Bench) {
        let abilities = Abilities { patience: Patience::NONE, replays: true, snapshots: true };
        let (from_bus, bus) = source(abilities, 16);
        let (task, line) = source(abilities, 16);
        let (own, asked) = mpsc::channel(1);
        let (notes, noted) = watch::channel(Notes::default());
        let sought = watch::channel(sought).1;
        let ear = Ear { bus: from_bus, line, own: asked, sought, notes, taken: (SequenceHash(0), 0) };
        (ear, Bench { bus, task, own, notes: noted })
    }

    #[tokio::test]
    async fn the_batch_with_the_prompt_is_found_and_all_are_handed_on() {
        let (ear, mut bench) = bench((10..19).collect());
        let test = async {
            for heard in [
                Heard::Connected,
                live(7, stored(500, 2)),
                live(8, stored(10, 4)),
                live(9, stored(600, 2)),
                Heard::Live(Message { payload: vec![0xc1].into(), seq: Some(10), epoch: None }),
            ] {
                bench.bus.tell.send(heard).await.unwrap();
                bench.task.heard.recv().await.unwrap();
            }
            let notes = bench.notes.borrow().clone();
            assert_eq!((notes.connected, notes.batches, notes.last_seq, notes.carried), (true, 4, Some(9), Some(4)));
            let found = notes.found.unwrap();
            assert_eq!((found.seq, found.rank), (Some(8), Some(0)));
            assert!(notes.unreadable.is_some());
        };
        tokio::select! {
            () = ear.listen() => panic!("the ear ended"),
            () = test => {}
        }
    }

    #[tokio::test]
    async fn its_own_question_waits_for_the_tasks_and_its_answer_is_not_handed_on() {
        let (ear, mut bench) = bench([].into());
        let test = async {
            bench.task.asks.send(Ask::Replay { id: AskId::default(), from: 0 }).await.unwrap();
            assert_eq!(bench.bus.asked.recv().await, Some(Ask::Replay { id: AskId::default(), from: 0 }));
            bench.own.send(Ask::Replay { id: AskId::default(), from: 5 }).await.unwrap();
            tokio::task::yield_now().await;
            assert!(bench.bus.asked.recv().now_or_never().is_none());
            bench.bus.tell.send(Heard::ReplayEnded(AskId::default(), ReplayEnd::Whole)).await.unwrap();
            assert!(matches!(bench.task.heard.recv().await, Some(Heard::ReplayEnded(..))));
            assert_eq!(bench.bus.asked.recv().await, Some(Ask::Replay { id: AskId::default(), from: 5 }));
            let message = |seq| Message { payload: vec![0x93].into(), seq: Some(seq), epoch: None };
            for heard in [
                Heard::Replayed(AskId::default(), message(6)),
                Heard::Live(message(8)),
                Heard::Replayed(AskId::default(), message(7)),
                Heard::ReplayEnded(AskId::default(), ReplayEnd::Whole),
            ] {
                bench.bus.tell.send(heard).await.unwrap();
            }
            bench.notes.wait_for(|notes| notes.own.ended).await.unwrap();
            let own = bench.notes.borrow().own;
            assert_eq!((own.parts, own.first), (2, Some(6)));
            assert!(matches!(bench.task.heard.recv().await, Some(Heard::Live(_))));
            bench.task.asks.send(Ask::Snapshot { id: AskId::default() }).await.unwrap();
            assert_eq!(bench.bus.asked.recv().await, Some(Ask::Snapshot { id: AskId::default() }));
            assert!(bench.task.heard.try_recv().is_err());
        };
        tokio::select! {
            () = ear.listen() => panic!("the ear ended"),
            () = test => {}
        }
    }
}
