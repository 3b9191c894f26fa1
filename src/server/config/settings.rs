//! Checks the tree of raw values field by field, and builds the config.

use std::num::NonZeroUsize;

use config::Value;

use super::Config;
use super::check as check_endpoint;
use super::deny_cache;
use super::envoy;
use super::listen::{self, ListenSection};
use super::overrides;
use super::plans;
use super::status::{self, StatusSection};
use super::store;
use super::tree::{ErrorList, Node, Table, report};
use super::warnings;
use tollgate_core::plan::PlanSet;
use tollgate_store::clock::{Clock, SystemClock};

/// Maximum number of warnings about overrides.
const WARNINGS_MAX: usize = 10;
/// Maximum number of workers, more than the largest hosts have cores. Each worker has a thread and, with Redis, a connection.
const WORKERS_MAX: u64 = 1024;

/// Checks all fields. Returns `None` after adding at least one error. It may also return a config after adding errors; the
/// caller then drops the config.
pub(super) fn check(root: Value, errors: &mut ErrorList) -> Option<Config> {
    let mut root = Node::root(root).table(errors)?;
    let listen = listen::check(&mut root, errors);
    let store = store::check(&mut root, errors);
    let deny_cache = deny_cache::check(&mut root, errors);
    let status = status::check(&mut root, errors);
    let workers = workers(&mut root, errors);
    let default_plan = default_plan(&mut root, errors);
    let check = check_endpoint::check(&mut root, errors);
    let (names, plans) = plans::check(root.take("plans"), default_plan.as_deref(), errors);
    let envoy = envoy::check(root.take("envoy"), &names, errors);
    let overrides = overrides::read(root.take("overrides"), &names, errors);
    root.finish(errors);
    check_endpoint::check_plans(check.as_ref()?, &names, errors);
    let plans = overrides.checked_with(plans?.with_envoy(envoy?), errors);
    let listen = listen?;
    let status = status?;
    Some(Config {
        warnings: warnings(&plans, &listen, &status),
        listen,
        store: store?,
        deny_cache: deny_cache?,
        status,
        workers: workers?,
        check: check?,
        plans,
    })
}

/// The plan of calls that name none. An empty name is that of no plan.
fn default_plan(root: &mut Table, errors: &mut ErrorList) -> Option<String> {
    let name = root.take("default_plan")?.text(errors)?;
    Some(name).filter(|name| !name.is_empty())
}

/// What is valid, but probably not meant.
fn warnings(plans: &PlanSet, listen: &ListenSection, status: &StatusSection) -> Vec<String> {
    let mut warnings = warnings::find(plans);
    let now_us = SystemClock.now_us();
    warnings.extend(overrides::warnings(plans, now_us).take(WARNINGS_MAX));
    if status.page && listen.http.is_none() {
        warnings.push("status.page is true, but nothing serves the page; set listen.http, such as 127.0.0.1:8080".to_owned());
    }
    warnings
}

/// The number of workers: `Some(None)` is one per core, written as 0. `None` after adding an error.
fn workers(root: &mut Table, errors: &mut ErrorList) -> Option<Option<NonZeroUsize>> {
    let Some(node) = root.take("workers") else {
        return Some(None);
    };
    let path = node.path.clone();
    let workers = node.number(errors)?;
    if workers > WORKERS_MAX {
        report(
            errors,
            &path,
            format!("is {workers}; it is 0 to {WORKERS_MAX}, and 0 means one per core"),
        );
    }
    Some(usize::try_from(workers).ok().and_then(NonZeroUsize::new))
}
