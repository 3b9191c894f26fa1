//! The stores and limiters of the workers and of operators.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Config, Readiness, StoreSection, StoreUrl};
use crate::grpc::{Service, StartError, Workers};
use crate::limiter::Limiter;
use tollgate_core::headers::HeaderForm;
use tollgate_store::clock::SystemClock;
use tollgate_store::{ConfiguredStore, MemoryStore, RedisStore, RedisTarget, StoreRegistry};

/// Makes the store of each worker. With Redis each worker has its own connection and batcher; an embedded store is shared by
/// all.
#[derive(Clone)]
pub(super) enum Stores {
    Embedded(ConfiguredStore),
    Redis {
        target: Box<RedisTarget>,
        /// Longest that a call to Redis may take. An embedded store does not wait.
        deadline: Duration,
        made: StoreRegistry,
    },
}

impl Stores {
    pub(super) fn new(store: &StoreSection) -> Self {
        match &store.url {
            StoreUrl::Memory { capacity } => Self::Embedded(ConfiguredStore::Memory(Arc::new(
                MemoryStore::new(*capacity, Arc::new(SystemClock)),
            ))),
            StoreUrl::Redis(target) => {
                let made = StoreRegistry::default()
                    .ready_once_reached(store.ready == Readiness::OnceReached);
                Self::Redis {
                    target: target.clone(),
                    deadline: store.deadline,
                    made,
                }
            }
        }
    }

    /// Whether replicas count each other, through a store that they share.
    pub(super) fn counts_replicas(&self, config: &Config) -> bool {
        config.store.expected_replicas.is_none() && matches!(self, Self::Redis { .. })
    }

    /// A store for the current runtime.
    async fn store(&self) -> Result<ConfiguredStore, String> {
        match self {
            Self::Embedded(store) => Ok(store.clone()),
            Self::Redis {
                target,
                deadline,
                made,
            } => {
                let store = RedisStore::connect_target(RedisTarget::clone(target), *deadline)?;
                let store = ConfiguredStore::Redis(store);
                store
                    .shared()
                    .into_iter()
                    .for_each(|shared| made.add(shared));
                Ok(store)
            }
        }
    }

    /// The Redis stores made so far and later. An embedded store is not registered.
    pub(super) fn registry(&self) -> StoreRegistry {
        match self {
            Self::Embedded(_) => StoreRegistry::default(),
            Self::Redis { made, .. } => made.clone(),
        }
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
