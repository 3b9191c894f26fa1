//! Calendar windows, overrides, subjects of checks and rules of Envoy that no config may have, and some that it may.

use super::{Dice, PLANS_ALONE, SECRET};

/// Texts that stand where a name, a key or a number is expected.
const ODD: [&str; 22] = [
    "",
    "~",
    "''",
    "\"\\e[31m\"",
    "\"a\\nb\"",
    "\"\\0\"",
    "é",
    "\"\\u202e\"",
    "true",
    "0",
    "-1",
    "1.5",
    "1e3",
    "18446744073709551616",
    "[]",
    "[a, b]",
    "{}",
    "{ a: b }",
    "*a",
    "&a a",
    "!!str a",
    "' a '",
];

const ZONES: [&str; 18] = [
    "UTC",
    "Europe/Berlin",
    "europe/BERLIN",
    "Europe/Berln",
    "America/Argentina/ComodRivadavia",
    "+02:00",
    "GMT+25",
    "Etc/GMT-14",
    "posix/Europe/Berlin",
    "../../etc/passwd",
    "/usr/share/zoneinfo/UTC",
    "Europe//Berlin",
    "Europe\\Berlin",
    "local",
    "Etc/Unknown",
    "Factory",
    "CET-1CEST,M3.5.0,M10.5.0/3",
    "Pacific/Apia",
];
const STARTS: [&str; 14] = [
    "1", "15", "28", "29", "31", "monday", "Sunday", "SUNDAY", "sun", "noon", "\"1\"", "01",
    "first", "[monday]",
];
const SOURCES: [&str; 20] = [
    "header:x-api-key",
    "param:u",
    "client_address",
    "\"default:free\"",
    "param:peek",
    "param:deny_status",
    "param:",
    "param:U",
    "param:é",
    "header:",
    "header:é",
    "header:host",
    "\"header:a b\"",
    "default:",
    "cookie:a",
    "\"param:u+header:x\"",
    "\"+\"",
    "\"header:x-org+client_address+\"",
    "client_address:1",
    "\"param:a_0-z\"",
];

/// As many times as asked for, while that has some megabytes at most.
fn times(part: &str, count: usize) -> usize {
    const BYTES_MAX: usize = 8 << 20;
    count.min(BYTES_MAX / part.len()).max(1)
}

fn odd_or<'a>(dice: &mut Dice, usual: &[&'a str]) -> &'a str {
    if dice.below(3) == 0 {
        dice.of(&ODD)
    } else {
        dice.of(usual)
    }
}

pub(super) fn calendar(dice: &mut Dice) -> Vec<u8> {
    const WINDOWS: [&str; 12] = [
        "day",
        "week",
        "month",
        "Month",
        "MONTH",
        "quarter",
        "year",
        "1month",
        "\"month \"",
        "weeks",
        "1d",
        "[month]",
    ];
    let long = "Z/".repeat(1 << dice.of(&[4, 10, 16]));
    let zone = if dice.below(12) == 0 {
        long.as_str()
    } else {
        odd_or(dice, &ZONES)
    };
    let beside = dice.of(&[
        "",
        ", algorithm: fixed_window",
        ", algorithm: sliding_log",
        ", anchor: clock",
        ", anchor: first_request",
        ", precision: 8",
        ", burst: 2",
        ", name: \"month\"",
    ]);
    let window = odd_or(dice, &WINDOWS);
    let starts = odd_or(dice, &STARTS);
    let limit = match dice.below(4) {
        0 => format!("{{ quota: 1, window: {window}{beside} }}"),
        1 => format!("{{ quota: 1, window: {window}, zone: {zone}{beside} }}"),
        2 => format!("{{ quota: 1, window: {window}, starts: {starts}{beside} }}"),
        _ => format!("{{ quota: 1, window: {window}, zone: {zone}, starts: {starts}{beside} }}"),
    };
    let count = times(&limit, dice.of(&[1, 1, 1, 2, 300]));
    let limits = format!("{limit}, ").repeat(count);
    format!("plans: {{ p: {{ limits: [ {limits} ] }} }}\n").into()
}

