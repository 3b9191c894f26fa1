//! The cases that are counted. tollgate's workers serve them, and hyper alone serves the echo. Connections are in memory, server and
//! client share a thread, and the clock steps at each reading.
//!
//! Hash tables are seeded at random, also those of the store, and the cost of a look-up depends on the seed. So each case runs
//! over several connections, one after another, each with a store of its own. The result is the mean over their seeds.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::DuplexStream;
use tokio::runtime::LocalOptions;
use tollgate::clock::Clock;
use tollgate::grpc::pb::rate_limit_service_server::RateLimitServiceServer;
use tollgate::grpc::{InMemoryServer, Service};
use tollgate::limiter::{Limiter, LimiterSettings, TOP_DEFAULT, TopSettings};
use tollgate::plan::envoy::{
    DenialBody, DescriptorRule, Domain, EntryPattern, EnvoyRules, KeyTemplate, Unmatched,
};
use tollgate::plan::{
    Algorithm, Anchor, Calendar, CalendarUnit, Limit, LimitQuota, OVERRIDE_KEYS_MAX,
    OVERRIDE_PREFIXES_MAX, OverrideEffect, OverrideSource, OverrideSubject, Plan, PlanOverride,
    PlanSet, Rule, Zone,
};
use tollgate::store::{CAPACITY_DEFAULT, MemoryStore};
use tonic::codegen::Service as _;

use crate::echo::Echo;
use crate::load::{self, Caller, ENVOY_DOMAIN, Expect, Kind, Load, Requests, Shared};

/// One thing to count.
pub struct Case {
    pub name: &'static str,
    kind: Kind,
    /// The plan of the requests; `None` for the echo.
    plan: Option<&'static str>,
    in_flight: usize,
    keys: usize,
    /// Calls on each connection that are counted. Half as many come before: by then every key is known, and buffers have grown.
    pub calls: u64,
}

