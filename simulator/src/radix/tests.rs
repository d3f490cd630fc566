//! What a radix tree keeps, splits and lets go.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use warmpath_indexer::event::Content;

use super::*;

fn tree(page: u32, capacity: usize) -> RadixCache {
    RadixCache::new(BlockSize::new(page).unwrap(), capacity, true, Scheme::Seeded(7))
}

/// A sequence of one token a character.
fn text(tree: &RadixCache, text: &str) -> Sequence {
    tree.sequence(text.chars().map(u32::from).collect::<Vec<_>>(), None, None)
}

/// A request whose tokens are all computed at once, and which then ends. Returns how many tokens it found.
fn pass(tree: &mut RadixCache, prompt: &str) -> usize {
    let mut sequence = text(tree, prompt);
    let found = tree.lookup(&sequence) * tree.page();
    tree.admit(&mut sequence, prompt.len()).unwrap();
    tree.insert(&mut sequence, prompt.len());
    tree.release(&mut sequence);
    found
}

/// What a listener to the events knows of each name: the text of its page.
#[derive(Default)]
struct Listener(HashMap<EngineHash, String>);

impl Listener {
    fn hear(&mut self, tree: &mut RadixCache) -> (usize, usize) {
        let (mut stored, mut removed) = (0, 0);
        for event in tree.take_events() {
            match event {
                BlockEvent::Stored { hashes, parent, content, .. } => {
                    let Content::Tokens(tokens) = content else { panic!("tokens are told") };
                    assert_eq!((hashes.len(), tokens.len()), (1, tree.page()), "an event a page");
                    assert!(parent.is_none_or(|parent| self.0.contains_key(&parent)), "parents come first");
                    let page = tokens.iter().map(|token| char::from_u32(*token).unwrap()).collect();
                    assert_eq!(self.0.insert(hashes[0], page), None, "no page twice");
                    stored += 1;
                }
                BlockEvent::Removed { hash, .. } => {
                    assert!(self.0.remove(&hash).is_some());
                    removed += 1;
                }
                BlockEvent::Cleared => self.0.clear(),
            }
        }
        (stored, removed)
    }

    /// Each edge with the one above it: the shape of the tree, in letters.
    fn edges(&self, tree: &RadixCache) -> BTreeSet<(String, String)> {
        let label = |id: NodeId| tree.node(id).pages.iter().map(|page| self.0[page].as_str()).collect::<String>();
        let edge = |id: &NodeId| (tree.node(*id).parent.map_or(String::new(), label), label(*id));
        tree.heads.values().map(edge).collect()
    }
}

fn edges(of: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    of.iter().map(|(above, below)| ((*above).to_owned(), (*below).to_owned())).collect()
}

