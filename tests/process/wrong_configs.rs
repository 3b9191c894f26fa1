//! Wrong configs, and what a stranger is told by `tollgate check`: all errors, each with its true place and what is right.

use std::process::Stdio;

use crate::support::server::tollgate;

/// A config, and words that must be in the answer; those after a ! must not. Where there are `n errors`, none is hidden by another.
type Row = (&'static str, &'static [&'static str]);

const LIMITS: &[Row] = &[
    (
        "plans:\n  p:\n    limits:\n      - { quota: 0, window: 1M, burst: 0, algorithm: nope }\n",
        &[
            "4 errors",
            "plans.p.limits[0].quota is 0; a quota is at least 1",
            "plans.p.limits[0].window is \"1M\"",
            "plans.p.limits[0].burst is 0; a burst is 1 to",
            "plans.p.limits[0].algorithm is \"nope\"; it must be one of sliding_window, sliding_log",
            "!is not a field",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 0, window: 1m, algorithm: token_bucket } ] } }",
        &["1 error\n", "quota is 0", "!burst"],
    ),
    (
        "plans: { p: { limits: [ { quota: x, window: 0s, precision: 1 } ] } }",
        &[
            "3 errors",
            "quota is \"x\"; it must be a whole number",
            "window is 0s; a window is 1ms to 366d",
            "precision is 1; a precision is 2 to 64",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 1, window: 1 minute } ] } }",
        &[
            "space between a number and its unit; ",
            "such as 1m",
            "!without",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 1, window: 60 } ] } }",
        &["a number without a unit; write a whole number and its unit"],
    ),
    (
        "plans: { p: { limits: [ { quota: 1_000, window: 1m } ] } }",
        &["quota is 1_000; it must be a whole number in digits alone"],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: 1m, burst: 9 } ] } }",
        &["burst belongs to token_bucket only; remove it or change"],
    ),
    (
        "plans: { p: { limits: { quota: 5, window: 1m } } }",
        &["plans.p.limits is a table; it must be a list"],
    ),
    (
        "plans:\n  p:\n    limits:\n    - { quota: 5, window: 1m }\n    - { quota: 0, window: 1h }\n    - { quota: 9, window: 1m, name: x }\n",
        &[
            "2 errors",
            "plans.p.limits[1].quota is 0",
            "plans.p.limits[2] has the algorithm and window of one before it",
            "(line 6)",
        ],
    ),
];

const CALENDARS: &[Row] = &[
    (
        "plans:\n  p:\n    limits:\n      - { quota: 5, window: quarter, zone: nowhere }\n",
        &[
            "1 error\n",
            "plans.p.limits[0].window is \"quarter\", which is not a duration; write 10s, 1m, 1h, or day, week, month (line 4)",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: Month } ] } }",
        &[
            "1 error\n",
            "window is \"Month\", which is not a duration; write",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: month, zone: Europe/Berln, starts: 31 } ] } }",
        &[
            "2 errors",
            "plans.p.limits[0].zone is \"Europe/Berln\", which is not a time zone; did you mean \"Europe/Berlin\"?",
            "plans.p.limits[0].starts is 31; a month starts on day 1 to 28",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: day, zone: '+02:00', starts: monday } ] } }",
        &[
            "2 errors",
            "zone is \"+02:00\", which is not a time zone; write a name of the tz database, such as Europe/Berlin",
            "starts belongs to week and month; remove it",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: week, starts: noon, zone: '' } ] } }",
        &[
            "2 errors",
            "starts is \"noon\"; a week starts on monday to sunday",
            "zone is \"\", which is not a time zone; write",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: week, starts: 3, zone: 2 } ] } }",
        &["2 errors", "starts is 3; a week starts on", "zone is \"2\""],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: month, starts: 01, zone: [UTC] } ] } }",
        &[
            "2 errors",
            "starts is 01; a month starts",
            "zone is a list; it must be a text",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: month, starts: 0 }, { quota: 5, window: month, starts: 256 } ] } }",
        &[
            "2 errors",
            "[0].starts is 0; a month",
            "[1].starts is 256; a month",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 0, window: month, algorithm: sliding_log, anchor: clock, precision: 2, burst: 1, stars: 2 } ] } }",
        &[
            "6 errors",
            "quota is 0; a quota is at least 1",
            "algorithm is sliding_log; a calendar window is counted by fixed_window",
            "anchor belongs to windows of a fixed length; remove it",
            "precision belongs to sliding_window only",
            "burst belongs to token_bucket only",
            "stars is not a field; did you mean starts?",
        ],
    ),
    (
        "plans: { p: { limits: [ { window: day, algorithm: nope, name: 'a b' } ] } }",
        &[
            "3 errors",
            "plans.p.limits[0] has no quota",
            "algorithm is \"nope\"; it must be one of",
            "limits[0].name",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: 1d, zone: UTC, starts: 2 } ] } }",
        &[
            "2 errors",
            "zone belongs to calendar windows; remove it",
            "starts belongs to calendar windows; remove it",
        ],
    ),
    (
        "plans: { p: { limits: [ { quota: 5, window: day, zone: utc }, { quota: 6, window: day, name: x } ] } }",
        &[
            "1 error\n",
            "limits[1] has the algorithm and window of one before it",
        ],
    ),
];

