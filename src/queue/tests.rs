use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;

use tokio::sync::mpsc;

use super::*;
use crate::telemetry::metrics::Metrics;

/// Workers that hold so many requests together.
#[derive(Debug)]
struct Workers {
    free: AtomicU32,
    attempts: AtomicU32,
    growth: Mutex<Option<Instant>>,
    gate: Arc<Gate>,
}

/// A request that may not go to all of them.
#[derive(Clone, Debug)]
struct Picky(Arc<Workers>, Choice);

/// One request's reservation.
#[derive(Debug)]
struct Held(Arc<Workers>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
        self.0.gate.released();
    }
}

impl Placing for Arc<Workers> {
    type Placed = Held;

    fn place(&mut self) -> Result<(Held, Tokens), GatewayError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let take = |free: u32| free.checked_sub(1);
        match self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => {
                self.gate.reserved();
                Ok((Held(Arc::clone(self)), Tokens(1)))
            }
            Err(_) => Err(PlaceError::AllBusy.into()),
        }
    }

    fn choice(&self) -> Choice {
        Choice::ANY
    }

    fn next_growth(&self, now: Instant) -> Option<Instant> {
        self.growth.lock().unwrap().filter(|growth| *growth > now)
    }
}

impl Placing for Picky {
    type Placed = Held;

    fn place(&mut self) -> Result<(Held, Tokens), GatewayError> {
        self.0.place()
    }

    fn choice(&self) -> Choice {
        self.1
    }

    fn next_growth(&self, now: Instant) -> Option<Instant> {
        self.0.next_growth(now)
    }
}

const TIMEOUT: Duration = Duration::from_secs(10);

fn workers(free: u32, seats: &Arc<Seats>) -> Arc<Workers> {
    let rules = Rules { waiting: 100, of_tenant: 50, weights: [NonZeroU32::MIN; 3] };
    let settings = GateSettings { queues: true, rules, timeout: TIMEOUT };
    let gate = Gate::new(settings, seats, Metrics::new("w").model(0, "m"), Tasks::new());
    Arc::new(Workers { free: free.into(), attempts: AtomicU32::new(0), growth: Mutex::default(), gate })
}

fn asking(class: i32) -> Asking {
    let arrived = now();
    let deadline = arrived + Duration::from_secs(3_600);
    Asking { arrived, class: Class(class), tenant: None, deadline, returned: false }
}

impl Workers {
    /// Asks in a task of its own, which sends what came of it.
    fn ask(
        self: &Arc<Self>,
        name: u32,
        asking: Asking,
        tasks: &Tasks,
    ) -> mpsc::Receiver<(u32, Result<Held, GatewayError>)> {
        let (tell, told) = mpsc::channel(1);
        self.ask_and_tell(name, asking, tasks, tell);
        told
    }

    fn ask_and_tell(
        self: &Arc<Self>,
        name: u32,
        asking: Asking,
        tasks: &Tasks,
        tell: mpsc::Sender<(u32, Result<Held, GatewayError>)>,
    ) {
        let mut workers = Arc::clone(self);
        tasks.spawn(async move {
            let gate = Arc::clone(&workers.gate);
            let result = gate.admit(&asking, &mut workers).await;
            let _ = tell.send((name, result)).await;
        });
    }

    fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    async fn now(self: &Arc<Self>) -> Held {
        let gate = Arc::clone(&self.gate);
        gate.admit(&asking(0), &mut Arc::clone(self)).await.unwrap()
    }
}

/// Lets everything run that can.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn room_goes_to_the_one_that_is_next_and_nobody_else_is_woken() {
    let (workers, tasks) = (workers(1, &Seats::new(9)), Tasks::new());
    let held = workers.now().await;
    let (tell, mut told) = mpsc::channel(9);
    for (name, class) in [(0, 0), (1, 1), (2, -1), (3, 0)] {
        workers.ask_and_tell(name, asking(class), &tasks, tell.clone());
        settle().await;
    }
    assert_eq!((workers.attempts(), workers.gate.lengths()), (2, [0, 1, 2, 1]));
    drop(held);
    settle().await;
    let (first, held) = told.recv().await.unwrap();
    // One tried and went, the next one found nothing.
    assert_eq!((first, workers.attempts(), workers.gate.lengths()), (2, 4, [0, 0, 2, 1]));
    drop(held);
    let mut order = Vec::new();
    for _ in 0..3 {
        order.push(told.recv().await.unwrap().0);
    }
    assert_eq!((order, workers.gate.lengths()), (vec![0, 1, 3], [0; 4]));
}

