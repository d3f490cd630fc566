//! Made-up traces of known shapes, whose hit rate with an infinite cache has a closed form.
//!
//! All lengths are in blocks of `block` tokens, B below. Every prompt ends with half a block more, which is never shared, so
//! that all full blocks of it can hit. With h full blocks that hit and n prompts of f full blocks in all, the rate is
//! `h·B / (f·B + n·⌊B/2⌋)`.
//!
//! | shape | prompts | blocks that hit |
//! |---|---|---|
//! | few-shot | `tasks·requests` of `system + shots + question` | `(tasks·requests − 1)·system + tasks·(requests − 1)·shots` |
//! | self-consistency | `questions·samples` of `prompt` | `questions·(samples − 1)·prompt` |
//! | tree-of-thought | for each of `trees` and each level l from 0 to `depth`, `branching^l` of `prompt + l·thought` | for each tree, Σ over l ≥ 1 of `branching^l·(prompt + (l − 1)·thought)` |
//! | multi-turn, agent | for each of `sessions` and each turn k from 0 to `turns − 1`, `p(k) = system + context + k·(user + answer) + user` | `(sessions − 1)·system + sessions·Σ over k ≥ 1 of p(k − 1)` |
//!
//! What a turn generated is part of the next prompt and not in the cache: traces cache prompts only.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use warmpath_core::count::real;

use super::trace::{About, TraceRequest};

mod spec;

/// A workload: `SHAPE?key=value&…`, see [`Workload::from_str`](std::str::FromStr::from_str).
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    shape: Shape,
    /// Tokens of a block.
    block: u32,
    /// Arrivals a second: of requests (few-shot), questions, trees or sessions.
    rate: f64,
    is_poisson: bool,
    /// Seconds between the levels of a tree or the turns of a session, on average.
    think_s: f64,
    /// Tokens to generate, where the shape does not say.
    output: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    FewShot {
        tasks: u32,
        requests: u32,
        system: u32,
        shots: u32,
        question: u32,
        order: Order,
    },
    SelfConsistency {
        questions: u32,
        samples: u32,
        prompt: u32,
    },
    Tree {
        trees: u32,
        depth: u32,
        branching: u32,
        prompt: u32,
        thought: u32,
    },
    /// Multi-turn chats, and agents, which have long contexts of their own.
    Dialogue {
        sessions: u32,
        turns: u32,
        system: u32,
        context: u32,
        user: u32,
        answer: u32,
    },
}

/// In which order requests come from tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Random,
    /// One from each task, and again. Then whoever serves requests in turn serves each task at one place, if the number of
    /// tasks is a multiple of that of places.
    Turn,
}

/// How large a workload is, and how much of it hits an infinite cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    requests: u64,
    blocks: u64,
    hits: u64,
    /// The longest prompt.
    longest: u64,
}

impl Shape {
    /// The closed forms of the module's table; saturating.
    fn size(self) -> Size {
        let wide = u64::from;
        match self {
            Self::FewShot { tasks, requests, system, shots, question, .. } => {
                let (tasks, per_task, system, shots) = (wide(tasks), wide(requests), wide(system), wide(shots));
                let (count, prompt) = (tasks.saturating_mul(per_task), system + shots + wide(question));
                let hits = (count - 1).saturating_mul(system).saturating_add((count - tasks).saturating_mul(shots));
                Size { requests: count, blocks: count.saturating_mul(prompt), hits, longest: prompt }
            }
            Self::SelfConsistency { questions, samples, prompt } => {
                let (count, prompt) = (wide(questions).saturating_mul(wide(samples)), wide(prompt));
                let hits = (count - wide(questions)).saturating_mul(prompt);
                Size { requests: count, blocks: count.saturating_mul(prompt), hits, longest: prompt }
            }
            Self::Tree { trees, depth, branching, prompt, thought } => {
                let mut size = Size::default();
                let mut nodes = wide(trees);
                for level in 0..=wide(depth) {
                    let length = wide(prompt).saturating_add(level.saturating_mul(wide(thought)));
                    size.requests = size.requests.saturating_add(nodes);
                    size.blocks = size.blocks.saturating_add(nodes.saturating_mul(length));
                    let known = if level == 0 { 0 } else { length - wide(thought) };
                    size.hits = size.hits.saturating_add(nodes.saturating_mul(known));
                    size.longest = length;
                    nodes = nodes.saturating_mul(wide(branching));
                }
                size
            }
            Self::Dialogue { sessions, turns, system, context, user, answer } => {
                let (sessions, turns) = (wide(sessions), wide(turns));
                let grows = wide(user) + wide(answer);
                let first = wide(system) + wide(context) + wide(user);
                // Sum of p(k) over the first so many turns.
                let sum = |turns: u64| {
                    let growth = grows.saturating_mul(turns.saturating_mul(turns.saturating_sub(1)) / 2);
                    turns.saturating_mul(first).saturating_add(growth)
                };
                let again = (sessions - 1).saturating_mul(wide(system));
                Size {
                    requests: sessions.saturating_mul(turns),
                    blocks: sessions.saturating_mul(sum(turns)),
                    hits: again.saturating_add(sessions.saturating_mul(sum(turns - 1))),
                    longest: first.saturating_add((turns - 1).saturating_mul(grows)),
                }
            }
        }
    }
}

