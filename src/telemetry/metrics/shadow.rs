//! What policies would have done that are asked and not followed.

use metrics::Label;
use warmpath_core::scheduler::ShadowChoice;

use super::{ModelMetrics, SHADOW_PLACEMENTS, SHADOW_REGRET};

impl ModelMetrics {
    /// A request was placed, and a shadow policy was asked about it.
    pub fn shadow(&self, choice: &ShadowChoice) {
        let labels = || vec![Label::new("model", self.model.clone()), Label::new("policy", choice.policy.as_str())];
        let result = match choice {
            ShadowChoice { slot: None, .. } => "no_choice",
            ShadowChoice { agrees: true, .. } => "agrees",
            ShadowChoice { .. } => "differs",
        };
        let mut placed = labels();
        placed.push(Label::new("result", result));
        self.metrics.registry.counter(&SHADOW_PLACEMENTS, placed).increment(1);
        if choice.slot.is_some() {
            self.metrics.registry.histogram(&SHADOW_REGRET, labels()).record(choice.regret);
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;
    use warmpath_core::policy::PolicyName;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn agreement_and_regret_are_told_for_each_policy() {
        let metrics = Metrics::new("w");
        let model = metrics.model(0, "m");
        let choice = |slot: Option<u16>, agrees, regret| ShadowChoice {
            policy: PolicyName::Product,
            slot: slot.map(Slot),
            agrees,
            regret,
        };
        [choice(Some(1), true, 0.0), choice(Some(2), false, 0.25), choice(None, false, 0.0)]
            .iter()
            .for_each(|choice| model.shadow(choice));
        let text = metrics.render();
        for result in ["agrees", "differs", "no_choice"] {
            let line = format!("w_shadow_placements_total{{model=\"m\",policy=\"product\",result=\"{result}\"}} 1\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        for line in ["_sum{model=\"m\",policy=\"product\"} 0.25\n", "_count{model=\"m\",policy=\"product\"} 2\n"] {
            assert!(text.contains(&format!("w_shadow_regret{line}")), "{line} is not in\n{text}");
        }
    }
}