pub(super) fn overrides(dice: &mut Dice) -> Vec<u8> {
    let count = dice.of(&[1, 1, 2, 256, 257, 10_000, 10_001, 100_000]);
    let long = "k".repeat(dice.of(&[1, 511, 512, 513, 100_000]));
    let prefixes = dice.below(2) == 0;
    let many = |index: usize| {
        let subject = if prefixes { "key_prefix" } else { "key" };
        // Of 256, the last is the first once more.
        let name = if count == 256 { index % 255 } else { index };
        format!("  - {{ plan: free, {subject}: \"{SECRET}{name}\", use_plan: paid }}\n")
    };
    let entries = match dice.below(4) {
        0 => (0..count).map(many).collect(),
        1 => format!("  - {{ plan: free, key: {long}, quotas: [ {{ quota: 1 }} ] }}\n").repeat(2),
        _ => (0..1 + dice.below(3))
            .map(|_| entry(dice))
            .collect::<String>(),
    };
    let head = "plans:\n  free: { limits: [ { name: minute, quota: 100, window: 1m } ] }\n  paid: { unlimited: true }\n  \
                two: { limits: [ { quota: 1, window: 1s }, { quota: 9, window: 1m, algorithm: token_bucket, name: b } ] }\n";
    match dice.below(8) {
        0 => format!("{head}overrides: {}\n", dice.of(&ODD)).into(),
        1 => format!("{head}overrides: [{}]\n", "[], ".repeat(count)).into(),
        _ => format!("{head}overrides:\n{entries}").into(),
    }
}

fn entry(dice: &mut Dice) -> String {
    const EXPIRIES: [&str; 14] = [
        "\"2999-01-01T00:00:00Z\"",
        "2999-01-01T00:00:00Z",
        "\"1970-01-01T00:00:00Z\"",
        "\"2999-01-01\"",
        "\"2999-13-01T00:00:00Z\"",
        "\"2999-01-01T25:00:00Z\"",
        "\"2999-01-01T00:00:60Z\"",
        "\"9999-12-31T23:59:59.999999999Z\"",
        "\"0000-01-01T00:00:00Z\"",
        "\"+292277026596-12-04T15:30:08Z\"",
        "\"2999-01-01T00:00:00+99:99\"",
        "now",
        "1d",
        "4102444800",
    ];
    let plan = odd_or(dice, &["free", "two", "paid", "fre", "two"]);
    let mut fields = vec![format!("plan: {plan}")];
    let key = odd_or(dice, &["a", "\"eu-\"", "\"*\""]);
    for name in ["key", "key_prefix"] {
        if dice.below(2) == 0 {
            fields.push(format!("{name}: {key}"));
        }
    }
    if dice.below(2) == 0 {
        fields.push(format!(
            "use_plan: {}",
            odd_or(dice, &["free", "paid", "pad"])
        ));
    }
    if dice.below(2) == 0 {
        let limit = odd_or(dice, &["minute", "b", "hour"]);
        let quota = odd_or(dice, &["1", "300"]);
        let burst = odd_or(dice, &["1", "300"]);
        let quotas = dice.of(&[
            "[]",
            "[ {} ]",
            "[ { quota: QUOTA } ]",
            "[ { name: LIMIT, quota: QUOTA } ]",
            "[ { name: LIMIT, quota: QUOTA, burst: BURST }, { name: LIMIT, burst: BURST } ]",
            "{ quota: QUOTA }",
            "QUOTA",
        ]);
        let quotas = quotas.replace("LIMIT", limit).replace("QUOTA", quota);
        fields.push(format!("quotas: {}", quotas.replace("BURST", burst)));
    }
    if dice.below(2) == 0 {
        fields.push(format!("expires: {}", odd_or(dice, &EXPIRIES)));
    }
    if dice.below(3) == 0 {
        let long = "r".repeat(dice.of(&[200, 201, 100_000]));
        let reason = odd_or(dice, &["\"trial\"", "LONG"]).replace("LONG", &long);
        fields.push(format!("reason: {reason}"));
    }
    if dice.below(10) == 0 {
        fields.push("shard: acme".to_owned());
    }
    format!("  - {{ {} }}\n", fields.join(", "))
}