const NAMES: &[Row] = &[
    (
        "default_plan: nope\nplans: { free: { limits: [ { quota: 1, window: 1m } ], candidate: fre } }\nworkers: -1\n\
      check: { plan: ['default:fee'] }\nenvoy: { domains: { d: { unmatched: frees, rules: [ { descriptor: [a], plan: x } ] } } }\n",
        &[
            "6 errors",
            "workers is -1; it must be a whole number in digits alone, such as 1000 (line 3)",
            "default_plan is \"nope\", which is not a plan of this config (line 1)",
            "plans.free.candidate is \"fre\", which is not a plan of this config; did you mean \"free\"? (line 2)",
            "check.plan[0] names the plan \"fee\", which is not a plan of this config; did you mean \"free\"? (line 4)",
            "envoy.domains.d.unmatched is \"frees\", which is not a plan of this config; did you mean \"free\"? (line 5)",
            "envoy.domains.d.rules[0].plan is \"x\", which is not a plan of this config (line 5)",
        ],
    ),
    (
        "default_plan: free\nplans: { free: {} }\n",
        &[
            "1 error\n",
            "plans.free has no rule; write one of limits",
            "!no plan of this config",
        ],
    ),
    (
        "plan: { free: { unlimited: true } }\n",
        &[
            "2 errors",
            "plan is not a field; did you mean plans? (line 1)",
            "plans has no plan",
        ],
    ),
    (
        "plans: { free: { unlimitd: true } }\n",
        &["plans.free.unlimitd is not a field; did you mean unlimited?"],
    ),
    (
        "plans: { free: { nope: true, blocked: true } }\n",
        &[
            "plans.free.nope is not a field; there are unlimited, blocked",
            "!did you",
        ],
    ),
    (
        "plans: { a: { blocked: true } }\nplans: { b: { blocked: true } }\n",
        &["plans occurs twice, the first time at line 1; remove one"],
    ),
    (
        "plans: { 'a:b': { blocked: true } }\n",
        &["plans.\"a:b\" is not a name of a plan: it holds ':'"],
    ),
    (
        "url: redis://h\nplans: { a: { blocked: true } }\n",
        &["the config has a field that is not known; did you mean store.url? (line 1)"],
    ),
];

