//! What metrics tell of overrides.

use super::{CONFIG, NAME, entry, replica_on, set};
use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::server::decide;

#[tokio::test]
async fn overrides_and_their_decisions_are_counted_by_who_set_them() {
    let redis = Redis::start();
    // One of a plan that is not in the config.
    let gone = "1 1 0 {\"use_plan\":\"free\"}";
    redis.cli(&["hset", NAME, "kgone:customer", gone, "", "1 1"]);
    let config = format!("listen: {{ http: '127.0.0.1:0' }}{CONFIG}");
    let mut replica = replica_on(&config, &redis.url()).await;
    let version = set(&mut replica, entry("k", 200)).await.unwrap();
    for key in ["k", "k", "k", "of-file", "of-file", "another"] {
        decide(&mut replica.client, key, "free").await;
    }
    let scrape = Scrape::of(&replica.server.http());
    for (source, exact, decisions) in [("runtime", 2.0, 3.0), ("file", 1.0, 2.0)] {
        let of_kind = |kind: &str| {
            scrape.value(&format!(
                "tollgate_overrides{{source=\"{source}\",kind=\"{kind}\"}}"
            ))
        };
        assert_eq!((of_kind("exact"), of_kind("prefix")), (exact, 0.0));
        let decided = format!("tollgate_override_decisions_total{{source=\"{source}\"}}");
        assert_eq!(scrape.value(&decided), decisions);
    }
    assert_eq!(scrape.value("tollgate_overrides_without_effect"), 1.0);
    let shown = scrape.value("tollgate_overrides_version");
    assert_eq!(shown.to_string(), version.to_string());
    let age = scrape.value("tollgate_overrides_age_seconds");
    assert!(age.is_finite() && age >= 0.0, "{age} s");
}
