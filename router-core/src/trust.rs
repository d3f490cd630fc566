//! How far what is known of a target's cache can be believed.

use std::sync::atomic::{AtomicU8, Ordering};

/// How true a target's view is to its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]

pub enum ViewState {
    /// All events up to now are in it, as far as anybody can tell. So it is where nothing tells events.
    #[default]
    Current,
    /// Something is missing and being fetched.
    Suspect,
    /// What is missing is gone for good: it began empty, and fills by new events.
    Cold,
}

/// What is believed of one target; shared by whoever learns of it and whoever decides.
#[derive(Debug, Default)]
pub struct Trust {
    view: AtomicU8,
}

impl Trust {
    /// How true the view is.
    pub fn view(&self) -> ViewState {
        [ViewState::Current, ViewState::Suspect, ViewState::Cold][usize::from(self.view.load(Ordering::Relaxed).min(2))]
    }

    /// Takes note of how true the view is now.
    pub fn set_view(&self, view: ViewState) {
        let number = match view {
            ViewState::Current => 0,
            ViewState::Suspect => 1,
            ViewState::Cold => 2,
        };
        self.view.store(number, Ordering::Relaxed);
    }

    /// What a block that the view promises is worth, from 0 to 1.
    pub fn weight(&self) -> f64 {
        match self.view() {
            // A cold view promises only what it has heard since: that is true.
            ViewState::Current | ViewState::Cold => 1.0,
            ViewState::Suspect => 0.5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_believed_until_something_is_missing() {
        let trust = Trust::default();
        assert_eq!((trust.view(), trust.weight()), (ViewState::Current, 1.0));
        for (view, weight) in [(ViewState::Suspect, 0.5), (ViewState::Cold, 1.0), (ViewState::Current, 1.0)] {
            trust.set_view(view);
            assert_eq!((trust.view(), trust.weight()), (view, weight));
        }
    }
}