/// The echo comes first: the cost of the others is given as a multiple of it.
pub const CASES: [Case; 15] = [
    Case {
        name: "echo",
        kind: Kind::Unary,
        plan: None,
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "unlimited",
        kind: Kind::Unary,
        plan: Some("unlimited"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "token_bucket",
        kind: Kind::Unary,
        plan: Some("token_bucket"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "sliding_window",
        kind: Kind::Unary,
        plan: Some("sliding_window"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "candidate",
        kind: Kind::Unary,
        plan: Some("candidate"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "batch_of_100",
        kind: Kind::Batch(BATCH),
        plan: Some("token_bucket"),
        in_flight: 1,
        keys: 100,
        calls: 3,
    },
    Case {
        name: "stream",
        kind: Kind::Stream,
        plan: Some("token_bucket"),
        in_flight: 16,
        keys: 10,
        calls: 200,
    },
    Case {
        name: "should_rate_limit",
        kind: Kind::Envoy,
        plan: Some("token_bucket"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "overridden",
        kind: Kind::Unary,
        plan: Some("overridden"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "beside_overrides",
        kind: Kind::Unary,
        plan: Some("beside_overrides"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "idle_block",
        kind: Kind::Unary,
        plan: Some("idle_block"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "fixed_window",
        kind: Kind::Unary,
        plan: Some("fixed_window"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "calendar",
        kind: Kind::Unary,
        plan: Some("calendar"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "joint_of_two",
        kind: Kind::Joint(2),
        plan: Some("token_bucket"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
    Case {
        name: "joint_of_three",
        kind: Kind::Joint(3),
        plan: Some("token_bucket"),
        in_flight: 8,
        keys: 10,
        calls: 120,
    },
];
const BATCH: usize = 100;
const KEY_BYTES: usize = 20;
/// Connections of one case, one after another.
pub const CONNECTIONS: u64 = 32;
/// Bytes that either side may be ahead of the other.
const PIPE_BYTES: usize = 64 << 10;
/// Step of the clock at each reading, and its first reading. A window of a second then holds a hundred decisions. With ten keys,
/// these are ten runs for each.
const STEP_US: u64 = 10_000;
const START_US: u64 = 1_700_000_000_000_000;
/// Far above what comes in a window, so that none is denied.
const QUOTA: u64 = 10_000;
/// Quota of the bucket. It fills more slowly than a key is asked for, so no key becomes fresh and is dropped by the store. The
/// time of that would depend on which keys share a shard. The burst outlasts the run.
const SLOW_QUOTA: u64 = 1;
const WINDOW: Duration = Duration::from_secs(1);

impl Case {
    /// Decisions that a call asks for.
    pub fn decisions_per_call(&self) -> u64 {
        match self.kind {
            Kind::Batch(size) => size as u64,
            Kind::Unary | Kind::Joint(_) | Kind::Stream | Kind::Envoy | Kind::Http => 1,
        }
    }
}

/// Makes so many calls on each connection. Panics when an answer is wrong or missing: a cheap error must not pass for a
/// cheap decision.
pub fn run(case: &Case, calls: u64) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_time()
        .build_local(LocalOptions::default())
        .expect("a thread can wait");
    let workers = Rc::new(InMemoryServer::new());
    runtime.block_on(async {
        for _ in 0..CONNECTIONS {
            connection(case, calls, &workers).await;
        }
    });
}

async fn connection(case: &Case, calls: u64, workers: &Rc<InMemoryServer>) {
    let load = Load {
        addresses: vec!["localhost".to_owned()],
        kind: case.kind,
        plan: case.plan.unwrap_or("echo").to_owned(),
        keys: case.keys,
        key_bytes: KEY_BYTES,
        connections: 1,
        in_flight: case.in_flight,
        expect: Expect::Allowed,
        calls_max: Some(calls),
    };
    let shared = Shared::new(load.expect);
    let caller = Caller::new(&load, 0, Rc::new(Requests::of(&load)), shared.clone());
    let (client, server) = tokio::io::duplex(PIPE_BYTES);
    let workers = workers.clone();
    match case.plan {
        None => drop(tokio::task::spawn_local(serve_echo(server))),
        Some(plan) => drop(tokio::task::spawn_local(async move {
            workers.serve(server, tollgate(plan)).await
        })),
    }
    load::drive(client, caller)
        .await
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let tally = shared.take();
    assert_eq!(
        (tally.decisions, tally.complaint),
        (calls * case.decisions_per_call(), None),
        "{}",
        case.name
    );
}

/// Serves one connection by hyper and tonic's server alone, without what tollgate's workers do beside.
async fn serve_echo(connection: DuplexStream) {
    let service = RateLimitServiceServer::new(Echo);
    let call = service_fn(move |request| service.clone().call(request));
    let mut server = Builder::new(TokioExecutor::new());
    server.auto_date_header(false);
    // The client closes the connection when it has all answers. Some layers report that as an error.
    let _ = server
        .serve_connection(TokioIo::new(connection), call)
        .await;
}

fn tollgate(plan: &'static str) -> Service<MemoryStore> {
    let clock = Arc::new(SteppingClock(AtomicU64::new(START_US)));
    let settings = LimiterSettings {
        deadline: Duration::from_secs(1),
        expected_replicas: 1,
        deny_cache_entries: 0,
    };
    let store = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
    let plans = plans(plan).with_overrides(overrides(plan));
    let limiter = Limiter::without_store(plans, settings, clock);
    limiter.count_keys(TopSettings {
        keys_max: TOP_DEFAULT,
        in_clear: false,
    });
    Service::new(Arc::new(limiter.with_store(store)))
}

/// As many overrides as one source may have, if the case is about them: of its plan, and of its keys or of others. The prefixes
/// begin as keys do.
fn overrides(plan: &'static str) -> Arc<[Arc<PlanOverride>]> {
    let first = match plan {
        "overridden" => 0,
        "beside_overrides" => OVERRIDE_KEYS_MAX,
        _ => return Arc::default(),
    };
    let quota = LimitQuota {
        name: None,
        quota: Some(SLOW_QUOTA),
        burst: Some(2 * QUOTA),
    };
    let of = |subject| {
        Arc::new(PlanOverride {
            plan: plan.into(),
            subject,
            effect: OverrideEffect::Quotas(vec![quota.clone()]),
            expires_at_us: None,
            reason: "".into(),
            source: OverrideSource::File,
            version: 0,
            set_at_us: 0,
        })
    };
    let keys = (first..first + OVERRIDE_KEYS_MAX)
        .map(|key| OverrideSubject::Key(format!("{key:0>KEY_BYTES$}").into()));
    let prefixes = (0..OVERRIDE_PREFIXES_MAX)
        .map(|end| OverrideSubject::Prefix(format!("{:0>16}-{end}", "").into()));
    keys.chain(prefixes).map(of).collect()
}

/// The plans of most cases, and that of `case` if it has one of its own: more plans would make a decision dearer.
fn plans(case: &str) -> PlanSet {
    let limit = |quota, algorithm| {
        Limit::new("limit", quota, WINDOW, algorithm)
            .expect("these numbers are within their bounds")
    };
    let limits = |quota, algorithm| Rule::limits([limit(quota, algorithm)]);
    let plan = |(name, rule): (&str, Rule)| Plan::new(name, rule);
    let by_key = vec![EntryPattern::parse("token_bucket").expect("a name is a pattern")];
    let rule = DescriptorRule {
        key: KeyTemplate::for_open_values(&by_key),
        patterns: by_key,
        plan: "token_bucket".into(),
        shard: None,
    };
    let domain = Domain::new(Unmatched::Allow, vec![rule]).expect("one rule is reachable");
    let bucket = || limits(SLOW_QUOTA, Algorithm::TokenBucket { burst: QUOTA });
    let candidate = plan(("strict", bucket()));
    let live = plan(("candidate", bucket()));
    let with_candidate = Plan {
        candidate: Some(Arc::new(candidate.as_candidate_of(&live))),
        ..live
    };
    let blocks = limit(SLOW_QUOTA, Algorithm::TokenBucket { burst: QUOTA })
        .with_block(Duration::from_secs(60))
        .expect("a minute is within the bounds");
    let by_clock = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let calendar = Calendar::new(CalendarUnit::Day, Zone::UTC);
    let calendar = Limit::by_calendar("limit", QUOTA, calendar).expect("the quota is in bounds");
    let own = [
        ("overridden", bucket()),
        ("beside_overrides", bucket()),
        ("idle_block", Rule::limits([blocks])),
        ("fixed_window", limits(QUOTA, by_clock)),
        ("calendar", Rule::limits([calendar])),
    ];
    let own = own.into_iter().filter(|(name, _)| *name == case);
    let alone = [
        ("unlimited", Rule::Unlimited),
        ("token_bucket", bucket()),
        (
            "sliding_window",
            limits(QUOTA, Algorithm::SlidingWindow { precision: 64 }),
        ),
    ];
    let plans: PlanSet = alone
        .into_iter()
        .chain(own)
        .map(plan)
        .chain([with_candidate])
        .collect();
    plans.with_envoy(EnvoyRules::new(
        DenialBody::None,
        [(ENVOY_DOMAIN.to_owned(), domain)],
    ))
}

/// Moves on by [`STEP_US`] whenever it is read, so that windows slide by decisions and not by the speed of a machine.
struct SteppingClock(AtomicU64);

impl Clock for SteppingClock {
    fn now_us(&self) -> u64 {
        self.0.fetch_add(STEP_US, Ordering::Relaxed)
    }
}