impl Workload {
    /// Tokens that an id stands for.
    pub fn block_size(&self) -> u32 {
        self.block
    }

    /// The hit rate that an infinite cache reaches under the engine's rule, in closed form.
    pub fn hit_rate(&self) -> f64 {
        let size = self.shape.size();
        let block = u64::from(self.block);
        real(size.hits * block) / real(size.blocks * block + size.requests * u64::from(self.block / 2))
    }

    /// The requests in order of arrival. Equal seeds give equal traces. O(blocks).
    pub fn generate(&self, seed: u64) -> Vec<TraceRequest> {
        let mut maker =
            Maker { workload: self, rng: StdRng::seed_from_u64(seed), next_id: 0, at_s: 0.0, requests: Vec::new() };
        match self.shape {
            Shape::FewShot { tasks, requests, system, shots, question, order } => {
                maker.few_shot((tasks, requests), [system, shots, question], order);
            }
            Shape::SelfConsistency { questions, samples, prompt } => maker.self_consistency(questions, samples, prompt),
            Shape::Tree { trees, depth, branching, prompt, thought } => {
                maker.trees(trees, (depth, branching), prompt, thought);
            }
            Shape::Dialogue { sessions, turns, system, context, user, answer } => {
                maker.dialogues((sessions, turns), system, context, (user, answer));
            }
        }
        let mut requests = maker.requests;
        requests.sort_by_key(|request| request.at_ms);
        requests
    }
}

struct Maker<'a> {
    workload: &'a Workload,
    rng: StdRng,
    next_id: u64,
    /// When the last one arrived.
    at_s: f64,
    requests: Vec<TraceRequest>,
}

impl Maker<'_> {
    fn few_shot(&mut self, (tasks, requests): (u32, u32), [system, shots, question]: [u32; 3], order: Order) {
        let system = self.fresh(system);
        let tasks: Vec<_> = (0..tasks).map(|_| [system.clone(), self.fresh(shots)].concat()).collect();
        let mut asked: Vec<_> = (0..requests).flat_map(|_| &tasks).collect();
        if order == Order::Random {
            asked.shuffle(&mut self.rng);
        }
        for task in asked {
            let at_s = self.arrival();
            let prompt = [task.as_slice(), &self.fresh(question)].concat();
            self.request(at_s, prompt, self.workload.output, None);
        }
    }

    fn self_consistency(&mut self, questions: u32, samples: u32, prompt: u32) {
        for question in 0..questions {
            let at_s = self.arrival();
            let prompt = self.fresh(prompt);
            for _ in 0..samples {
                self.request(at_s, prompt.clone(), self.workload.output, Some(question));
            }
        }
    }

    fn trees(&mut self, trees: u32, (depth, branching): (u32, u32), prompt: u32, thought: u32) {
        for tree in 0..trees {
            let mut at_s = self.arrival();
            let mut level = vec![self.fresh(prompt)];
            for depth_left in (0..=depth).rev() {
                let output = thought.saturating_mul(self.workload.block);
                level.iter().for_each(|prompt| self.request(at_s, prompt.clone(), output, Some(tree)));
                if depth_left == 0 {
                    break;
                }
                at_s += self.wait(self.workload.think_s);
                let nodes = level.iter().flat_map(|prompt| (0..branching).map(move |_| prompt));
                let next: Vec<_> = nodes.map(|prompt| [prompt.clone(), self.fresh(thought)].concat()).collect();
                level = next;
            }
        }
    }

    fn dialogues(&mut self, (sessions, turns): (u32, u32), system: u32, context: u32, (user, answer): (u32, u32)) {
        let system = self.fresh(system);
        for session in 0..sessions {
            let mut at_s = self.arrival();
            let mut history = [system.clone(), self.fresh(context)].concat();
            for _ in 0..turns {
                history.extend(self.fresh(user));
                let output = answer.saturating_mul(self.workload.block).max(1);
                self.request(at_s, history.clone(), output, Some(session));
                history.extend(self.fresh(answer));
                at_s += self.wait(self.workload.think_s);
            }
        }
    }

    /// Ids that nobody has.
    fn fresh(&mut self, count: u32) -> Vec<u64> {
        let from = self.next_id;
        self.next_id += u64::from(count);
        (from..self.next_id).collect()
    }

    /// When the next one arrives, in seconds.
    fn arrival(&mut self) -> f64 {
        self.at_s += self.wait(1.0 / self.workload.rate);
        self.at_s
    }

    /// Seconds to wait: `mean`, or drawn from the exponential distribution with this mean.
    fn wait(&mut self, mean: f64) -> f64 {
        if !self.workload.is_poisson {
            return mean;
        }
        let uniform: f64 = self.rng.random();
        -mean * (1.0 - uniform).ln()
    }

    /// A request whose prompt is these blocks and half a block more.
    fn request(&mut self, at_s: f64, mut hash_ids: Vec<u64>, output_length: u32, session: Option<u32>) {
        let full = u32::try_from(hash_ids.len()).unwrap_or(u32::MAX);
        let input_length = full.saturating_mul(self.workload.block).saturating_add(self.workload.block / 2);
        hash_ids.extend(self.fresh(1));
        let about = session.map(|at| Box::new(About { session: Some(at.to_string()), ..About::default() }));
        self.requests.push(TraceRequest { at_ms: ms(at_s), input_length, output_length, hash_ids, about });
    }
}

