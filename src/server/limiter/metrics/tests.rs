//! What is counted, and that counting allocates nothing.

use super::*;

const TOOK: Duration = Duration::from_micros(70);

#[test]
fn counting_allocates_nothing() {
    let metrics = Metrics::default();
    let worker_plans = WorkerPlans::with_plans(1);
    let decision = Decision::uncounted(Outcome::Denied, DecidedBy::Store, None);
    let counted = allocation_counter::measure(|| {
        let _waiting = metrics.waiting(1);
        metrics.decided(worker_plans.counters(0), Mode::Charge, &decision, TOOK);
        metrics.store_took(TOOK);
        metrics.failed(&StoreError::Full);
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn a_decision_is_timed_and_a_peek_is_not_counted_as_a_decision() {
    let metrics = Metrics::default();
    let worker_plans = WorkerPlans::with_plans(1);
    let decision = Decision::uncounted(Outcome::Allowed, DecidedBy::Store, None);
    metrics.decided(worker_plans.counters(0), Mode::Charge, &decision, TOOK);
    metrics.decided(worker_plans.counters(0), Mode::Peek, &decision, TOOK);
    let mut counter_totals = CounterTotals::default();
    counter_totals.add(&worker_plans);
    let mut totals = Totals::new(counter_totals, Reloads::default());
    totals.add(&metrics);
    assert_eq!(
        (
            totals.count(LimiterCounter::Peeks),
            totals.decided_by(DecidedBy::Store)
        ),
        (1, 1)
    );
    assert_eq!(
        (totals.durations.count(), totals.durations.sum_ns),
        (1, 70_000)
    );
}

#[test]
fn a_dropped_guard_no_longer_counts_as_waiting() {
    let metrics = Metrics::default();
    let waiting = || metrics.waiting.load(Ordering::Relaxed);
    let one = metrics.waiting(1);
    let many = metrics.waiting(99);
    assert_eq!(waiting(), 100);
    drop(many);
    assert_eq!(waiting(), 1);
    drop(one);
    assert_eq!(waiting(), 0);
}
