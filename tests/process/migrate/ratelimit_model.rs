//! A model of ratelimit's documented search, and random files with all that its README names. What is converted must be a config,
//! must tell of each loss, and must decide each descriptor as the model does: by the same limit, counted together with the same
//! others.

use std::collections::HashMap;
use std::fmt::Write as _;

use tollgate::config::{Config, Origin, Sources, ratelimit};
use tollgate::plan::envoy::Entry;
use tollgate::plan::{Plan, Rule};

use crate::support::history::Random;

/// Configs of one test, of one to three files each, and descriptors that each is asked for.
const CONFIGS: u64 = 2_000;
const DESCRIPTORS: usize = 60;
const KEYS: [&str; 2] = ["a", "b"];
const UNITS: [(&str, u64); 4] = [
    ("second", 1),
    ("Minute", 60),
    ("hour", 3_600),
    ("YEAR", 365 * 86_400),
];

fn one_in(random: &mut Random, count: u64) -> bool {
    random.below(count) == 0
}

fn letters(random: &mut Random, most: u64) -> String {
    (0..random.below(most + 1))
        .map(|_| random.pick(&['x', 'y']))
        .collect()
}

/// A value of a descriptor, empty for none.
fn value(random: &mut Random) -> String {
    let mut text = |most| letters(random, most);
    let short = text(1);
    let long = text(2);
    let other = text(2);
    match random.below(8) {
        0 | 1 => String::new(),
        2 | 3 => format!("{long}x"),
        4 => format!("{long}*"),
        5 => format!("*{long}"),
        6 => format!("{long}*{other}"),
        _ => format!("{short}*{long}*{other}"),
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Limit {
    quota: u64,
    unit: (&'static str, u64),
    unlimited: bool,
    passes: bool,
}

#[derive(Debug)]
struct Node {
    key: &'static str,
    value: String,
    shared: bool,
    limit: Option<Limit>,
    nested: Vec<Node>,
}

/// A file, and what has to be told of it.
#[derive(Default)]
struct Made {
    text: String,
    losses: Vec<String>,
    limits: u64,
}

impl Made {
    fn flag(&mut self, random: &mut Random, (path, indent, name): (&str, &str, &str)) -> bool {
        let is = one_in(random, 8);
        if is {
            let word = *random.pick(&["true", "true", "yes", "On"]);
            let _ = writeln!(self.text, "{indent}{name}: {word}");
        }
        if is && !matches!(name, "share_threshold" | "shadow_mode" | "unlimited") {
            self.losses.push(format!("{path}.{name} "));
        }
        is
    }

    fn limit(&mut self, random: &mut Random, path: &str, indent: &str) -> Limit {
        let _ = writeln!(self.text, "{indent}rate_limit:");
        let path = format!("{path}.rate_limit");
        let indent = format!("{indent}  ");
        let unlimited = self.flag(random, (&path, &indent, "unlimited"));
        self.limits += 1;
        let limit = Limit {
            quota: if one_in(random, 12) { 0 } else { self.limits },
            unit: *random.pick(&UNITS),
            unlimited,
            passes: false,
        };
        if !unlimited {
            let _ = writeln!(
                self.text,
                "{indent}unit: {}\n{indent}requests_per_unit: {}",
                limit.unit.0, limit.quota
            );
        }
        if one_in(random, 6) {
            let _ = writeln!(self.text, "{indent}name: limit-{}", random.below(3));
        } else if one_in(random, 6) {
            let _ = writeln!(
                self.text,
                "{indent}replaces:\n{indent}  - name: limit-{}",
                random.below(3)
            );
            self.losses.push(format!("{path}.replaces "));
        }
        limit
    }

    fn list(
        &mut self,
        random: &mut Random,
        (path, indent): (&str, &str),
        levels: u64,
    ) -> Vec<Node> {
        let mut nodes = Vec::<Node>::new();
        let _ = writeln!(self.text, "{indent}descriptors:");
        for _ in 0..1 + random.below(4) {
            let key = *random.pick(&KEYS);
            let value = value(random);
            if nodes
                .iter()
                .any(|other| other.key == key && other.value == value)
            {
                continue;
            }
            let path = format!("{path}descriptors[{}]", nodes.len());
            let inner = format!("{indent}    ");
            let _ = writeln!(self.text, "{indent}  - key: {key}");
            if !value.is_empty() {
                let _ = writeln!(self.text, "{inner}value: \"{value}\"");
            }
            let shared =
                value.contains('*') && self.flag(random, (&path, &inner, "share_threshold"));
            let shadow = self.flag(random, (&path, &inner, "shadow_mode"));
            let quota_mode = self.flag(random, (&path, &inner, "quota_mode"));
            for name in ["detailed_metric", "value_to_metric"] {
                self.flag(random, (&path, &inner, name));
            }
            if one_in(random, 8) {
                let _ = writeln!(
                    self.text,
                    "{inner}metadata: {{ team: x, more: [ 1.5, {{ a: null }} ] }}"
                );
                self.losses.push(format!("{path}.metadata "));
            }
            let mut limit = (!one_in(random, 3)).then(|| self.limit(random, &path, &inner));
            limit
                .iter_mut()
                .for_each(|limit| limit.passes = shadow || quota_mode);
            let is_parent = levels > 1 && one_in(random, 2);
            let nested = if is_parent {
                self.list(random, (&format!("{path}."), &inner), levels - 1)
            } else {
                Vec::new()
            };
            nodes.push(Node {
                key,
                value,
                shared,
                limit,
                nested,
            });
        }
        nodes
    }
}

/// Whether a value matches a text with `*`, each of which stands for any letters.
fn matches(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern.split_first(), value.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, value)
                || value
                    .split_first()
                    .is_some_and(|(_, value)| matches(pattern, value))
        }
        (Some((letter, pattern)), Some((other, value))) => {
            letter == other && matches(pattern, value)
        }
        _ => false,
    }
}

