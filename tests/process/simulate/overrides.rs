//! The overrides of a config in `tollgate simulate`: by hand.

use super::{Folder, line};

const OVERRIDES: &str = r#"
plans:
  free:     { limits: [ { quota: 2, window: 10s } ], counts_as: customer }
  starter:  { limits: [ { quota: 4, window: 10s } ], counts_as: customer }
  paid:     { limits: [ { quota: 5, window: 10s } ] }
  banned:   { blocked: true }
overrides:
  - { plan: free, key: a, use_plan: paid, expires: "2025-10-10T13:00:30Z" }
  - { plan: free, key_prefix: "b", quotas: [ { quota: 3 } ] }
  - { plan: free, key: c, use_plan: banned }
  - { plan: free, key: e, use_plan: starter, expires: "2025-10-10T13:00:05Z" }
  - { plan: free, key_prefix: "bb", use_plan: paid, expires: "2025-10-10T12:00:00Z" }
"#;

/// For each client, the seconds of its requests.
fn log_of(clients: &[(&str, &[u32])]) -> String {
    let of = |(client, seconds): &(&str, &[u32])| -> Vec<(u32, String)> {
        seconds
            .iter()
            .map(|second| (*second, line(client, *second, "/")))
            .collect()
    };
    let mut lines: Vec<_> = clients.iter().flat_map(of).collect();
    lines.sort_by_key(|(second, _)| *second);
    lines.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn overrides_of_the_file_decide_until_they_expire() {
    let folder = Folder::new();
    folder.put("plans.yaml", OVERRIDES.as_bytes());
    let log = log_of(&[
        // 5 of 6 by paid; then 2 of 3 by free.
        ("a", &[1, 2, 3, 4, 5, 6, 31, 32, 33]),
        // 3 of 4 by free with another quota. The longer prefix has expired.
        ("bb", &[1, 2, 3, 4]),
        ("c", &[1]),
        ("d", &[1, 2, 3]),
        // 4 by starter, which free counts, too: so none is left.
        ("e", &[1, 2, 3, 4, 6]),
    ]);
    folder.put("access.log", log.as_bytes());
    let report = folder.json_report(&[]);
    for result in report["results"].as_array().unwrap() {
        assert_eq!(result["denied"], 1 + 1 + 1 + 1 + 1 + 1, "{report}");
        assert_eq!(result["overridden"], 6 + 4 + 1 + 4, "{report}");
        let limit = &result["plans"][0]["limits"][0];
        // What d needs, who has no override. The limit denied d once, and a and e once each without one.
        assert_eq!(
            (&limit["smallest"], &limit["denied"]),
            (&3.into(), &3.into()),
            "{report}"
        );
    }
    let denied = |key: &str| {
        let worst = report["worst_keys"].as_array().unwrap();
        let found = worst.iter().find(|worst| worst["key"] == key);
        found.map(|worst| worst["denied"][0].clone())
    };
    assert_eq!(denied("a"), Some(2.into()), "{report}");
    assert_eq!(denied("bb"), Some(1.into()), "{report}");
    let text = folder.text_report(&[]).replace('\n', " ");
    assert!(
        text.contains("15 requests are decided by overrides; no quota is suggested by their keys"),
        "{text}"
    );
}

#[test]
fn an_overridden_key_shares_its_count_with_the_plan_that_decides() {
    let folder = Folder::new();
    let plans = OVERRIDES.replace(", expires: \"2025-10-10T13:00:30Z\"", "");
    folder.put("plans.yaml", plans.as_bytes());
    let without = OVERRIDES.split("overrides:").next().unwrap();
    folder.put("without.yaml", without.as_bytes());
    let line = |second: u32, plan: &str| {
        format!(
            "{{\"time\": \"2025-10-10T13:00:{second:02}.5Z\", \"key\": \"a\", \"plan\": \"{plan}\"}}\n"
        )
    };
    let free = (1..=3).map(|second| line(second, "free"));
    let paid = (4..=7).map(|second| line(second, "paid"));
    folder.put(
        "access.log",
        free.chain(paid).collect::<String>().as_bytes(),
    );
    let arguments = ["--format", "json", "--key", "$key", "--plan", "$plan"];
    let report = folder.json_report(&[&arguments[..], &["--compare", "without.yaml"]].concat());
    let results = report["results"].as_array().unwrap();
    // 7 of which paid grants 5; or 3 of which free grants 2, and 4.
    assert_eq!(
        (&results[0]["denied"], &results[1]["denied"]),
        (&2.into(), &1.into()),
        "{report}"
    );
    assert_eq!(
        (&results[0]["overridden"], &results[1]["overridden"]),
        (&3.into(), &0.into()),
        "{report}"
    );
}

/// What a key needs under a plan without an override is part of what is suggested for that plan.
#[test]
fn an_override_of_one_plan_leaves_the_needs_of_its_key_in_another() {
    let folder = Folder::new();
    let plans = "plans:
  day:   { limits: [ { quota: 9, window: 1h } ] }
  other: { limits: [ { quota: 3, window: 1m } ] }
overrides: [ { plan: day, key: b, quotas: [ { quota: 1 } ] }, { plan: day, key_prefix: c, quotas: [ { quota: 1 } ] } ]
";
    folder.put("plans.yaml", plans.as_bytes());
    let line = |key: &str, second: u32| {
        format!("{{\"time\": \"2025-10-10T13:00:{second:02}.5Z\", \"key\": \"{key}\"}}\n")
    };
    let of_key = |key| (1..=6).map(move |second| line(key, second));
    let log: String = of_key("b")
        .chain(of_key("cc"))
        .chain(of_key("a").take(2))
        .collect();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    folder.put("access.log", lines.join("\n").as_bytes());
    let smallest = |plan: &str| {
        let arguments = ["--format", "json", "--key", "$key", "--plan", plan];
        let report = folder.json_report(&arguments);
        let limit = &report["results"][0]["plans"][0]["limits"][0];
        (
            limit["smallest"].clone(),
            report["results"][0]["denied"].clone(),
        )
    };
    assert_eq!(smallest("other"), (6.into(), 6.into()));
    // Of the key that no override is for.
    assert_eq!(smallest("day"), (2.into(), 10.into()));
}

#[test]
fn a_block_denies_a_key_that_an_override_decides_too() {
    let folder = Folder::new();
    let plans = r#"
plans:
  free: { limits: [ { quota: 1, window: 10s, block: 1m } ] }
overrides:
  - { plan: free, key: a, quotas: [ { quota: 3 } ] }
"#;
    folder.put("plans.yaml", plans.as_bytes());
    // The fourth begins a block, which denies the fifth although the window has passed.
    let log = log_of(&[("a", &[1, 2, 3, 4, 30])]);
    folder.put("access.log", log.as_bytes());
    let report = folder.json_report(&[]);
    for result in report["results"].as_array().unwrap() {
        assert_eq!(result["denied"], 2, "{report}");
    }
}
