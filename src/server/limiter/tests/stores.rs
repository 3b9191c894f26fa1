//! Stores that fail on purpose.

use tollgate_store::{
    Check, GivenBack, JointFailure, Refund, Store, StoreDeadline, StoreError, Verdict,
};

/// Answers everything with this error.
pub(in crate::limiter) struct Broken(pub(in crate::limiter) StoreError);

impl Store for Broken {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(self.0.clone()); checks.len()]
    }

    async fn decide_joint(
        &self,
        _checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        Err(self.0.clone().into())
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        _: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        vec![Err(self.0.clone()); refunds.len()]
    }
}

/// Fails at once with a deadline error, and records the deadline that it was given.
pub(in crate::limiter) struct RecordsDeadline(
    pub(in crate::limiter) std::sync::Mutex<Option<StoreDeadline>>,
);

impl Store for RecordsDeadline {
    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        *self.0.lock().unwrap() = Some(deadline);
        vec![Err(StoreError::Deadline(deadline.0)); checks.len()]
    }
}
