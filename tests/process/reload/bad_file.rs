//! A config file that is wrong or gone: the old plans stay, and the error is reported.

use std::time::Duration;

use super::{Live, config, plan};
use crate::support::http::{Scrape, get};
use crate::support::server::decide;

/// Contents of files that are not configs, each with a part of what is said of it.
fn bad_files() -> [(String, &'static str); 5] {
    [
        ("plans: [".to_owned(), "is not valid YAML: "),
        (String::new(), "is empty; a config names at least one plan"),
        (
            config("  p: { limits: [ { quota: 0, window: 1m } ] }\n  q: {}\n"),
            "plans.p.limits[0].quota is 0; a quota is at least 1",
        ),
        (
            format!("#{}\n", "x".repeat(17 << 20)),
            "has more than 16777216 bytes",
        ),
        (
            config(&plan("p", 6)) + "workers: many\n",
            "workers is \\\"many\\\"; it must be a whole number",
        ),
    ]
}

#[tokio::test]
async fn fault_20_a_bad_file_keeps_the_old_plans_and_is_reported_once() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    decide(&mut live.client, "k", "p").await;
    let listed = live.list().await;
    let bad = bad_files();
    for (index, (content, sentence)) in bad.iter().enumerate() {
        let new = live.folder.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, live.file()).unwrap();
        live.wait_for("failure", index as f64 + 1.0);
        assert_eq!(
            (live.reloads("failure"), live.reloads("success")),
            (index as f64 + 1.0, 0.0)
        );
        let line = live.lines_with(sentence).concat();
        assert!(
            line.contains("config not reloaded") && line.contains("\"level\":\"ERROR\""),
            "{line}"
        );
        assert_eq!(
            decide(&mut live.client, &format!("k {index}"), "p")
                .await
                .remaining(),
            4
        );
    }
    assert_eq!(live.list().await, listed);
    assert_eq!(
        (
            get(&live.http, "/healthz").status,
            get(&live.http, "/readyz").status
        ),
        (200, 200)
    );
    assert_eq!(
        Scrape::of(&live.http).value("tollgate_config_last_reload_successful"),
        0.0
    );
    // Some polls later. A slow machine only makes this say less.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        live.lines_with("config not reloaded").len(),
        bad.len(),
        "{}",
        live.server.log()
    );
    // All errors of a file at once, those that `check` tells.
    let both = live.lines_with("plans.p.limits[0].quota").concat();
    assert!(
        both.contains("plans.q has no rule; write one of limits"),
        "{both}"
    );

    live.replace(&plan("p", 6));
    live.wait_for("success", 1.0);
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 4);
    assert_eq!(
        Scrape::of(&live.http).value("tollgate_config_last_reload_successful"),
        1.0
    );
}

#[tokio::test]
async fn a_file_that_is_gone_for_a_while_changes_nothing() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    decide(&mut live.client, "k", "p").await;
    std::fs::remove_file(live.file()).unwrap();
    live.wait_for("failure", 1.0);
    assert!(live.lines_with("config not reloaded")[0].contains("cannot be read: No such file"));
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 3);
    live.replace(&plan("p", 5));
    live.wait_for("success", 1.0);
    assert!(
        live.lines_with("config reloaded")[0].contains("\"added\":0,\"removed\":0,\"edited\":0")
    );
    assert_eq!(decide(&mut live.client, "k", "p").await.remaining(), 2);
}

/// `check` stays as it was at the start, so a file is refused which changes it and drops a plan that it names.
#[tokio::test]
async fn a_plan_that_checks_go_by_until_a_restart_cannot_be_dropped() {
    let with_check = |plans: &str, plan: &str| {
        format!("{plans}check: {{ plan: ['param:plan', 'default:{plan}'] }}\n")
    };
    let p = plan("p", 5);
    let q = plan("q", 7);
    let live = Live::start(&with_check(&format!("{p}{q}"), "p"), &[]).await;
    live.replace(&with_check(&q, "q"));
    live.wait_for("failure", 1.0);
    let said = live.lines_with("config not reloaded").concat();
    let why = "check.plan[1] names the plan \\\"p\\\" until a restart, and the plan is gone; keep it until then";
    assert!(said.contains(why), "{said}");
    assert_eq!(get(&live.http, "/v1/check?key=k").status, 200);
    live.replace(&with_check(&format!("{p}{q}"), "q"));
    live.wait_for("success", 1.0);
    assert!(live.lines_with("a restart takes them up")[0].contains("check.plan"));
    assert_eq!(get(&live.http, "/v1/check?key=k").status, 200);
}