#[tokio::test(start_paused = true)]
async fn much_room_at_once_lets_many_in() {
    let (workers, tasks) = (workers(0, &Seats::new(99)), Tasks::new());
    let mut told: Vec<_> = (0..20).map(|name| workers.ask(name, asking(0), &tasks)).collect();
    settle().await;
    workers.free.store(15, Ordering::Relaxed);
    workers.gate.room();
    settle().await;
    assert_eq!(told.iter_mut().filter_map(|told| told.try_recv().ok()).map(std::mem::forget).count(), 15);
    assert_eq!(workers.gate.lengths(), [0, 0, 5, 0]);
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_while_it_has_the_turn_passes_it_on() {
    let workers = workers(1, &Seats::new(9));
    let held = workers.now().await;
    let (leaves, stays) = (Tasks::new(), Tasks::new());
    let _gone = workers.ask(0, asking(0), &leaves);
    settle().await;
    let mut told = workers.ask(1, asking(0), &stays);
    settle().await;
    drop(held);
    leaves.drain(Duration::ZERO).await;
    settle().await;
    assert_eq!((told.recv().await.unwrap().0, workers.gate.lengths()), (1, [0; 4]));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_queue_or_its_client_allows() {
    let (workers, tasks) = (workers(0, &Seats::new(9)), Tasks::new());
    let start = now();
    let brief = Asking { deadline: start + Duration::from_secs(3), ..asking(0) };
    let [mut patient, mut brief] = [asking(0), brief].map(|asking| workers.ask(0, asking, &tasks));
    let error = brief.recv().await.unwrap().1.unwrap_err();
    assert!(matches!(error, GatewayError::Deadline) && now() - start == Duration::from_secs(3), "{error}");
    let error = patient.recv().await.unwrap().1.unwrap_err();
    let GatewayError::Queue { refusal: Refusal::Expired, retry } = error else { panic!("{error}") };
    assert!(retry >= RETRY_BLIND && retry < RETRY_BLIND * 3 / 2, "{retry:?}");
    assert_eq!((now() - start, workers.gate.lengths()), (TIMEOUT, [0; 4]));
    let late = Asking { deadline: now(), ..asking(0) };
    workers.free.store(1, Ordering::Relaxed);
    let attempts = workers.attempts();
    let error = workers.ask(0, late, &tasks).recv().await.unwrap().1.unwrap_err();
    assert!(matches!(error, GatewayError::Deadline) && workers.attempts() == attempts, "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_before_goes_first_and_does_not_hold_up_the_rest() {
    let (workers, tasks) = (workers(0, &Seats::new(9)), Tasks::new());
    let returned = Asking { returned: true, ..asking(5) };
    let mut fresh = workers.ask(0, asking(0), &tasks);
    settle().await;
    let mut returned = workers.ask(1, returned, &tasks);
    settle().await;
    workers.free.store(1, Ordering::Relaxed);
    workers.gate.room();
    let held = returned.recv().await.unwrap().1.unwrap();
    assert!(fresh.try_recv().is_err());
    // Now the one that failed it is the only one with room: a line where the returned one finds nothing.
    let mut line = Line::new(workers.gate.settings.rules);
    let (_, mut new) = line.enter(now(), entry(false, Choice::ANY)).unwrap();
    let (ticket, mut old) = line.enter(now(), entry(true, Choice::some(1))).unwrap();
    line.room();
    assert_eq!((old.try_recv(), new.try_recv().is_err()), (Ok(Call::Turn), true));
    let _old = line.park(ticket, Choice::some(1));
    assert_eq!(new.try_recv(), Ok(Call::Turn));
    drop(held);
    assert!(fresh.recv().await.unwrap().1.is_ok());
}

fn entry(returned: bool, choice: Choice) -> Entry {
    Entry { class: Class(0), tenant: None, expires: now() + TIMEOUT, returned, choice }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_given_more_with_time_wakes_by_itself() {
    let (workers, tasks) = (workers(0, &Seats::new(9)), Tasks::new());
    let start = now();
    *workers.growth.lock().unwrap() = Some(start + Duration::from_secs(4));
    let mut told = workers.ask(0, asking(0), &tasks);
    settle().await;
    assert_eq!(workers.attempts(), 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(workers.attempts(), 1);
    workers.free.store(1, Ordering::Relaxed);
    assert!(told.recv().await.unwrap().1.is_ok());
    assert_eq!((now() - start, workers.attempts()), (Duration::from_secs(4), 2));
}

#[tokio::test(start_paused = true)]
async fn models_take_turns_at_the_gateways_own_limit() {
    let (seats, tasks) = (Seats::new(1), Tasks::new());
    let models = [workers(9, &seats), workers(9, &seats), workers(0, &seats)];
    let held = models[0].now().await;
    let (tell, mut told) = mpsc::channel(9);
    for (model, name) in [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2)] {
        models[model].ask_and_tell(name, asking(0), &tasks, tell.clone());
        settle().await;
    }
    drop(held);
    let mut order = Vec::new();
    for _ in 0..4 {
        let (name, held) = told.recv().await.unwrap();
        assert!(held.is_ok() && seats.taken() == 1, "{order:?} {name} {held:?}");
        order.push(name);
        drop(held);
        settle().await;
    }
    order.sort_unstable();
    // The third model has no worker with room, and keeps nobody from a seat.
    assert_eq!((order, seats.taken(), models[2].gate.lengths()), (vec![0, 0, 1, 1], 0, [0, 0, 1, 0]));
    models[2].free.store(1, Ordering::Relaxed);
    models[2].gate.room();
    assert_eq!(told.recv().await.unwrap().0, 2);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_queues_a_full_fleet_is_an_answer() {
    let seats = Seats::new(1);
    let rules = Rules { waiting: 0, of_tenant: 0, weights: [NonZeroU32::MIN; 3] };
    let settings = GateSettings { queues: false, rules, timeout: TIMEOUT };
    let gate = Gate::new(settings, &seats, Metrics::new("w").model(0, "m"), Tasks::new());
    let full = Workers { free: 0.into(), attempts: 0.into(), growth: Mutex::default(), gate: Arc::clone(&gate) };
    let mut full = Arc::new(full);
    let error = gate.admit(&asking(0), &mut full).await.unwrap_err();
    assert!(matches!(error, GatewayError::Place { source: PlaceError::AllBusy }), "{error}");
    // The router's own limit is another one.
    seats.take();
    let error = gate.admit(&asking(0), &mut full).await.unwrap_err();
    assert!(matches!(error, GatewayError::TooManyInFlight), "{error}");
}

/// Requests that come, hold, leave and vanish on several threads: each wake-up arrives, nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_under_a_storm() {
    const LIMIT: u32 = 3;
    let seats = Seats::new(LIMIT + 1);
    let models = [workers(LIMIT, &seats), workers(LIMIT, &seats)];
    let (lasting, brief) = (Tasks::new(), Tasks::new());
    for lane in 0..48_u32 {
        let workers = Arc::clone(&models[usize::try_from(lane % 2).unwrap()]);
        let (tasks, vanishes) = if lane % 3 == 0 { (&brief, true) } else { (&lasting, false) };
        tasks.spawn(async move {
            let gate = Arc::clone(&workers.gate);
            for round in 0..300_u32 {
                let asking = Asking { tenant: Some(TenantId(lane)), ..asking(i32::try_from(lane % 5).unwrap() - 2) };
                let asking = Asking { returned: round % 7 == 0, ..asking };
                let choice = if (lane + round) % 3 == 0 { Choice::some(u64::from(lane % 5) + 1) } else { Choice::ANY };
                let mut placing = Picky(Arc::clone(&workers), choice);
                let admitted = gate.admit(&asking, &mut placing);
                if round % 50 == 0 {
                    gate.regroup();
                }
                if vanishes {
                    // Given up after it was polled a few times, wherever it is then.
                    let patience = async {
                        for _ in 0..round % 4 {
                            tokio::task::yield_now().await
                        }
                    };
                    tokio::select! { biased; held = admitted => drop(held), () = patience => {} }
                    continue;
                }
                let held = admitted.await.expect("nobody is refused");
                for _ in 0..round % 3 {
                    tokio::task::yield_now().await;
                }
                drop(held);
            }
        });
    }
    // A lost wake-up would keep somebody waiting until its time is over, and fail the expectation above.
    let ended = async {
        while lasting.len() + brief.len() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT * 2, ended).await.expect("all end");
    for workers in &models {
        assert_eq!((workers.gate.lengths(), workers.free.load(Ordering::Relaxed)), ([0; 4], LIMIT));
        assert!(workers.gate.line().rests());
    }
    assert_eq!(seats.taken(), 0);
}
