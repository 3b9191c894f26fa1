//! Names, values and settings that no config may have, each alone in a config that is otherwise valid.

use super::{Dice, PLANS_ALONE, SECRET, VALID};

pub(super) fn odd_name(dice: &mut Dice) -> Vec<u8> {
    let long = "n".repeat(1 << (6 + dice.below(15)));
    let odd = [
        "\"a\\nb\"",
        "\"\\e[31m\"",
        "\"\\0\"",
        "''",
        "~",
        "\"\\u202e\"",
        "true",
        "\" a\"",
        "'a: b'",
        "\"\\\"\"",
        "é",
        "<<",
        "1.5",
    ];
    let name = if dice.below(3) == 0 {
        long
    } else {
        dice.of(&odd).to_owned()
    };
    match dice.below(6) {
        0 => format!("{name}: 1\n{VALID}").into(),
        1 => format!("plans:\n  {name}: {{ blocked: true }}\n").into(),
        2 => {
            format!("plans: {{ p: {{ limits: [ {{ quota: 1, window: 1s, name: {name} }} ] }} }}\n")
                .into()
        }
        3 => format!("plans: {{ p: {{ {name}: 1 }} }}\n").into(),
        4 => format!(
            "check: {{ subjects: [ {{ {name}: [ {name}, 'param:{name}' ] }} ] }}\n{PLANS_ALONE}"
        )
        .into(),
        _ => format!("store: {{ {name}: 1 }}\n{PLANS_ALONE}").into(),
    }
}

pub(super) fn control(dice: &mut Dice) -> Vec<u8> {
    let code = dice.of(&[
        0, 0, 1, 7, 8, 0xb, 0xc, 0x1b, 0x7f, 0x80, 0x85, 0x9f, 0xa0, 0x2028, 0x2029, 0xfeff, 0xfffe,
    ]);
    let letter = char::from_u32(code).unwrap();
    let mut text = VALID.to_owned();
    text.insert(dice.below(VALID.len()), letter);
    if dice.below(3) == 0 {
        text = format!("{VALID}{letter}plans: {{ hidden: {{ unlimited: true }} }}\nnonsense: [\n");
    }
    text.into()
}

pub(super) fn twice(dice: &mut Dice) -> Vec<u8> {
    let spelt = [
        ("1", "'1'"),
        ("1", "\"\\x31\""),
        ("a", "\"a\""),
        ("a", "? a\n  "),
        ("true", "'true'"),
        ("~", "'~'"),
        ("a", "a"),
    ];
    let (first, second) = dice.of(&spelt);
    match dice.below(3) {
        0 => format!("plans:\n  {first}: {{ blocked: true }}\n  {second}: {{ unlimited: true }}\n")
            .into(),
        1 => format!("{VALID}plans: {{ other: {{ blocked: true }} }}\n").into(),
        _ => (0..20_000).map(|_| "a: 1\n").collect::<String>().into(),
    }
}

pub(super) fn numbers(dice: &mut Dice) -> Vec<u8> {
    let forms = [
        "010",
        "0x10",
        "0o10",
        "0b1",
        "1e3",
        "1E3",
        "1_000",
        "1,000",
        "1.0",
        "-0",
        "-1",
        "+5",
        ".5",
        "5.",
        ".inf",
        "-.inf",
        ".nan",
        "00",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999999999999",
        "\"5\"",
        "' 5'",
        "１",
        "five",
        "",
        "true",
        "null",
        "[5]",
        "{ a: 5 }",
        "1 000",
        "1e400",
        "0.1e1",
        "٣",
        "½",
        "1:30",
        "2024-01-01",
        "NaN",
    ];
    let number = dice.of(&forms);
    let other = dice.of(&forms);
    match dice.below(4) {
        0 => format!("plans: {{ p: {{ limits: [ {{ quota: {number}, window: 1m }} ] }} }}\nworkers: {other}\n").into(),
        1 => format!("plans: {{ p: {{ limits: [ {{ quota: 1, window: 1m, precision: {number} }} ] }} }}\n").into(),
        2 => format!("{VALID}deny_cache: {{ entries: {number} }}\nworkers: {other}\n").into(),
        _ => format!(
            "plans: {{ {number}: {{ limits: [ {{ quota: 1, window: 1m, algorithm: token_bucket, burst: {other} }} ] }} }}\n"
        )
        .into(),
    }
}

pub(super) fn durations(dice: &mut Dice) -> Vec<u8> {
    let forms = [
        "1M",
        "1month",
        "1y",
        "1 minute",
        "60",
        "1.5h",
        "-1s",
        "1s1s",
        "1m1h",
        "P1D",
        "1:00",
        "99999999999999999999d",
        "1w",
        "1µs",
        "1us",
        "0s",
        "0",
        "",
        "s",
        "1S",
        "\"1m\\n\"",
        "\"1m \"",
        "[1m]",
        "true",
        "1h 30m",
        "1h  30m",
        "010s",
        "1e3s",
        "∞",
        "18446744073709551615ms",
    ];
    let window = dice.of(&forms);
    let other = dice.of(&forms);
    match dice.below(2) {
        0 => {
            format!("plans: {{ p: {{ limits: [ {{ quota: 1, window: {window} }} ] }} }}\nstore: {{ deadline: {other} }}\n").into()
        }
        _ => format!("{PLANS_ALONE}listen: {{ lame_duck: {window}, max_connection_age: {other} }}\n").into(),
    }
}