#[expect(clippy::as_conversions, reason = "times are finite and not negative; a float that is too large saturates")]
fn ms(seconds: f64) -> u64 {
    (seconds * 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use super::super::reachable;
    use super::*;

    fn made(spec: &str) -> (Workload, Vec<TraceRequest>) {
        let workload: Workload = spec.parse().unwrap();
        let requests = workload.generate(7);
        (workload, requests)
    }

    #[test]
    fn every_shape_reaches_its_closed_form_exactly() {
        for (spec, hits, tokens) in [
            // 6 prompts of 8 blocks of 4, 2 tokens more each; 5·1 + 2·2·3 blocks hit.
            ("few-shot?tasks=2&requests=3&system=1&shots=3&question=4&block=4", 5 + 12, 6 * 34),
            ("self-consistency?questions=3&samples=4&prompt=5&block=4", 3 * 3 * 5, 12 * 22),
            // Levels of 1, 2 and 4 prompts of 5, 8 and 11 blocks.
            ("tree-of-thought?trees=2&depth=2&branching=2&prompt=5&thought=3&block=4", 2 * (2 * 5 + 4 * 8), 2 * 274),
            // Prompts of 4, 9 and 14 blocks.
            ("multi-turn?sessions=3&turns=3&system=2&user=2&answer=3&block=4", 2 * 2 + 3 * (4 + 9), 3 * 114),
            ("agent?sessions=2&turns=3&system=1&context=10&user=1&answer=1&block=4", 1 + 2 * (12 + 14), 2 * 174),
        ] {
            let (workload, requests) = made(spec);
            let total: u64 = requests.iter().map(|request| u64::from(request.input_length)).sum();
            assert_eq!(total, tokens, "{spec}");
            let expected = real(hits * 4) / real(tokens);
            assert!((workload.hit_rate() - expected).abs() < 1e-12, "{spec}: {} {expected}", workload.hit_rate());
            let reached = reachable::hit_rate(&requests, workload.block_size(), usize::MAX);
            assert!((reached - expected).abs() < 1e-12, "{spec}: {reached} {expected}");
        }
    }

    #[test]
    fn defaults_reach_their_closed_forms_as_well() {
        for shape in ["few-shot", "self-consistency", "tree-of-thought", "multi-turn", "agent"] {
            let (workload, requests) = made(shape);
            let reached = reachable::hit_rate(&requests, workload.block_size(), usize::MAX);
            assert!((reached - workload.hit_rate()).abs() < 1e-12, "{shape}");
            assert!(requests.is_sorted_by_key(|request| request.at_ms), "{shape}");
            let size = workload.shape.size();
            assert_eq!(u64::try_from(requests.len()), Ok(size.requests), "{shape}");
            let longest = requests.iter().map(|request| request.input_length).max().unwrap();
            assert_eq!(u64::from(longest / workload.block), size.longest, "{shape}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_traces_and_fixed_arrivals_are_even() {
        let workload: Workload = "few-shot?rate=4".parse().unwrap();
        assert_eq!(workload.generate(1), workload.generate(1));
        assert_ne!(workload.generate(1), workload.generate(2));
        let (_, requests) = made("few-shot?rate=4&arrivals=fixed");
        let times: Vec<_> = requests.iter().take(3).map(|request| request.at_ms).collect();
        assert_eq!(times, [250, 500, 750]);
    }

    #[test]
    fn tasks_come_in_any_order_or_in_turn() {
        let asked = |spec| made(spec).1.iter().map(|request| request.hash_ids[0]).collect::<Vec<_>>();
        let turn = asked("few-shot?tasks=4&requests=30&system=0&shots=1&order=turn");
        assert!(turn.chunks(4).all(|round| round == [0, 1, 2, 3]), "{turn:?}");
        let mut random = asked("few-shot?tasks=4&requests=30&system=0&shots=1");
        assert!(random.chunks(4).filter(|round| *round == [0, 1, 2, 3]).count() < 6, "{random:?}");
        random.sort_unstable();
        assert!((0..4).all(|task| random.iter().filter(|asked| **asked == task).count() == 30));
    }

    #[test]
    fn poisson_arrivals_come_at_their_rate() {
        let (_, requests) = made("few-shot?tasks=100&requests=100&rate=50");
        let last = requests.last().unwrap().at_ms;
        // 10 000 at 50 a second take 200 s; the deviation is 2 s.
        assert!((194_000..206_000).contains(&last), "{last}");
    }
}