/// Of one list: the whole value, else the first wildcard that matches, else the key alone.
fn best<'n>(list: &'n [Node], entry: &Entry) -> Option<&'n Node> {
    let of_key = || list.iter().filter(|node| node.key == entry.name);
    let is_wild = |node: &&Node| {
        node.value.contains('*') && matches(node.value.as_bytes(), entry.value.as_bytes())
    };
    let whole = of_key().find(|node| !node.value.is_empty() && node.value == entry.value);
    whole
        .or_else(|| of_key().find(is_wild))
        .or_else(|| of_key().find(|node| node.value.is_empty()))
}

/// The limit of a descriptor, and what tells its count from others: each value, or the wildcard whose values count together.
fn limit_of<'n>(mut list: &'n [Node], entries: &[Entry]) -> Option<(&'n Limit, String)> {
    let mut limit = None;
    let mut count = String::new();
    for entry in entries {
        let node = best(list, entry)?;
        let _ = write!(
            count,
            "{}_{}/",
            entry.name,
            if node.shared && node.value != entry.value {
                &node.value
            } else {
                &entry.value
            }
        );
        (limit, list) = (node.limit.as_ref(), &node.nested);
    }
    Some((limit?, count))
}

/// What tollgate makes of a descriptor: the limit as the model writes it, and plan and key.
fn decided(config: &Config, domain: &str, entries: &[Entry]) -> Option<(String, String)> {
    let envoy = config.plans.envoy();
    let (_, rule) = envoy.domain(domain).unwrap().find(entries)?;
    let plan: &Plan = config.plans.get(&rule.plan).unwrap();
    let passes = if plan.shadow { " passes" } else { "" };
    let limit = match &plan.rule {
        Rule::Unlimited if &*plan.name == "no-limit" => return None,
        Rule::Unlimited => format!("unlimited{passes}"),
        Rule::Blocked => format!("nothing{passes}"),
        Rule::Limits(limits) => format!(
            "{} in {} s{passes}",
            limits[0].quota(),
            limits[0].window_us() / 1_000_000
        ),
    };
    Some((
        limit,
        format!("{}: {}", plan.name, rule.key.key(entries).as_str()),
    ))
}

fn written(limit: &Limit) -> String {
    let passes = if limit.passes { " passes" } else { "" };
    match limit {
        Limit {
            unlimited: true, ..
        } => format!("unlimited{passes}"),
        Limit { quota: 0, .. } => format!("nothing{passes}"),
        Limit {
            quota,
            unit: (_, seconds),
            ..
        } => format!("{quota} in {seconds} s{passes}"),
    }
}

/// Converts the files, and loads the result as `check` does.
fn loaded(seed: u64, made: &[Made]) -> (Config, Vec<String>) {
    let file = |(index, made): (usize, &Made)| Sources {
        text: Some((
            Origin::File(format!("{index}.yaml").into()),
            made.text.clone(),
        )),
        ..Sources::default()
    };
    let files: Vec<Sources> = made.iter().enumerate().map(file).collect();
    let texts = || {
        made.iter()
            .map(|made| &*made.text)
            .collect::<Vec<_>>()
            .join("---\n")
    };
    let converted = ratelimit::convert(&files)
        .unwrap_or_else(|refused| panic!("seed {seed} is refused: {}\n{}", refused[0], texts()));
    let text = Some((Origin::StandardInput, converted.yaml.clone()));
    match Config::load(Sources {
        text,
        ..Sources::default()
    }) {
        Ok(config) => (config, converted.warnings),
        Err(errors) => panic!(
            "seed {seed} became what check refuses: {errors}\n{}\n{}",
            texts(),
            converted.yaml
        ),
    }
}

