//! Metrics of plans beside their decisions, and of the process.

use crate::support::http::{Scrape, get};
use crate::support::server::{Server, decide, request};

fn serve(plans: &str) -> Server {
    Server::start(
        &format!("listen: {{ http: '127.0.0.1:0' }}\nplans:\n{plans}"),
        &[],
    )
}

#[tokio::test]
async fn limits_are_told_and_requests_that_leave_little_of_one() {
    let server = serve(
        "  free: { limits: [ { name: day, quota: 10, window: 1d, algorithm: fixed_window }, { name: burst, quota: 50, window: 90s, \
         algorithm: token_bucket, burst: 20 } ] }\n  open: { unlimited: true }\n",
    );
    let mut client = server.client().await;
    // The ninth and tenth leave less than two of ten; the last two are denied.
    for _ in 0..12 {
        decide(&mut client, "k", "free").await;
    }
    assert!(
        client
            .should_allow(request("all", "free", Some(10)))
            .await
            .unwrap()
            .into_inner()
            .allowed
    );
    let scrape = Scrape::of(&server.http());
    assert_eq!(
        scrape.value("tollgate_near_limit_decisions_total{plan=\"free\"}"),
        3.0
    );
    for (limit, quota, window) in [("day", 10.0, 86_400.0), ("burst", 50.0, 90.0)] {
        assert_eq!(
            scrape.value(&format!(
                "tollgate_plan_limit_quota{{plan=\"free\",limit=\"{limit}\"}}"
            )),
            quota
        );
        assert_eq!(
            scrape.value(&format!(
                "tollgate_plan_limit_window_seconds{{plan=\"free\",limit=\"{limit}\"}}"
            )),
            window
        );
    }
    assert_eq!(scrape.text.matches("plan=\"open\"").count(), 1);
}

/// The alert on unknown plans tells operators to look there.
#[tokio::test]
async fn the_log_names_a_plan_that_is_not_in_the_config_and_the_nearest() {
    let server = serve("  starter: { unlimited: true }\n");
    let mut client = server.client().await;
    client
        .should_allow(request("canary", "startre\u{1b}", None))
        .await
        .unwrap_err();
    assert_eq!(
        get(&server.http(), "/v1/check?key=canary&plan=nowhere").status,
        404
    );
    let line = server
        .wait_for_line("a plan that is not in the config")
        .await;
    let told = [
        "\"plan\":\"startre\\\\u{1b}\"",
        "\"nearest\":\"starter\"",
        "\"requests\":1",
        "\"level\":\"WARN\"",
    ];
    assert!(told.iter().all(|words| line.contains(words)), "{line}");
    assert_eq!(
        Scrape::of(&server.http()).value("tollgate_unknown_plans_total"),
        2.0
    );
    let log = server.end_and_log();
    assert!(
        log.matches("a plan that is not in the config").count() == 1 && !log.contains("canary"),
        "{log}"
    );
}

#[test]
fn the_text_of_ten_thousand_plans_has_no_limits_and_a_bound() {
    let plans: String = (0..10_000)
        .map(|plan| format!("  p{plan:04}: {{ limits: [ {{ quota: 1, window: 1d }} ] }}\n"))
        .collect();
    let text = get(&serve(&plans).http(), "/metrics").body;
    assert!(!text.contains("tollgate_plan_limit_quota{"));
    assert!(text.len() < 9 << 20, "{} bytes", text.len());
}

/// Prometheus's own libraries have these names, and dashboards of others read them.
#[test]
fn the_process_is_told_under_the_usual_names() {
    let server = serve("  free: { limits: [ { quota: 1, window: 1d } ] }\n");
    let scrape = Scrape::of(&server.http());
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id()))
        .unwrap()
        .count();
    assert!(
        (scrape.value("process_open_fds") - open as f64).abs() < 5.0,
        "{open} are open"
    );
    assert!(scrape.value("process_max_fds") >= 1_024.0);
    let resident = scrape.value("process_resident_memory_bytes");
    assert!((1e6..1e9).contains(&resident), "{resident}");
    assert!((0.0..60.0).contains(&scrape.value("process_cpu_seconds_total")));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let age = now - scrape.value("process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "began {age} s ago");
}
