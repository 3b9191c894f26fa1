//! What histories ask of a store, one after another: checks, and refunds between them.

use tollgate::key::{Cost, Key};
use tollgate::plan::Plan;
use tollgate::store::{
    Check, GivenBack, MemoryStore, Mode, Refund, Store, StoreDeadline, StoreError, Verdict,
};

#[derive(Debug, Clone)]
pub enum Ask {
    Decide(Check),
    Refund(Refund),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Decided(Verdict),
    GivenBack(GivenBack),
}

impl From<Check> for Ask {
    fn from(check: Check) -> Self {
        Self::Decide(check)
    }
}

impl From<Refund> for Ask {
    fn from(refund: Refund) -> Self {
        Self::Refund(refund)
    }
}

/// The charge of what a refund gives back.
pub fn charge_of(refund: &Refund) -> Check {
    Check {
        key: refund.key.clone(),
        plan: refund.plan.clone(),
        cost: refund.units,
        mode: Mode::Charge,
    }
}

/// The refund of what a check would charge.
pub fn refund_of(check: &Check) -> Refund {
    Refund {
        key: check.key.clone(),
        plan: check.plan.clone(),
        units: check.cost,
    }
}

impl Ask {
    pub fn key(&self) -> &Key {
        match self {
            Self::Decide(check) => &check.key,
            Self::Refund(refund) => &refund.key,
        }
    }

    pub fn plan(&self) -> &Plan {
        match self {
            Self::Decide(check) => &check.plan,
            Self::Refund(refund) => &refund.plan,
        }
    }

    pub fn cost(&self) -> Cost {
        match self {
            Self::Decide(check) => check.cost,
            Self::Refund(refund) => refund.units,
        }
    }

    pub fn is_refund(&self) -> bool {
        matches!(self, Self::Refund(_))
    }

    pub fn is_charge(&self) -> bool {
        matches!(self, Self::Decide(check) if check.mode == Mode::Charge)
    }

    /// The same of another key.
    pub fn with_key(mut self, other: &str) -> Self {
        let key = match &mut self {
            Self::Decide(check) => &mut check.key,
            Self::Refund(refund) => &mut refund.key,
        };
        *key = Key::new(other).unwrap();
        self
    }

    pub fn by_memory(&self, store: &MemoryStore) -> Result<Answer, StoreError> {
        match self {
            Self::Decide(check) => store.decide(check).map(Answer::Decided),
            Self::Refund(refund) => store.give_back(refund).map(Answer::GivenBack),
        }
    }

    pub async fn by_store(
        &self,
        store: &impl Store,
        deadline: StoreDeadline,
    ) -> Result<Answer, StoreError> {
        match self {
            Self::Decide(check) => store.decide_one(check, deadline).await.map(Answer::Decided),
            Self::Refund(refund) => {
                let refunds = std::slice::from_ref(refund);
                let given_back = store.refund_batch(refunds, deadline).await.swap_remove(0);
                given_back.map(Answer::GivenBack)
            }
        }
    }
}

impl Answer {
    /// How the key stands after it.
    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Decided(verdict) => verdict,
            Self::GivenBack(given_back) => &given_back.after,
        }
    }

    pub fn fits(&self) -> bool {
        self.verdict().fits
    }
}

/// Asks a store in this order: the checks between two refunds in one batch, and each refund alone, since those of a batch have no order.
pub async fn ask_in_order(
    store: &impl Store,
    asks: &[Ask],
    deadline: StoreDeadline,
) -> Vec<Result<Answer, StoreError>> {
    let mut answers = Vec::with_capacity(asks.len());
    for part in asks.chunk_by(|one, next| !one.is_refund() && !next.is_refund()) {
        if let [refund @ Ask::Refund(_)] = part {
            answers.push(refund.by_store(store, deadline).await);
            continue;
        }
        let checks = part.iter().filter_map(|ask| match ask {
            Ask::Decide(check) => Some(check.clone()),
            Ask::Refund(_) => None,
        });
        let checks: Vec<Check> = checks.collect();
        let decided = store.decide_batch(&checks, deadline).await;
        answers.extend(decided.into_iter().map(|each| each.map(Answer::Decided)));
    }
    answers
}