/// The nine pictures of the article that introduced radix attention. Lengths and the capacity of 66 tokens are chosen so
/// that nothing but the order of use decides what goes.
#[test]
fn the_nine_steps_of_radix_attention_split_and_evict_as_the_article_draws_them() {
    let (mut tree, mut heard) = (tree(1, 66), Listener::default());
    let of = |letter: &str, length: usize| letter.repeat(length);
    // a, the system prompt; b, the first turn of a dialogue; c, its second; d and g, the turns of another dialogue;
    // e, shots of examples; i to l, questions behind them; f, the turn with which the first dialogue comes back.
    let (a, b, c, d, g) = (of("a", 8), of("b", 4), of("c", 24), of("d", 12), of("g", 20));
    let (e, f) = (of("e", 10), of("c", 24) + "ffff");
    let [i, j, k, l] = ["i", "j", "k", "l"].map(|letter| of(letter, 3));
    assert_eq!(heard.edges(&tree), edges(&[]), "step 1");

    assert_eq!(pass(&mut tree, &(a.clone() + &b)), 0);
    heard.hear(&mut tree);
    let ab = a.clone() + &b;
    assert_eq!(heard.edges(&tree), edges(&[("", &ab)]), "step 2: system prompt, question and answer are one edge");

    assert_eq!(pass(&mut tree, &(ab.clone() + &c)), 12);
    heard.hear(&mut tree);
    assert_eq!(heard.edges(&tree), edges(&[("", &ab), (&ab, &c)]), "step 3: the second turn below it");

    assert_eq!(pass(&mut tree, &(a.clone() + &d)), 8);
    heard.hear(&mut tree);
    let split = edges(&[("", &a), (&a, &b), (&b, &c), (&a, &d)]);
    assert_eq!(heard.edges(&tree), split, "step 4: the first edge is split behind the system prompt");

    assert_eq!(pass(&mut tree, &(a.clone() + &d + &g)), 20);
    assert_eq!(heard.hear(&mut tree), (20, 24));
    let without_c = [("", a.as_str()), (&a, &b), (&a, &d), (&d, &g)];
    assert_eq!(heard.edges(&tree), edges(&without_c), "step 5: c is gone");

    assert_eq!(pass(&mut tree, &(e.clone() + &i)), 0);
    assert_eq!(heard.hear(&mut tree), (13, 0));
    let ei = e.clone() + &i;
    assert_eq!(heard.edges(&tree), edges(&[&without_c[..], &[("", &ei)]].concat()), "step 6: beside the first");

    for question in [&j, &k, &l] {
        assert_eq!(pass(&mut tree, &(e.clone() + question)), 10);
    }
    assert_eq!(heard.hear(&mut tree), (9, 0));
    let shots = [("", e.as_str()), (&e, &i), (&e, &j), (&e, &k), (&e, &l)];
    assert_eq!(heard.edges(&tree), edges(&[&without_c[..], &shots[..]].concat()), "step 7: e is split");

    assert_eq!(pass(&mut tree, &(ab.clone() + &f)), 12);
    assert_eq!(heard.hear(&mut tree), (28, 32));
    let first = [("", a.as_str()), (&a, &b), (&b, &f)];
    assert_eq!(heard.edges(&tree), edges(&[&first[..], &shots[..]].concat()), "step 8: d and g are gone");

    let samples = ["m", "n", "o"].map(|letter| of(letter, 4));
    for sample in &samples {
        assert_eq!(pass(&mut tree, &(e.clone() + &j + sample)), 13);
    }
    assert_eq!(heard.hear(&mut tree), (12, 9));
    let sampled = [("", e.as_str()), (&e, &j), (&j, &samples[0]), (&j, &samples[1]), (&j, &samples[2])];
    assert_eq!(heard.edges(&tree), edges(&[&first[..], &sampled[..]].concat()), "step 9: i, k and l are gone");
}

#[test]
fn a_prompt_of_pages_of_one_token_computes_all_but_what_is_cached_and_always_its_last() {
    let mut tree = tree(1, 100);
    pass(&mut tree, "<");
    let found: Vec<_> = (0..3).map(|_| pass(&mut tree, "<1234567")).collect();
    assert_eq!(found, [1, 7, 7], "cached; computed are 7, 1 and 1");
}

#[test]
fn edges_are_split_on_the_borders_of_pages_only() {
    let (mut tree, mut heard) = (tree(4, 100), Listener::default());
    pass(&mut tree, "AAAABBBBCCCC");
    assert_eq!(pass(&mut tree, "AAAABBxxCCCC"), 4);
    heard.hear(&mut tree);
    let expected = edges(&[("", "AAAA"), ("AAAA", "BBBBCCCC"), ("AAAA", "BBxxCCCC")]);
    assert_eq!(heard.edges(&tree), expected);
}

#[test]
fn what_another_request_inserted_meanwhile_is_shared_and_the_own_copy_given_back() {
    let mut tree = tree(4, 10);
    let mut both = [text(&tree, "AAAABBBBCC"), text(&tree, "AAAABBBBDD")];
    for sequence in &mut both {
        assert_eq!(tree.lookup(sequence), 0);
        tree.admit(sequence, 10).unwrap();
    }
    assert_eq!(tree.used(), 6);
    for sequence in &mut both {
        tree.insert(sequence, 10);
    }
    assert_eq!((tree.used(), tree.cached().count()), (4, 2), "two shared pages, and one begun by each");
    both.iter_mut().for_each(|sequence| tree.release(sequence));
    assert_eq!((tree.used(), tree.cached().count(), tree.take_events().len()), (0, 2, 2));
}

