//! What callers meet, compared with the program: calls, outcomes, parameters and paths.

use std::collections::BTreeSet;

use tollgate::config::EXAMPLE;
use tollgate::grpc::pb;
use tollgate::store::StoreError;

use super::markdown::{page, root};
use crate::support::http::get;
use crate::support::server::Server;

/// The first cells of tables that begin with this heading, without code marks.
fn first_cells(document: &str, heading: &str) -> BTreeSet<String> {
    page(document)
        .rows(heading)
        .iter()
        .map(|cells| cells[0].trim_matches('`').to_owned())
        .collect()
}

/// Methods of a proto file.
fn methods(file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("proto/tollgate/v1").join(file)).unwrap();
    let methods = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("rpc ")?.split('(').next());
    methods.map(str::to_owned).collect()
}

#[test]
fn every_method_has_its_row() {
    let known = methods("tollgate.proto");
    assert!(known.len() >= 5, "{known:?}");
    assert_eq!(
        first_cells("docs/grpc-api.md", "call of `tollgate.v1.RateLimitService`"),
        known
    );
    assert_eq!(
        first_cells("docs/holds.md", "call of `tollgate.v1.HoldService`"),
        methods("holds.proto")
    );
    let admin = first_cells("docs/admin.md", "call")
        .iter()
        .map(|call| call.split('(').next().unwrap().to_owned())
        .collect();
    assert_eq!(methods("admin.proto"), admin);
}

#[test]
fn every_outcome_and_every_decider_has_its_row() {
    let outcomes = (1..)
        .map_while(|number| pb::Outcome::try_from(number).ok())
        .map(|outcome| outcome.as_str_name().to_owned());
    assert_eq!(
        first_cells("docs/concepts.md", "outcome"),
        outcomes.collect()
    );
    let deciders = (1..)
        .map_while(|number| pb::DecidedBy::try_from(number).ok())
        .map(|by| by.as_str_name().to_owned());
    assert_eq!(
        first_cells("docs/concepts.md", "`decided_by`"),
        deciders.collect()
    );
}

#[test]
fn every_kind_of_failure_is_named() {
    let operations = page("docs/operations.md").text;
    let named = operations
        .split("Kinds of `tollgate_store_errors_total`")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    for kind in StoreError::KINDS {
        assert!(
            named.contains(&format!("`{kind}`")),
            "{kind} is not named: {named}"
        );
    }
}

#[test]
fn every_path_and_parameter_of_http_has_its_row() {
    let server = Server::start(
        EXAMPLE,
        &[
            "--set",
            "listen.http=127.0.0.1:0",
            "--set",
            "status.page=true",
        ],
    );
    let http = server.http();
    let listed = |target: &str, before: &str| {
        get(&http, target)
            .body
            .split(before)
            .nth(1)
            .unwrap()
            .to_owned()
    };
    let paths = listed("/nowhere", "the paths are ")
        .trim()
        .replace(" and ", ", ")
        .split(", ")
        .map(str::to_owned)
        .collect();
    assert_eq!(first_cells("docs/http-api.md", "path"), paths);
    let parameters = listed("/v1/check?nothing=1", "there are ")
        .split('"')
        .next()
        .unwrap()
        .split(", ")
        .map(str::to_owned)
        .collect();
    assert_eq!(first_cells("docs/http-api.md", "parameter"), parameters);
}
