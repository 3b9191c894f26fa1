//! Permits of calls: how many each connection may hold, and who pays when all are taken.

use super::*;
use crate::transport::account::UNRESERVED_BYTES;

const KINDS: [CallKind; CallKind::COUNT] = [
    CallKind::Decision,
    CallKind::Large,
    CallKind::Stream,
    CallKind::Check,
    CallKind::Watch,
    CallKind::Other,
];

fn reserve(connection: &Rc<ConnectionCallLimits>, bytes: usize) -> Option<Charge> {
    match connection.poll_reserve(bytes, &Context::from_waker(Waker::noop())) {
        Poll::Ready(charge) => Some(charge),
        Poll::Pending => None,
    }
}

fn all_of(connection: &Rc<ConnectionCallLimits>, kind: CallKind) -> Vec<CallPermit> {
    std::iter::from_fn(|| connection.permit(kind)).collect()
}

#[test]
fn connections_that_take_all_they_can_leave_permits_for_one_that_holds_none() {
    for kind in KINDS {
        for hogs in [1, 2, 7, 32, 100] {
            let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
            let hogs: Vec<_> = (0..hogs)
                .map(|_| calls.connection(Arc::default()))
                .collect();
            let mut taken = Vec::new();
            // Each takes one in turn, until none gets more.
            while let before = taken.len()
                && {
                    taken.extend(hogs.iter().filter_map(|hog| hog.permit(kind)));
                    taken.len() > before
                }
            {}
            assert!(taken.len() <= kind.calls_max());
            let newcomer = calls.connection(Arc::default());
            let left = all_of(&newcomer, kind);
            assert!(
                !left.is_empty(),
                "{kind:?}: {} of {} are taken",
                taken.len(),
                kind.calls_max()
            );
            // A connection that is alone may have as many streams as a connection may open, of the kinds with a high
            // limit.
            assert!(
                hogs.len() > 1 || taken.len() >= kind.calls_max().min(512) / 4,
                "{kind:?}: {}",
                taken.len()
            );
            drop((left, taken));
            assert!(
                calls.0.used.calls.iter().all(|calls| calls.get() == 0)
                    && calls.0.account.kept() == 0
            );
        }
    }
}

#[test]
fn each_kind_has_permits_of_its_own_and_refused_calls_are_counted() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let connections: Vec<_> = (0..10_000)
        .map(|_| calls.connection(Arc::default()))
        .collect();
    let taken: Vec<_> = connections
        .iter()
        .filter_map(|connection| connection.permit(CallKind::Decision))
        .collect();
    assert_eq!(taken.len(), CALLS_MAX);
    assert_eq!(
        calls.0.refused.load(Ordering::Relaxed),
        10_000 - CALLS_MAX as u64
    );
    assert!(
        KINDS[1..]
            .iter()
            .all(|kind| connections[0].permit(*kind).is_some())
    );
}

#[test]
fn calls_that_wait_for_their_request_are_evicted_the_oldest_first() {
    for kind in [
        CallKind::Decision,
        CallKind::Large,
        CallKind::Check,
        CallKind::Watch,
    ] {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let hogs: Vec<_> = (0..500).map(|_| calls.connection(Arc::default())).collect();
        // Each connection takes all it can.
        let unfinished: Vec<_> = hogs
            .iter()
            .flat_map(|hog| (0..256).filter_map(|_| Some(hog.wait(hog.permit(kind)?, None))))
            .collect();
        assert!(
            unfinished.len() >= kind.calls_max(),
            "{kind:?}: {}",
            unfinished.len()
        );
        let newcomer = calls.connection(Arc::default());
        let permits: Vec<_> = (0..kind.calls_max() / 3)
            .filter_map(|_| newcomer.permit(kind))
            .collect();
        assert_eq!(permits.len(), kind.calls_max() / 3, "{kind:?}");
        let evicted = unfinished.iter().filter(|call| call.is_evicted.get());
        assert!(evicted.count() >= permits.len(), "{kind:?}");
        // Of each connection, the oldest go.
        for of_one in unfinished.chunk_by(|a, b| Rc::ptr_eq(&a.calls, &b.calls)) {
            assert!(of_one.is_sorted_by_key(|call| !call.is_evicted.get()));
        }
        drop((permits, unfinished));
        for used in [&calls.0.used, &calls.0.unfinished] {
            assert!(used.calls.iter().all(|calls| calls.get() == 0));
        }
    }
}