pub(super) fn subjects(dice: &mut Dice) -> Vec<u8> {
    let long = format!("param:{}", "u".repeat(dice.of(&[31, 32, 33, 100_000])));
    let list = |dice: &mut Dice| match dice.below(6) {
        0 => dice.of(&ODD).to_owned(),
        1 => format!("[{long}]"),
        2 => format!("[{}]", "param:u, ".repeat(dice.of(&[8, 9, 50_000]))),
        _ => {
            let all = (0..1 + dice.below(3)).map(|_| odd_or(dice, &SOURCES));
            format!("[{}]", all.collect::<Vec<_>>().join(", "))
        }
    };
    let subject = |dice: &mut Dice| {
        let mut fields = Vec::new();
        for name in ["key", "plan", "cost", "shard", "optional"] {
            if dice.below(8) < 5 || name == "key" && dice.below(4) > 0 {
                fields.push(format!("{name}: {}", list(dice)));
            }
        }
        if dice.below(3) == 0 {
            let optional = dice.of(&["true", "false", "yes", "1"]);
            fields.retain(|field| !field.starts_with("optional"));
            fields.push(format!("optional: {optional}"));
        }
        format!("{{ {} }}", fields.join(", "))
    };
    let count = dice.of(&[1, 1, 2, 8, 9, 20_000]);
    let one = subject(dice);
    let all = match count {
        2 => format!("{one}, {}", subject(dice)),
        count => vec![&*one; times(&one, count)].join(", "),
    };
    let beside = dice.of(&[
        "",
        ", key: [\"client_address\"]",
        ", plan: [\"param:plan\"]",
    ]);
    let text = match dice.below(6) {
        0 => format!("check: {{ subjects: {} }}\n", dice.of(&ODD)),
        _ => format!("check: {{ subjects: [ {all} ]{beside} }}\n"),
    };
    format!("{PLANS_ALONE}{text}").into()
}

pub(super) fn envoy(dice: &mut Dice) -> Vec<u8> {
    const SHARDS: [&str; 12] = [
        "\"{org}\"",
        "\"{user}\"",
        "\"{\"",
        "\"}\"",
        "\"{}\"",
        "\"{{}}\"",
        "\"{nobody}\"",
        "\"{org}{user}\"",
        "\"a{org}b\"",
        "org",
        "\"{org\\n}\"",
        "\"{*}\"",
    ];
    let long = format!("\"{}\"", "s".repeat(dice.of(&[64, 65, 100_000])));
    let shard = if dice.below(8) == 0 {
        long.as_str()
    } else {
        odd_or(dice, &SHARDS)
    };
    let joint = odd_or(dice, &["true", "false", "yes"]);
    let unmatched = odd_or(dice, &["allow", "deny", "free", "{ plan: free }"]);
    let rule = format!(
        "        - {{ descriptor: [\"org\", \"user\"], plan: {}, key: {}, shard: {shard} }}\n",
        odd_or(dice, &["free", "fre"]),
        odd_or(dice, &["\"{user}\"", "\"{org}\""]),
    );
    let rules = rule.repeat(times(&rule, dice.of(&[1, 1, 2, 5_000])));
    format!(
        "{PLANS_ALONE}envoy:\n  joint: {joint}\n  domains:\n    edge:\n      unmatched: {unmatched}\n      rules:\n{rules}"
    )
    .into()
}