pub(super) fn tags(dice: &mut Dice) -> Vec<u8> {
    let tag = dice.of(&[
        "!!int",
        "!!str",
        "!!binary",
        "!",
        "!x",
        "!<tag:yaml.org,2002:str>",
        "!!python/object/apply:os.system",
        "!e!x",
        "!!",
    ]);
    match dice.below(3) {
        0 => format!("plans: {{ p: {{ limits: [ {{ quota: {tag} 5, window: 1m }} ] }} }}\n").into(),
        1 => format!("{tag} {{ plans: {{ p: {{ blocked: true }} }} }}\n").into(),
        _ => format!(
            "%TAG !e! tag:example.com,2000:{}\n--- {tag} [ a ]\n",
            "x".repeat(dice.below(100_000))
        )
        .into(),
    }
}

pub(super) fn misplaced_secret(dice: &mut Dice) -> Vec<u8> {
    let text = dice.of(&[
        "store: redis://:canary@h\n",
        "store: [ 'redis://:canary@h' ]\n",
        "store: { 'redis://:canary@h' }\n",
        "store: { canary }\n",
        "store: { canary: canary }\n",
        "store: { deadline: canary, expected_replicas: canary, url: { canary: canary } }\n",
        "store: { url: 'redis://:canary@h?canary=canary', tls: canary }\n",
        "store: { url: 'rediss://:canary@h', tls: { ca_file: { canary: 1 }, canary: canary } }\n",
        "store: { password_file: [ canary ], username: { canary: canary } }\n",
        "listen: { tls: canary }\n",
        "listen: { tls: { cert_file: [canary], key_file: { canary: canary }, client_names: ['*canary*'], canary: 1 } }\n",
        "listen: { admin_token_file: [ canary ] }\n",
        "canary\n",
        "canary:canary\n",
        "{canary}\n",
        "[canary]\n",
        "\"canary\n",
        "'canary': [\n",
        "canary: canary\n",
        "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n",
        "@canary\n",
        "%canary\n",
        "*canary\n",
        "&canary canary\n",
        "!canary canary\n",
        "store: { url: \"redis://:canary\\q@h\" }\n",
        "store:\n  url: redis://:canary@h\n url: canary\n",
        "memory: { canary: canary }\nstore: 'memory:?canary=canary'\n",
        "store: { url: 'memory:?capacity=canary' }\n",
        "store: { url: 'memory:?canary=1' }\n",
    ]);
    if dice.below(2) == 0 {
        text.into()
    } else {
        format!("{VALID}{text}").into()
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
pub(super) fn settings(dice: &mut Dice) -> (Vec<String>, Vec<(String, String)>) {
    let paths = [
        "plans.free.limits[300000000].quota",
        "plans.free.limits[255][255][255].quota",
        "plans.free.limits[256].quota",
        "plans.free.limits[-1].quota",
        "plans.free.limits[99999999999999999999].quota",
        "plans.free.limits[1].quota",
        "plans.free.limits[].quota",
        "plans.free.limits[0",
        "plans..free",
        ".",
        "",
        "store",
        "store.url",
        "store.canary0",
        "store.redis://:canary@h",
        "plans.free",
        "plans",
        "workers",
        "workers.a.b",
        "listen.tls.canary0",
        "é",
        "a b",
    ];
    // As a variable, with __ for each dot, it stays below the 128 KiB that Linux takes.
    let deep = "a.".repeat(40_000) + "a";
    let path = if dice.below(12) == 0 {
        deep.as_str()
    } else {
        dice.of(&paths)
    };
    let value = dice.of(&[
        "1",
        "0",
        "-1",
        "canary",
        "redis://:canary@h",
        "[1",
        "{",
        "a,b,,",
        "\u{1b}[31m\n",
        "1e9",
        "999999999999999999999999",
    ]);
    // A path that may be shown must not have the secret in its value, and the other way round.
    let value = if path.contains(SECRET) || path.starts_with("store") || path.contains("tls") {
        value
    } else {
        value.split(SECRET).next().unwrap_or_default()
    };
    let name = format!(
        "TOLLGATE_{}",
        path.to_ascii_uppercase()
            .replace('.', "__")
            .replace('\0', "")
    );
    let names = [
        "TOLLGATE_STORE_URL",
        "TOLLGATE_",
        "TOLLGATE___",
        "TOLLGATE_STORE",
        "tollgate_store__url",
        "TOLLGATE_STORE__URL__X",
        "TOLLGATE_X",
    ];
    match dice.below(4) {
        0 => (Vec::new(), vec![(name, value.to_owned())]),
        1 => (
            Vec::new(),
            vec![(dice.of(&names).to_owned(), SECRET.to_owned())],
        ),
        2 => (
            vec![path.split(SECRET).next().unwrap_or_default().to_owned()],
            Vec::new(),
        ),
        _ => (vec![format!("{path}={value}")], Vec::new()),
    }
}
