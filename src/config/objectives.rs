//! `routing.objectives`: what the classes were promised.

use serde::{Deserialize, Serialize};
use warmpath_core::shape::{Class, Objectives};

use super::quantity::Period;

/// What each class was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassObjectives {
    /// Priorities below 0.
    pub high: Promised,
    /// Priority 0.
    pub normal: Promised,
    /// Priorities above 0.
    pub low: Promised,
}

/// What one class was promised; `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Promised {
    /// Time to first token.
    pub ttft: Option<Period>,
    /// Mean gap between tokens.
    pub itl: Option<Period>,
}

impl ClassObjectives {
    /// What requests of `class` were promised.
    pub fn of(&self, class: Class) -> Objectives {
        let Promised { ttft, itl } = match class.0 {
            ..0 => self.high,
            0 => self.normal,
            1.. => self.low,
        };
        Objectives { ttft: ttft.map(Period::get), itl: itl.map(Period::get) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_class_has_its_own() {
        let promised = |ms| Promised { ttft: Some(Period::milliseconds(ms)), itl: None };
        let objectives = ClassObjectives { high: promised(1), normal: promised(2), low: promised(3) };
        let ttft = [i32::MIN, -1, 0, 1, i32::MAX].map(|class| objectives.of(Class(class)).ttft);
        assert_eq!(ttft, [1, 1, 2, 3, 3].map(|ms| Some(Duration::from_millis(ms))));
        assert_eq!(ClassObjectives::default().of(Class(0)), Objectives::default());
    }
}
