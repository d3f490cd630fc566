//! What is shown and selected, and what keys do to it. Without a terminal and without a clock.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::looker::Picture;

/// Rows that a page key moves.
const PAGE: usize = 10;

/// All that a frame is made of.
pub(super) struct State {
    pub(super) picture: Picture,
    /// Why there is nothing newer.
    pub(super) fault: Option<String>,
    pub(super) pane: Pane,
    pub(super) workers: TableState,
    pub(super) decisions: TableState,
    pub(super) sources: TableState,
    /// What is to be confirmed.
    pub(super) asked: Option<Wish>,
    /// What came of the last wish.
    pub(super) said: Option<Said>,
    pub(super) help: bool,
}

/// What keys move in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Workers,
    Decisions,
    /// Instead of the decisions: where events come from, and the other routers.
    Events,
}

/// What an operator wants done with a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) worker: String,
    pub(super) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Drain,
    Undrain,
    Eject,
    ResetBreaker,
    ResetCache,
}

/// What came of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) fine: bool,
    pub(super) text: String,
}

/// What is to be done after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Stay,
    Leave,
    Do(Wish),
}

impl Pane {
    fn next(self) -> Self {
        match self {
            Self::Workers => Self::Decisions,
            Self::Decisions => Self::Events,
            Self::Events => Self::Workers,
        }
    }
}

impl Action {
    /// Its name on the admin port.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Undrain => "undrain",
            Self::Eject => "eject",
            Self::ResetBreaker => "reset_breaker",
            Self::ResetCache => "reset_cache",
        }
    }

    fn of(key: char) -> Option<Self> {
        match key {
            'd' => Some(Self::Drain),
            'u' => Some(Self::Undrain),
            'e' => Some(Self::Eject),
            'r' => Some(Self::ResetBreaker),
            'c' => Some(Self::ResetCache),
            _ => None,
        }
    }
}

impl Wish {
    /// What is asked before it is done.
    pub(super) fn question(&self) -> String {
        let worker = &self.worker;
        match self.action {
            Action::Drain => format!("Drain {worker}? It finishes what it has."),
            Action::Undrain => format!("Put {worker} back?"),
            Action::Eject => format!("Eject {worker}? What it has not begun to answer goes to others."),
            Action::ResetBreaker => format!("Reset the breaker of {worker}? It may be tried at once."),
            Action::ResetCache => format!("Have {worker} empty its cache? All its prefixes are computed anew."),
        }
    }
}

impl State {
    pub(super) fn new(picture: Picture) -> Self {
        let mut state = Self {
            picture: Picture::default(),
            fault: None,
            pane: Pane::Workers,
            workers: TableState::default().with_selected(0),
            decisions: TableState::default().with_selected(0),
            sources: TableState::default().with_selected(0),
            asked: None,
            said: None,
            help: false,
        };
        state.see(picture);
        state
    }

    /// Shows this from now on. What is selected stays selected where it moves to.
    pub(super) fn see(&mut self, picture: Picture) {
        let old = std::mem::replace(&mut self.picture, picture);
        let (now, fresh) = (&self.picture.workers, &self.picture.decisions);
        let worker = self.workers.selected().and_then(|at| old.workers.get(at));
        let worker = worker.and_then(|was| now.iter().position(|is| (&is.id, is.rank) == (&was.id, was.rank)));
        settle(&mut self.workers, worker, now.len());
        let decision = self.decisions.selected().and_then(|at| old.decisions.get(at));
        // Whoever looks at the newest goes on doing so.
        let newest = self.decisions.selected() == Some(0);
        let decision = decision.filter(|_| !newest);
        let decision = decision.and_then(|was| fresh.iter().position(|is| is.number == was.number));
        let decision = if newest { Some(0) } else { decision };
        settle(&mut self.decisions, decision, fresh.len());
        let sources = &self.picture.bus.sources;
        let source = self.sources.selected().and_then(|at| old.bus.sources.get(at));
        let source = source.and_then(|was| sources.iter().position(|is| is.name() == was.name()));
        settle(&mut self.sources, source, sources.len());
        self.fault = None;
    }

