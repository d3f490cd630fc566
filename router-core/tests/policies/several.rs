//! Requests of several prompts, and of several sequences: what they take.

use super::*;

/// What prompts of one request share is one block there, and further sequences of a prompt share its full blocks.
#[test]
fn r181_blocks_of_several_prompts_and_sequences_are_counted_once() {
    let [short, long, other] = [prompt(1, 2), prompt(1, 5), prompt(2, 3)];
    let open: Vec<u32> = prompt(1, 2).into_iter().chain([99]).collect();
    for (prompts, sequences, blocks) in [
        (vec![&long, &short], 2, 5),
        (vec![&short, &other, &long, &short], 4, 8),
        (vec![&short, &open, &open, &long], 4, 7),
        (vec![&open], 4, 6),
        (vec![&short], 4, 2),
        (vec![&open, &open], 4, 6),
    ] {
        let mut world = World::new(PolicyName::Blocks);
        let shape = Shape { sequences, ..Shape::of(Tokens(1), size()) };
        let prompts: Vec<&[u32]> = prompts.into_iter().map(Vec::as_slice).collect();
        let explained = world
            .with_all(&prompts, shape, |scheduler, now, request, index, fleet, scratch| {
                scheduler.explain(now, request, index, fleet, scratch)
            })
            .unwrap();
        let mut placed = world
            .with_all(&prompts, shape, |scheduler, now, request, index, fleet, scratch| {
                scheduler.place(now, request, index, fleet, scratch)
            })
            .unwrap();
        let booked = placed.target.account.read().active_blocks;
        assert_eq!(booked, Blocks(blocks), "{sequences} of {prompts:?}");
        assert_eq!(explained.considered[0].candidate.added_blocks, booked, "{sequences} of {prompts:?}");
        // A token for each sequence finds room in what is open.
        let tails = prompts.iter().filter(|tokens| tokens.len() % 4 != 0).count();
        placed.reservation.generated(Tokens(u32::try_from(tails).unwrap()));
        assert_eq!(placed.target.account.read().active_blocks, booked);
    }
}
