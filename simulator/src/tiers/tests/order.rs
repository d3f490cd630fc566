//! Who runs before whom where requests wait for storage.

use super::*;

#[test]
fn what_waits_for_storage_lets_others_go_first() {
    let mut shared = filled();
    let mut engine = asked("wait_complete", &mut shared);
    engine.submit_with(Ms(1000.0), request(2, 500_000, 10, 1), &mut shared).unwrap();
    let step = engine.step_with(Ms(1000.0), &mut shared).unwrap();
    assert_eq!(step.tokens[0].id, RequestId(2));
    assert_eq!(engine.stats().levels.waiting, 1);
}

/// And so the last to arrive is not the last to be admitted.
#[test]
fn who_was_admitted_last_makes_room_for_those_before() {
    let mut shared = filled();
    let mut engine = engine(|config, tiers| {
        config.blocks = 67;
        config.timing = Timing::Linear { computed: Ms(1.0), cached: Ms(0.0) };
        tiers.prefetch = PrefetchPolicy::WaitComplete;
    });
    for request in [request(1, 0, PROMPT + 1, 100), request(2, 500_000, 64, 100)] {
        engine.submit_with(Ms(1000.0), request, &mut shared).unwrap();
    }
    let mut now = Ms(1000.0);
    let step = loop {
        let step = engine.step_with(now, &mut shared).unwrap();
        if engine.stats().totals.preemptions > 0 {
            break step;
        }
        now += step.duration;
    };
    // The second runs since the beginning, and asks for its third page; the first has 65 of them.
    assert_eq!(step.tokens.iter().map(|out| (out.id, out.index)).collect::<Vec<_>>(), [(RequestId(2), 65)]);
}
