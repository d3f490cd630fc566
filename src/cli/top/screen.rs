//! The terminal: taken, drawn upon, and given back whatever happens.

use std::time::Duration;

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::frame;
use super::looker::{Look, Looker};
use super::state::{Next, Said, State, Wish};
use crate::shutdown::{Interrupts, Tasks};

/// How long a key is waited for before what the router said is looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// Wishes and news that wait at most.
const WAITING: usize = 8;

/// What the main thread is told.
enum News {
    Seen(anyhow::Result<Box<Look>>),
    Done(Wish, anyhow::Result<String>),
}

/// The terminal as ours. Dropping it gives it back; so does a panic, before it is told.
struct Taken(DefaultTerminal);

impl Taken {
    fn take() -> anyhow::Result<Self> {
        Ok(Self(ratatui::try_init().context("the terminal cannot be drawn upon (`--once` prints a frame)")?))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the router until somebody wants no more. A look each `every`, and after each wish.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn show(runtime: &Runtime, (looker, every): (Looker, Duration), mut state: State) -> anyhow::Result<()> {
    let (tell, mut told) = channel(WAITING);
    let (wish, wishes) = channel(WAITING);
    let (tasks, ended) = (Tasks::new(), CancellationToken::new());
    {
        let _inside = runtime.enter();
        let (end, mut interrupts) = (ended.clone(), Interrupts::new());
        tasks.spawn(async move {
            interrupts.next().await;
            end.cancel();
        });
        tasks.spawn(attend(looker, every, wishes, tell));
    }
    let shown = follow(&mut Taken::take()?, &mut state, (&wish, &mut told), &ended);
    tasks.cancel();
    shown
}

fn follow(
    screen: &mut Taken,
    state: &mut State,
    (wish, told): (&Sender<Wish>, &mut Receiver<News>),
    ended: &CancellationToken,
) -> anyhow::Result<()> {
    loop {
        screen.0.draw(|frame| frame::draw(frame, state))?;
        // Nothing is drawn again before something has changed.
        let next = loop {
            if ended.is_cancelled() {
                break Next::Leave;
            }
            if event::poll(PATIENCE)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => break state.key(key),
                    Event::Resize(..) => break Next::Stay,
                    _ => {}
                }
            }
            match told.try_recv() {
                Ok(news) => {
                    hear(state, news);
                    break Next::Stay;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => anyhow::bail!("whoever asks the router has ended"),
            }
        };
        match next {
            Next::Stay => {}
            Next::Leave => return Ok(()),
            Next::Do(wanted) => {
                let (fine, text) = match wish.try_send(wanted) {
                    Ok(()) => (true, "asked the router".to_owned()),
                    Err(_) => (false, "the router has not answered what was asked before".to_owned()),
                };
                state.said = Some(Said { fine, text });
            }
        }
    }
}

fn hear(state: &mut State, news: News) {
    match news {
        News::Seen(look) => match look.and_then(|look| look.picture()) {
            Ok(picture) => state.see(picture),
            Err(error) => state.fault = Some(format!("{error:#}")),
        },
        News::Done(Wish { worker, action }, done) => {
            let name = action.name();
            let (fine, text) = match done {
                Ok(now) => (true, format!("{name} {worker}: {now}")),
                Err(error) => (false, format!("{name} {worker}: {error:#}")),
            };
            state.said = Some(Said { fine, text });
        }
    }
}

/// Asks the router again and again, and does what is wished in between.
async fn attend(mut looker: Looker, every: Duration, mut wishes: Receiver<Wish>, tell: Sender<News>) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            wish = wishes.recv() => match wish {
                None => return,
                Some(wish) => {
                    let done = looker.act(&wish).await;
                    if tell.send(News::Done(wish, done)).await.is_err() {
                        return;
                    }
                }
            },
        }
        if tell.send(News::Seen(looker.look().await.map(Box::new))).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::looker::Picture;
    use super::super::state::Action;
    use super::*;

    #[test]
    fn what_the_router_says_is_shown_and_its_silence_keeps_the_last_picture() {
        let mut state = State::new(Picture { decided: 7, ..Picture::default() });
        let gone = News::Seen(Err(anyhow::anyhow!("refused").context("no router answers")));
        hear(&mut state, gone);
        assert_eq!((state.fault.as_deref(), state.picture.decided), (Some("no router answers: refused"), 7));
        let wish = Wish { worker: "a".to_owned(), action: Action::Eject };
        hear(&mut state, News::Done(wish.clone(), Ok("ejected".to_owned())));
        assert_eq!(state.said, Some(Said { fine: true, text: "eject a: ejected".to_owned() }));
        hear(&mut state, News::Done(wish, Err(anyhow::anyhow!("no"))));
        assert_eq!(state.said, Some(Said { fine: false, text: "eject a: no".to_owned() }));
    }
}