#[test]
fn a_path_in_use_is_never_evicted_and_without_room_nothing_changes() {
    let mut tree = tree(4, 4);
    pass(&mut tree, "AAAABBBB");
    tree.take_events();
    let mut running = text(&tree, "AAAABBBBC");
    tree.admit(&mut running, 9).unwrap();
    let mut other = text(&tree, "xxxxyyyy");
    assert_eq!(tree.admit(&mut other, 8), Err(OutOfBlocks { needed: 2, free: 1 }));
    assert_eq!((tree.used(), tree.cached().count(), tree.take_events()), (3, 2, vec![]));
    assert_eq!(tree.clear(), Err(CacheInUse { used: 3 }));
    assert_eq!(tree.grow(&mut running, 17), Err(OutOfBlocks { needed: 2, free: 1 }));
    tree.release(&mut running);
    tree.admit(&mut other, 8).unwrap();
    assert_eq!((tree.used(), tree.cached().count()), (2, 2));
}

#[test]
fn an_idle_path_that_is_hit_takes_room_like_new_pages() {
    let mut tree = tree(4, 3);
    pass(&mut tree, "AAAABBBB");
    let mut busy = text(&tree, "xxxx");
    tree.admit(&mut busy, 4).unwrap();
    let mut request = text(&tree, "AAAABBBBC");
    assert_eq!(tree.admit(&mut request, 9), Err(OutOfBlocks { needed: 3, free: 2 }));
    assert_eq!(tree.cached().count(), 2);
}

/// Counts again what the tree counts as it goes.
pub(crate) fn check(tree: &RadixCache, owners: &[&Sequence]) {
    let mut locks: HashMap<NodeId, usize> = HashMap::new();
    for sequence in owners {
        let (mut next, mut pages) = (sequence.node, 0);
        while let Some(id) = next {
            *locks.entry(id).or_default() += 1;
            pages += tree.node(id).pages.len();
            next = tree.node(id).parent;
        }
        assert_eq!(pages, sequence.registered, "a path ends where its node does");
    }
    let (mut cached, mut locked, mut leaves) = (0, 0, BTreeSet::new());
    for (head, id) in &tree.heads {
        let node = tree.node(*id);
        assert_eq!((node.pages.first(), node.locks), (Some(head), locks.get(id).copied().unwrap_or(0)));
        let children = tree.heads.values().filter(|child| tree.node(**child).parent == Some(*id)).count();
        assert_eq!(children, node.children);
        cached += node.pages.len();
        locked += if node.locks > 0 { node.pages.len() } else { 0 };
        if node.locks == 0 && children == 0 {
            leaves.insert((node.used, *id));
        }
    }
    let private = owners.iter().map(|sequence| sequence.private).sum::<usize>();
    assert_eq!((tree.cached, tree.locked, tree.private), (cached, locked, private));
    assert_eq!(tree.idle_leaves, leaves);
    assert!(tree.cached + tree.private <= tree.capacity);
}

#[test]
fn random_requests_leave_counts_locks_and_events_right_after_every_call() {
    for seed in 0..4 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut tree, mut heard) = (tree(u32::try_from(seed).unwrap() % 3 + 1, 40), Listener::default());
        let (mut owners, mut hits, mut removals): (Vec<(Sequence, usize)>, _, _) = (Vec::new(), 0, 0);
        for _ in 0..4000 {
            let at = rng.random_range(0..=owners.len());
            if let Some((sequence, tokens)) = owners.get_mut(at) {
                match rng.random_range(0..4) {
                    0 => {
                        let (mut sequence, tokens) = owners.swap_remove(at);
                        if rng.random_bool(0.7) {
                            tree.insert(&mut sequence, tokens);
                        }
                        tree.release(&mut sequence);
                    }
                    1 => tree.insert(sequence, *tokens),
                    _ => {
                        sequence.push(rng.random_range(97..99));
                        let all = sequence.len();
                        if tree.grow(sequence, all).is_ok() {
                            *tokens = all;
                        }
                    }
                }
            } else {
                let prompt: Vec<_> = (0..rng.random_range(1..20)).map(|_| rng.random_range(97..99)).collect();
                let mut sequence = tree.sequence(prompt, None, None);
                let (found, all) = (tree.lookup(&sequence), sequence.len());
                if tree.admit(&mut sequence, all).is_ok() {
                    hits += found;
                    owners.push((sequence, all));
                }
            }
            removals += heard.hear(&mut tree).1;
            check(&tree, &owners.iter().map(|(sequence, _)| sequence).collect::<Vec<_>>());
            let told: BTreeSet<_> = heard.0.keys().copied().collect();
            assert_eq!(tree.cached().collect::<BTreeSet<_>>(), told, "events tell the truth");
        }
        assert!(hits > 100 && removals > 100, "seed {seed} exerts no pressure: {hits} {removals}");
    }
}
