//! The account of connections: what each may reserve, and which one is closed.

use std::task::Waker;

use super::*;

fn is_closing(account: &Account) -> bool {
    account.is_closing.load(Ordering::Relaxed)
}

#[test]
fn connections_that_reserve_all_they_can_leave_room_for_one_that_has_nothing() {
    for hogs in [1, 2, 7, 32, 100] {
        let worker = WorkerAccount::default();
        let hogs: Vec<_> = (0..hogs).map(|_| worker.open()).collect();
        let mut taken = Vec::new();
        while let before = taken.len()
            && {
                taken.extend(hogs.iter().filter_map(|hog| hog.reserve(16 << 10)));
                taken.len() > before
            }
        {}
        assert!(
            hogs.len() > 7 || worker.kept() >= KEPT_MAX / 5,
            "{} keep {}",
            hogs.len(),
            worker.kept()
        );
        let newcomer = worker.open();
        assert!(
            newcomer.reserve(256 << 10).is_some(),
            "{} keep {}",
            hogs.len(),
            worker.kept()
        );
        drop(taken);
        assert_eq!(worker.kept(), 0);
    }
}

#[test]
fn above_the_sum_the_heaviest_connection_is_closed_and_no_other() {
    let worker = WorkerAccount::default();
    let connections: Vec<_> = (1..=10).map(|_| worker.open()).collect();
    let charge = |(index, account): (usize, &Arc<Account>)| account.charge((index + 1) << 10);
    let small: Vec<Charge> = connections.iter().enumerate().map(charge).collect();
    let heavy = connections[3].charge(KEPT_MAX);
    let closed = || {
        connections
            .iter()
            .map(|account| is_closing(account))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        closed(),
        (0..10).map(|index| index == 3).collect::<Vec<_>>()
    );
    // For what the closing one still keeps, no other is closed, and nothing is reserved in its place.
    let more = connections[4].charge(1 << 20);
    assert!(!is_closing(&connections[4]));
    assert!(connections[4].reserve(1 << 10).is_none());
    let too_much = connections[5].charge(KEPT_MAX);
    assert!(is_closing(&connections[5]) && !is_closing(&connections[4]));
    drop((small, heavy, more, too_much));
    assert_eq!(
        (worker.kept(), worker.0.closing.load(Ordering::Relaxed)),
        (0, 0)
    );
}

#[test]
fn who_waits_for_room_is_woken_when_bytes_go() {
    let worker = WorkerAccount::default();
    let hog = worker.open();
    let waits = worker.open();
    let held = hog.charge(KEPT_MAX - (1 << 20));
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(woken.clone());
    let reserve = || waits.poll_reserve(2 << 20, 0, || false, &Context::from_waker(&waker));
    assert!(reserve().is_pending() && reserve().is_pending());
    assert_eq!(
        lock(&worker.0.waiting).len(),
        1,
        "who asks again waits once"
    );
    assert!(!woken.0.load(Ordering::Relaxed));
    drop(held);
    assert!(woken.0.load(Ordering::Relaxed) && reserve().is_ready());
}

#[test]
fn bytes_that_others_only_hold_are_evicted_for_a_reservation() {
    let worker = WorkerAccount::default();
    let hog = worker.open();
    let other = worker.open();
    let mut held: Vec<Charge> = (0..4).map(|_| hog.charge(KEPT_MAX / 4)).collect();
    let evict = || held.pop().is_some();
    let reserved = other.poll_reserve(
        1 << 20,
        KEPT_MAX,
        evict,
        &Context::from_waker(Waker::noop()),
    );
    assert!(reserved.is_ready());
    let needed = (UNRESERVED_BYTES + (1 << 20)).div_ceil(KEPT_MAX / 4);
    assert_eq!(held.len(), 4 - needed, "no more is evicted than is needed");
}

#[test]
fn accounts_of_connections_that_are_gone_are_forgotten() {
    let worker = WorkerAccount::default();
    (0..100_000).for_each(|_| drop(worker.open()));
    assert!(lock(&worker.0.connections).capacity() < 64);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
