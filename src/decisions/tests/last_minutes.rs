//! What is told of the last minutes.

use super::*;

/// 16 tokens each, of which w1 holds 8: kv sends all of them there.
#[test]
fn the_last_minutes_are_summed_by_step_and_by_model() {
    let mut world = World::new(PolicyName::Kv, 4, Decisions::new(100, 1 << 20));
    let mut decided = Vec::new();
    for number in 0..3 {
        decided.push(world.decide(&number.to_string()).unwrap());
    }
    decided[0].course.first_token(Duration::from_millis(30));
    decided[1].course.first_token(Duration::from_millis(50));
    decided[1].course.ended(Standing::Answered, Some(Tokens(4)));
    let now = decided[2].at_ms();
    let history = world.decisions.history(now, 3_600_000, 2);
    let [.., last] = history.points.as_slice() else { panic!("two points") };
    assert_eq!((history.points.len(), history.step_ms), (2, 3_600_000));
    let all = history.points.iter().map(|point| point.requests).sum::<u64>();
    assert_eq!(all, 3);
    // Whoever runs this at the turn of an hour sees two steps.
    if last.requests == 3 {
        assert_eq!((last.prompt_tokens, last.hit_rate, last.first_tokens), (48, Some(0.5), 2));
        assert_eq!((last.ttft_ms, last.ttft_max_ms), (Some(40.0), Some(50)));
        assert_eq!(last.requests_max_over_mean, Some(4.0));
    }
    let expected = history::Funnel {
        requests: 3,
        prompt_tokens: 48,
        // Of the first, what a worker held; of the others, all.
        reusable_tokens: 8 + 16 + 16,
        reachable_tokens: 24,
        captured_tokens: 24,
        answered_prompt_tokens: 16,
        promised_tokens: 8,
        delivered_tokens: 4,
    };
    assert_eq!(history.funnel["m"], expected);
    let before = world.decisions.history(now + 7_200_000, 3_600_000, 1);
    assert!(before.points[0].hit_rate.is_none() && before.funnel.is_empty());
}

/// Whoever is shown fewer than there were would take them for a calm time.
#[test]
fn of_a_time_of_which_decisions_were_let_go_nothing_is_told() {
    let mut world = World::new(PolicyName::Kv, 4, Decisions::new(2, 1 << 20));
    let decided: Vec<_> = (0..3).map(|number| world.decide(&number.to_string()).unwrap()).collect();
    let (oldest, now) = (decided[1].at_ms(), decided[2].at_ms());
    let history = world.decisions.history(now, 1, 240);
    assert_eq!(history.since_ms, oldest);
    assert_eq!(history.points.first().map(|point| point.at_ms), Some(oldest));
    assert_eq!(history.funnel["m"].requests, 2);
    let whole = world.decisions.history(now, 3_600_000, 2);
    assert_eq!((whole.points.len(), whole.since_ms), (1, oldest), "the hour that is not over is told");
}

/// What no policy reads is no miss; that it came is counted.
#[test]
fn requests_whose_tokens_are_guessed_are_in_no_hit_rate() {
    let mut world = World::new(PolicyName::Kv, 4, Decisions::new(100, 1 << 20));
    world.decide("read").unwrap();
    let root = Root::new(&Namespace::plain("m", BlockSize::new(4).unwrap()), DEFAULT_ROOT_SEED);
    world.decide_for("read by nobody", Prompt::unread(root, Tokens(16))).unwrap();
    let unread = world.decide_unread("unread").unwrap();
    unread.course.ended(Standing::Answered, Some(Tokens(4)));
    let history = world.decisions.history(unread.at_ms(), 3_600_000, 2);
    let sums = history.points.iter().fold((0, 0), |sum, point| (sum.0 + point.requests, sum.1 + point.prompt_tokens));
    assert_eq!(sums, (3, 16), "of the one whose ids are known");
    assert!(history.points.iter().filter_map(|point| point.hit_rate).all(|rate| rate == 0.5));
    let funnel = history.funnel["m"];
    assert_eq!((funnel.requests, funnel.prompt_tokens, funnel.captured_tokens), (3, 16, 8));
    assert_eq!((funnel.answered_prompt_tokens, funnel.delivered_tokens), (0, 0));
}

/// A time stamp behind 12 tokens that all have in common.
#[test]
fn where_prompts_part_is_told_by_what_lies_behind() {
    let mut world = World::new(PolicyName::Kv, 2, Decisions::new(100, 1 << 20));
    for number in 0..5 {
        let tokens: Vec<u32> = (0..12).chain(1000 + 100 * number..1000 + 100 * number + 40).collect();
        let shared = world.decide_on("r", &tokens).unwrap().shared;
        assert_eq!(shared, Some(Tokens(if number == 0 { 0 } else { 12 })));
    }
    world.decide_on("other", &[7; 9]).unwrap();
    let now = world.decisions.find(&all())[0].at_ms();
    let breakers = world.decisions.history(now, 3_600_000, 2).breakers;
    let breaker = history::Breaker {
        model: "m".into(),
        tenant: None,
        template: breakers[0].template.clone(),
        at_tokens: 12,
        requests: 4,
        tokens_behind: 160,
        last_decision: 5,
    };
    let at_once = history::Breaker {
        template: None,
        at_tokens: 0,
        requests: 2,
        tokens_behind: 61,
        last_decision: 6,
        ..breaker.clone()
    };
    assert_eq!(breakers, [breaker, at_once]);
    assert!(breakers[0].template.as_ref().is_some_and(|hash| hash.len() == 16), "{breakers:?}");
}

/// Two system prompts of one length, each with a time stamp of its own behind them.
#[test]
fn templates_that_part_at_the_same_place_are_told_apart() {
    let mut world = World::new(PolicyName::Kv, 2, Decisions::new(100, 1 << 20));
    for number in 0..7 {
        let system = if number < 4 { 0..12 } else { 20..32 };
        let tokens: Vec<u32> = system.chain(1000 + 100 * number..1000 + 100 * number + 40).collect();
        world.decide_on("r", &tokens).unwrap();
    }
    let now = world.decisions.find(&all())[0].at_ms();
    let breakers = world.decisions.history(now, 3_600_000, 2).breakers;
    let told: Vec<_> = breakers.iter().map(|one| (one.at_tokens, one.requests, one.last_decision)).collect();
    assert_eq!(told, [(12, 3, 4), (0, 2, 5), (12, 2, 7)]);
    let templates: Vec<_> = breakers.iter().map(|one| one.template.as_deref()).collect();
    assert!(templates[1].is_none() && templates[0].is_some() && templates[0] != templates[2], "{templates:?}");
}
