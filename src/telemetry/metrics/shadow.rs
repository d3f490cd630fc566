//! What policies would have done that are asked and not followed.

use metrics::Label;
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::ShadowChoice;

use super::{ModelMetrics, SHADOW_PLACEMENTS, SHADOW_REGRET};

impl ModelMetrics {
    /// A request was placed by the policy `active`, and a shadow policy was asked about it.
    pub fn shadow(&self, active: PolicyName, choice: &ShadowChoice) {
        let labels = || vec![Label::new("model", self.model.clone()), Label::new("policy", choice.policy.as_str())];
        let result = match choice {
            ShadowChoice { slot: None, .. } => "no_choice",
            ShadowChoice { agrees: true, .. } => "agrees",
            ShadowChoice { regret: None, .. } => "against_rule",
            ShadowChoice { .. } => "differs",
        };
        let mut placed = labels();
        placed.push(Label::new("result", result));
        self.metrics.registry.counter(&SHADOW_PLACEMENTS, placed).increment(1);
        if let Some(regret) = choice.regret {
            // Each policy has a unit of its own, which a sum of several would not have.
            let mut regretted = labels();
            regretted.push(Label::new("active", active.as_str()));
            self.metrics.registry.histogram(&SHADOW_REGRET, regretted).record(regret);
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;

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
        let (agrees, differs) = (choice(Some(1), true, Some(0.0)), choice(Some(2), false, Some(0.25)));
        for choice in [agrees, differs, choice(None, false, None), choice(Some(2), false, None)] {
            model.shadow(PolicyName::Kv, &choice);
        }
        model.shadow(PolicyName::Blocks, &differs);
        let text = metrics.render();
        for (result, count) in [("agrees", 1), ("differs", 2), ("no_choice", 1), ("against_rule", 1)] {
            let line =
                format!("w_shadow_placements_total{{model=\"m\",policy=\"product\",result=\"{result}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        for (active, figure) in
            [("kv", "_sum 0.25"), ("kv", "_count 2"), ("blocks", "_sum 0.25"), ("blocks", "_count 1")]
        {
            let (name, value) = figure.split_once(' ').unwrap();
            let line = format!("w_shadow_regret{name}{{model=\"m\",policy=\"product\",active=\"{active}\"}} {value}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