const VALUES: &[Row] = &[
    ("", &["is empty; a config names at least one plan"]),
    ("plans: [\n", &["is not valid YAML", "(line "]),
    ("plans:\n\tfree: {}\n", &["is not valid YAML", "(line 2)"]),
    (
        "plans: { a: { blocked: yes } }\n",
        &["plans.a.blocked is \"yes\"; it must be true or false"],
    ),
    (
        "plans: { a: { blocked: true, unlimited: true } }\n",
        &["plans.a has several rules; write only one of"],
    ),
    (
        "store: { url: 'redis://h', username: [a], password_file: '', tls: { ca_file: /ca } }\nplans: { a: { blocked: true } }\n",
        &[
            "3 errors",
            "store.username is a list; it must be a text",
            "store.password_file is empty",
            "store.tls is set, but store.url does not ask for TLS; write rediss",
            "!is not a field",
        ],
    ),
    (
        "listen: { grpc: [nowhere, '0.0.0.0:2'], http: '0.0.0.0:3' }\nplans: { a: { blocked: true } }\n",
        &[
            "3 errors",
            "listen.grpc[0] is wrong: \"nowhere\" is not an address; write host:port",
            "listen.grpc[1] is 0.0.0.0:2, which other hosts can reach",
            "listen.http is 0.0.0.0:3, which other hosts can reach",
        ],
    ),
    (
        "listen: { grpc: '127.0.0.1:8080', http: '127.0.0.1:8080' }\nplans: { a: { blocked: true } }\n",
        &[
            "listen.http is 127.0.0.1:8080, where listen.grpc[0] listens already; give each an address of its own (line 1)",
        ],
    ),
    (
        "listen: { http: 'unix:/s', metrics: 'unix:/s' }\nplans: { a: { blocked: true } }\n",
        &["where listen.http listens already"],
    ),
    (
        "listen: { tls: { cert_file: c } }\nplans: { a: { blocked: true } }\n",
        &["listen.tls.key_file is missing; name a file in PEM"],
    ),
    (
        "store: { expected_replicas: atuo }\nplans: { a: { blocked: true } }\n",
        &["it is auto, or 1 to 10000 (line 1)"],
    ),
    (
        "check: { key: [parm:key, [x], 'header:'] }\nplans: { a: { blocked: true } }\n",
        &[
            "3 errors",
            "check.key[0] ",
            "check.key[1] is a list; it must be a text",
            "check.key[2] ",
        ],
    ),
    (
        "plans: { a: { blocked: true } }\ncheck:\n  key: ['param:key']\n  subjects:\n    - { key: client_address, plan: ['default:a'], cost: ['default:0'] }\n    - { key: ['param:peek'], plan: ['default:b'] }\n    - [x]\n",
        &[
            "4 errors",
            "check.subjects stands beside check.key; keep one of them (line 5)",
            "check.subjects[0].cost[0] names no cost; write a whole number, 1 or more (line 5)",
            "check.subjects[1].key has param:peek, which has a meaning of its own (line 6)",
            "check.subjects[2] is a list; it must be a table of fields (line 7)",
        ],
    ),
    (
        "plans: { a: { blocked: true } }\ncheck: { subjects: [\n  { key: client_address, plan: ['default:b'] } ] }\n",
        &[
            "check.subjects[0].plan[0] names the plan \"b\", which is not a plan of this config (line 3)",
        ],
    ),
    (
        "plans: { a: { blocked: true } }\ncheck: { subjects: [ {}, {}, {}, {}, {}, {}, {}, {}, {} ] }\n",
        &[
            "1 error\n",
            "check.subjects has 9 subjects; 1 to 8 (line 2)",
        ],
    ),
];

#[test]
fn each_wrong_config_is_told_all_its_errors_with_their_true_places() {
    let rows: Vec<&Row> = [LIMITS, CALENDARS, NAMES, VALUES]
        .into_iter()
        .flatten()
        .collect();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    let mut wrong = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    for (config, words) in &rows {
        std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
        let mut check = tollgate();
        let output = check
            .args(["check", "tollgate.yaml"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{config}\n{said}");
        let fits = |word: &&&str| {
            word.strip_prefix('!').map_or_else(
                || said.contains(**word),
                |misleading| !said.contains(misleading),
            )
        };
        let missed: Vec<_> = words.iter().filter(|word| !fits(word)).collect();
        if output.status.code() != Some(1)
            || !missed.is_empty()
            || !said.starts_with("tollgate.yaml: ")
        {
            wrong.push(format!(
                "{config}: {} without {missed:?}: {said}",
                output.status
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