    /// What a key does.
    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Next::Leave;
        }
        if let Some(wish) = self.asked.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Next::Do(wish),
                _ => Next::Stay,
            };
        }
        if std::mem::take(&mut self.help) {
            return Next::Stay;
        }
        self.said = None;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Leave,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Tab => self.pane = self.pane.next(),
            KeyCode::BackTab => self.pane = self.pane.next().next(),
            KeyCode::Up | KeyCode::Char('k') => self.walk(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.walk(|at, _| at + 1),
            KeyCode::PageUp => self.walk(|at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.walk(|at, _| at + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.walk(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.walk(|_, last| last),
            KeyCode::Char(letter) if !control => self.ask(letter),
            _ => {}
        }
        Next::Stay
    }

    fn ask(&mut self, letter: char) {
        let selected = self.workers.selected().and_then(|at| self.picture.workers.get(at));
        if let (Pane::Workers, Some(action), Some(worker)) = (self.pane, Action::of(letter), selected) {
            self.asked = Some(Wish { worker: worker.id.clone(), action });
        }
    }

    fn walk(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let (table, len) = match self.pane {
            Pane::Workers => (&mut self.workers, self.picture.workers.len()),
            Pane::Decisions => (&mut self.decisions, self.picture.decisions.len()),
            Pane::Events => (&mut self.sources, self.picture.bus.sources.len()),
        };
        let at = to(table.selected().unwrap_or(0), len.saturating_sub(1));
        settle(table, Some(at), len);
    }
}

/// Selects `wanted`, or what comes nearest to what was selected.
fn settle(table: &mut TableState, wanted: Option<usize>, len: usize) {
    let at = wanted.or(table.selected()).unwrap_or(0);
    table.select(len.checked_sub(1).map(|last| at.min(last)));
}

#[cfg(test)]
mod tests {
    use super::super::looker::{Decision, Worker};
    use super::*;

    fn picture(workers: &[&str], decisions: &[u64]) -> Picture {
        Picture {
            workers: workers.iter().map(|id| Worker { id: (*id).to_owned(), ..Worker::default() }).collect(),
            decisions: decisions.iter().map(|number| Decision { number: *number, ..Decision::default() }).collect(),
            ..Picture::default()
        }
    }

    fn press(state: &mut State, keys: &[KeyCode]) -> Vec<Next> {
        keys.iter().map(|code| state.key(KeyEvent::new(*code, KeyModifiers::NONE))).collect()
    }

    #[test]
    fn what_is_selected_stays_so_when_others_come_and_go() {
        let mut state = State::new(picture(&["a", "b", "c"], &[3, 2, 1]));
        press(&mut state, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::Char('j'), KeyCode::Tab, KeyCode::Down]);
        assert_eq!((state.workers.selected(), state.decisions.selected()), (Some(2), Some(1)));
        state.see(picture(&["c", "d"], &[5, 4, 3, 2, 1]));
        assert_eq!((state.workers.selected(), state.decisions.selected()), (Some(0), Some(3)));
        press(&mut state, &[KeyCode::Home]);
        state.see(picture(&[], &[7, 6, 5]));
        assert_eq!((state.workers.selected(), state.decisions.selected()), (None, Some(0)));
        state.see(picture(&["e"], &[7]));
        assert_eq!(state.workers.selected(), Some(0));
    }

    #[test]
    fn pages_and_ends_are_reached_and_not_passed() {
        let names: Vec<String> = (0..25).map(|number| number.to_string()).collect();
        let mut state = State::new(picture(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]));
        let mut at = |code| {
            press(&mut state, &[code]);
            state.workers.selected().unwrap()
        };
        let keys = [KeyCode::PageDown, KeyCode::End, KeyCode::Down, KeyCode::PageUp, KeyCode::Home, KeyCode::Up];
        assert_eq!(keys.map(&mut at), [10, 24, 24, 14, 0, 0]);
    }

    #[test]
    fn a_worker_is_changed_only_after_a_yes() {
        let mut state = State::new(picture(&["a", "b"], &[1]));
        let (drain, yes) = (KeyCode::Char('d'), KeyCode::Char('y'));
        assert_eq!(press(&mut state, &[yes, drain]), [Next::Stay, Next::Stay]);
        let wish = Wish { worker: "a".to_owned(), action: Action::Drain };
        assert_eq!(state.asked, Some(wish.clone()));
        assert_eq!(press(&mut state, &[KeyCode::Char('q'), yes]), [Next::Stay, Next::Stay], "anything else is a no");
        assert_eq!(press(&mut state, &[drain, yes, yes]), [Next::Stay, Next::Do(wish), Next::Stay]);
        press(&mut state, &[KeyCode::Tab, drain]);
        assert_eq!(state.asked, None, "no worker is selected among decisions");
        press(&mut state, &[KeyCode::Tab, drain, KeyCode::Tab, KeyCode::Down]);
        for (key, action) in [('u', "undrain"), ('e', "eject"), ('r', "reset_breaker"), ('c', "reset_cache")] {
            press(&mut state, &[KeyCode::Char(key)]);
            let wish = state.asked.take().unwrap();
            assert_eq!((wish.worker.as_str(), wish.action.name()), ("b", action));
        }
    }

    #[test]
    fn q_escape_and_control_c_leave_and_help_goes_with_any_key() {
        let mut state = State::new(picture(&["a"], &[]));
        assert_eq!(press(&mut state, &[KeyCode::Char('q'), KeyCode::Esc]), [Next::Leave, Next::Leave]);
        assert_eq!(press(&mut state, &[KeyCode::Char('?'), KeyCode::Char('q')]), [Next::Stay, Next::Stay]);
        press(&mut state, &[KeyCode::Char('e')]);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(interrupt), Next::Leave, "even while something is asked");
    }
}
