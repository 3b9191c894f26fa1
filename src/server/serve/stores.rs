//! The stores and limiters of the workers and of operators.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Config, Readiness, StoreSection};
use crate::grpc::{Service, StartError, Workers};
use crate::limiter::Limiter;
use tollgate_core::headers::HeaderForm;
use tollgate_store::{ConfiguredStore, StoreRegistry, StoreTarget};

/// Makes the store of each worker. Of a store that replicas share, each worker has its own connection and batcher. All workers have
/// the same one of another.
#[derive(Clone)]
pub(super) struct Stores {
    target: StoreTarget,
    /// Longest that a call to the store may take.
    deadline: Duration,
    /// That of all workers, if it is not shared by replicas.
    embedded: Option<ConfiguredStore>,
    made: StoreRegistry,
}

impl Stores {
    pub(super) fn new(section: &StoreSection) -> Result<Self, String> {
        let target = section.url.clone();
        let embedded = match target.is_shared() {
            true => None,
            false => Some(target.store(section.deadline)?),
        };
        let once_reached = section.ready == Readiness::OnceReached && target.is_shared();
        Ok(Self {
            target,
            deadline: section.deadline,
            embedded,
            made: StoreRegistry::default().ready_once_reached(once_reached),
        })
    }

    /// Whether replicas count each other, through a store that they share.
    pub(super) fn counts_replicas(&self, config: &Config) -> bool {
        config.store.expected_replicas.is_none() && self.target.is_shared()
    }

    /// A store for the current runtime.
    async fn store(&self) -> Result<ConfiguredStore, String> {
        if let Some(embedded) = &self.embedded {
            return Ok(embedded.clone());
        }
        let store = self.target.store(self.deadline)?;
        let shared = store.shared().into_iter();
        shared.for_each(|shared| self.made.add(shared));
        Ok(store)
    }

    /// The shared stores made so far and later. An embedded store is not registered.
    pub(super) fn registry(&self) -> StoreRegistry {
        self.made.clone()
    }
}

/// A limiter over the configured store.
pub(super) type StoreLimiter = Arc<Limiter<ConfiguredStore>>;

/// The workers, the limiter of each in their order, and that of operators: of the admin service and the status page.
pub(super) type Started = (Workers, Vec<StoreLimiter>, Option<StoreLimiter>);

/// Starts the workers and, if operators are served, the store of theirs, all at the same time.
pub(super) async fn start(
    count: NonZeroUsize,
    limiter: Arc<Limiter<()>>,
    stores: Stores,
    form: HeaderForm,
    with_operators: bool,
) -> Result<Started, StartError> {
    let operator_limiter = limiter.clone();
    let operator_stores = stores.clone();
    let registry = stores.registry();
    let made = Arc::new(Mutex::new(BTreeMap::new()));
    let limiters = made.clone();
    let service = move |worker| {
        let limiter = limiter.clone();
        let stores = stores.clone();
        let made = made.clone();
        async move {
            let limiter = Arc::new(limiter.with_store(stores.store().await?));
            made.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(worker, limiter.clone());
            Ok(Service::new(limiter).with_header_form(form))
        }
    };
    let operators = async {
        match with_operators {
            true => Ok(Some(Arc::new(operator_limiter.with_store(
                operator_stores.store().await.map_err(StartError::Service)?,
            )))),
            false => Ok(None),
        }
    };
    let (mut workers, operators) = tokio::try_join!(Workers::start(count, service), operators)?;
    if !registry.is_ready() {
        workers = workers
            .unready_until(async move { registry.ready().await })
            .await;
    }
    let limiters = std::mem::take(&mut *limiters.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((workers, limiters.into_values().collect(), operators))
}

/// The store of operators, if there is one, since decisions do not use it; else those of the workers.
pub(super) fn beside_decisions(
    workers: &StoreRegistry,
    operators: Option<&StoreLimiter>,
) -> StoreRegistry {
    match operators.and_then(|limiter| limiter.store().shared()) {
        Some(store) => {
            let of_operators = StoreRegistry::default();
            of_operators.add(store);
            of_operators
        }
        None => workers.clone(),
    }
}