#[test]
fn a_call_of_a_light_connection_is_not_evicted_for_a_heavy_one() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let polite = calls.connection(Arc::default());
    let hog = calls.connection(Arc::default());
    let waiting = polite.wait(polite.permit(CallKind::Decision).unwrap(), None);
    let answers = hog.account().charge(KEPT_MAX - CALL_BYTES);
    assert!(hog.permit(CallKind::Decision).is_none() && !waiting.is_evicted.get());
    drop(answers);
    let own = hog.wait(hog.permit(CallKind::Decision).unwrap(), None);
    let mut _answers = hog.account().charge(hog.account().free());
    let _permit = hog.permit(CallKind::Decision).unwrap();
    assert!(own.is_evicted.get() && !waiting.is_evicted.get());
    // If many wait, the oldest goes all the same.
    let many: Vec<_> = (1..SPARED_MAX)
        .map(|_| calls.connection(Arc::default()))
        .map(|light| light.wait(light.permit(CallKind::Decision).unwrap(), None))
        .collect();
    assert!(hog.permit(CallKind::Decision).is_some());
    assert!(waiting.is_evicted.get() && !many[0].is_evicted.get());
}

#[test]
fn bytes_of_incomplete_messages_are_given_to_other_calls() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let hogs: Vec<_> = (0..100).map(|_| calls.connection(Arc::default())).collect();
    let begin = |hog: &Rc<ConnectionCallLimits>| {
        Some(hog.wait(hog.permit(CallKind::Large)?, Some(reserve(hog, 1 << 20)?)))
    };
    let unfinished: Vec<_> = hogs.iter().filter_map(begin).collect();
    // What their permits take leaves room for one less.
    assert_eq!(
        unfinished
            .iter()
            .filter(|call| !call.is_evicted.get())
            .count(),
        ((KEPT_MAX - UNRESERVED_BYTES) >> 20) - 1
    );
    let newcomer = calls.connection(Arc::default());
    let whole: Vec<_> = (0..4).filter_map(|_| reserve(&newcomer, 1 << 20)).collect();
    assert_eq!(whole.len(), 4);
    drop((whole, unfinished));
    assert_eq!(
        (calls.0.account.kept(), calls.0.unfinished.bytes.get()),
        (0, 0)
    );
}

#[test]
fn bytes_are_taken_from_calls_of_any_kind_and_only_from_calls_that_hold_some() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let hogs = [
        calls.connection(Arc::default()),
        calls.connection(Arc::default()),
    ];
    let early = hogs[0].wait(hogs[0].permit(CallKind::Large).unwrap(), None);
    let begin = |hog: &Rc<ConnectionCallLimits>| {
        hog.wait(
            hog.permit(CallKind::Decision).unwrap(),
            reserve(hog, 1 << 20),
        )
    };
    let unfinished: Vec<_> = (0..32).flat_map(|_| hogs.iter().map(begin)).collect();
    let filler = hogs[0]
        .account()
        .charge(hogs[0].account().free() - UNRESERVED_BYTES);
    let evicted = || {
        unfinished
            .iter()
            .filter(|call| call.is_evicted.get())
            .count()
    };
    let newcomer = calls.connection(Arc::default());
    let before = evicted();
    let taken = reserve(&newcomer, 1 << 20);
    assert!(taken.is_some() && evicted() == before + 1 && !early.is_evicted.get());
    // A call gets the bytes for its message from others, although none of its kind has waited longer.
    early.add(hogs[0].account().charge(4 << 10));
    assert!(!early.is_evicted.get());
    drop((taken, early, unfinished, filler));
    assert_eq!(
        (calls.0.account.kept(), calls.0.unfinished.bytes.get()),
        (0, 0)
    );
}

#[test]
fn a_connection_that_keeps_little_gets_a_permit_though_others_keep_all_there_may_be() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let hog = calls.connection(Arc::default());
    let newcomer = calls.connection(Arc::default());
    let all = hog.account().charge(hog.account().free());
    assert!(hog.permit(CallKind::Decision).is_none());
    let permits: Vec<_> = (0..8)
        .filter_map(|_| newcomer.permit(CallKind::Decision))
        .collect();
    assert_eq!(permits.len(), 8);
    drop((all, permits));
    assert_eq!(calls.0.account.kept(), 0);
}

#[test]
fn calls_that_came_and_went_are_forgotten() {
    let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
    let connection = calls.connection(Arc::default());
    let begin = || {
        connection.wait(
            connection.permit(CallKind::Large).unwrap(),
            reserve(&connection, 4 << 10),
        )
    };
    let listed = || {
        [
            &calls.0.waiting[CallKind::Large as usize],
            &calls.0.holding_bytes,
        ]
        .map(|list| list.borrow().len())
    };
    // One that stays is the oldest in both lists, so those behind it are forgotten only when a list is long.
    let stays = begin();
    for _ in 0..2 * HOLDERS_MAX + LARGE_CALLS_MAX {
        drop(begin());
    }
    assert!(listed()[0] <= 2 * LARGE_CALLS_MAX && listed()[1] <= 2 * HOLDERS_MAX);
    assert!(!stays.is_evicted.get());
    drop(stays);
    drop(begin());
    assert_eq!(listed(), [1, 1]);
}
