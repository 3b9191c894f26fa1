//! The batcher before a carrier that panics: everybody is answered, and it goes on.

use std::time::Duration;

use super::*;
use crate::algorithm::Mode;

/// Panics on its first call, and refuses the others with this.
struct Panics {
    calls: AtomicUsize,
}

const REFUSAL: &str = "a call that was carried";

impl Carrier for Panics {
    async fn ready(&self) {}

    fn command<T>(&self, _call: &Call<T>) -> Vec<Value> {
        Vec::new()
    }

    async fn carry(&self, _command: Vec<Value>, _until: Instant) -> Result<Value, StoreError> {
        // So that more requests come while it is under way.
        tokio::task::yield_now().await;
        assert!(self.calls.fetch_add(1, Ordering::SeqCst) > 0, "as a test wants it");
        Err(StoreError::Refused(REFUSAL.to_owned()))
    }
}

fn request(name: &str) -> Request {
    let trial = Call::trial(monotonic());
    Request { name: name.to_owned(), plan: trial.plans[0].clone(), cost: 1, mode: Mode::Charge }
}

#[tokio::test]
async fn a_panic_costs_the_calls_under_way_and_nobody_waits_for_ever() {
    let batcher = Batcher::start(Arc::new(Panics { calls: AtomicUsize::new(0) }));
    let deadline = Duration::from_secs(60);
    let lost = batcher.take(request("lost"), deadline).unwrap();
    let part = batcher.take_batch(vec![request("a"), request("b")], deadline).unwrap();
    assert!(lost.await.is_err() && part.await.is_err(), "its sender is dropped, which ends the wait");
    for _ in 0..3 {
        let answer = batcher.take(request("next"), deadline).unwrap().await.unwrap();
        assert_eq!(answer, Err(StoreError::Refused(REFUSAL.to_owned())));
    }
    assert_eq!(batcher.waiting.load(Ordering::SeqCst), 0, "whoever is answered gives up its room");
}