fn assert_losses_are_told(seed: u64, made: &[Made], warnings: &[String]) {
    for (index, made) in made.iter().enumerate() {
        let begin = if made.losses.is_empty() {
            String::new()
        } else {
            format!("{index}.yaml: ")
        };
        for loss in &made.losses {
            let told = |warning: &&String| {
                let warning = warning.strip_prefix(&begin).unwrap_or(warning);
                warning.starts_with(&**loss) && warning.contains("(line ")
            };
            assert!(
                warnings.iter().any(|warning| told(&warning)),
                "seed {seed}: {loss}is not told of\n{}\n{warnings:?}",
                made.text
            );
        }
    }
    let expected: usize = made.iter().map(|made| made.losses.len()).sum();
    let others = [
        "never decides, there and here",
        "has no rate_limit: every request of this domain passes",
    ];
    let told = warnings
        .iter()
        .filter(|warning| !others.iter().any(|other| warning.contains(other)))
        .count();
    assert_eq!(
        told, expected,
        "seed {seed}: more is told than is lost: {warnings:?}"
    );
}

/// Entries with the keys and often the values of nested descriptors, or with any.
fn entries(random: &mut Random, mut list: &[Node]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for _ in 0..1 + random.below(3) {
        let node = (!list.is_empty() && !one_in(random, 4)).then(|| random.pick(list));
        let value = match node {
            Some(node) if !node.value.is_empty() && one_in(random, 2) => node
                .value
                .split('*')
                .map(str::to_owned)
                .reduce(|text, next| text + &letters(random, 2) + &next)
                .unwrap_or_default(),
            _ => letters(random, 4),
        };
        entries.push(Entry {
            name: node
                .map_or_else(|| *random.pick(&KEYS), |node| node.key)
                .to_owned(),
            value,
        });
        list = node.map_or(&[], |node| &node.nested);
        if list.is_empty() && !one_in(random, 8) {
            break;
        }
    }
    entries
}

/// Asks both for random descriptors. Returns how many have a limit.
fn assert_alike(
    random: &mut Random,
    seed: u64,
    config: &Config,
    domains: &[(String, Vec<Node>, &str)],
) -> usize {
    let mut by_model = HashMap::<String, String>::new();
    let mut by_plan = HashMap::<String, String>::new();
    let mut limited = 0;
    for _ in 0..DESCRIPTORS {
        let (domain, list, text) =
            &domains[usize::try_from(random.below(domains.len() as u64)).unwrap()];
        let entries = entries(random, list);
        let model = limit_of(list, &entries);
        let ours = decided(config, domain, &entries);
        let shown = || format!("seed {seed}, domain {domain}, {entries:?}\n{text}");
        assert_eq!(
            ours.as_ref().map(|(limit, _)| &**limit),
            model.as_ref().map(|(limit, _)| written(limit)).as_deref(),
            "{}",
            shown()
        );
        let (Some((limit, count)), Some((_, ours))) = (model, ours) else {
            continue;
        };
        limited += 1;
        if limit.unlimited || limit.quota == 0 {
            continue;
        }
        let count = format!("{domain} {count}");
        let before = by_model
            .entry(count.clone())
            .or_insert_with(|| ours.clone());
        assert_eq!(
            *before,
            ours,
            "two counts for what ratelimit counts together, {count}: {}",
            shown()
        );
        let before = by_plan.entry(ours.clone()).or_insert_with(|| count.clone());
        assert_eq!(
            *before,
            count,
            "one count for what ratelimit counts apart, {ours}: {}",
            shown()
        );
    }
    limited
}

#[test]
fn random_files_are_converted_and_decide_as_the_model_of_ratelimit_does() {
    let mut limited = 0;
    let mut losses = 0;
    let mut rules = 0;
    for seed in 0..CONFIGS {
        let mut random = Random(seed);
        let mut made = Vec::<Made>::new();
        let mut trees = Vec::new();
        for index in 0..1 + random.below(3) {
            let mut file = Made {
                text: format!("domain: \"d.{index}\"\n"),
                ..Made::default()
            };
            let levels = 1 + random.below(3);
            trees.push(file.list(&mut random, ("", ""), levels));
            made.push(file);
        }
        let (config, warnings) = loaded(seed, &made);
        assert_losses_are_told(seed, &made, &warnings);
        let domain =
            |(index, tree): (usize, Vec<Node>)| (format!("d.{index}"), tree, &*made[index].text);
        let domains: Vec<_> = trees.into_iter().enumerate().map(domain).collect();
        limited += assert_alike(&mut random, seed, &config, &domains);
        losses += made.iter().map(|made| made.losses.len()).sum::<usize>();
        rules += config
            .plans
            .envoy()
            .domains()
            .map(|(_, domain)| domain.rules().len())
            .sum::<usize>();
    }
    let asked = CONFIGS * DESCRIPTORS as u64;
    println!(
        "{CONFIGS} configs, {rules} rules, {losses} losses told; {asked} descriptors alike, {limited} of them with a limit"
    );
    assert!(
        limited > 10_000 && losses > 1_000,
        "the descriptors seldom hit: {limited} of {asked}, {losses} losses"
    );
}
