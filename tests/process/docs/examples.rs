//! Examples of the documents, tried on the program: configs, commands, calls and what they print.

use clap::CommandFactory;
use serde_json::{Value, json};
use tollgate::cli::Arguments;
use tollgate::config::{Config, EXAMPLE, Flag, Origin, Sources};

use super::markdown::{commands, page, pages, root};
use crate::support::http::{Reply, send};
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, request};

/// Stands for the plans that a fragment leaves out.
const PLANS: &str = "\nplans: { any: { unlimited: true } }\n";

/// A config. Errors: its errors.
pub(super) fn load(text: &str, flags: Vec<Flag>) -> Result<Config, String> {
    let text = Some((Origin::StandardInput, text.to_owned()));
    Config::load(Sources {
        text,
        flags,
        ..Sources::default()
    })
    .map_err(|errors| errors.to_string())
}

#[test]
fn every_config_of_the_documents_is_valid_and_warned_of_nothing() {
    let mut configs = 0;
    for document in pages() {
        for block in document
            .blocks()
            .iter()
            .filter(|block| block.info.starts_with("yaml"))
        {
            let text = match block.info.as_str() {
                "yaml" => block.text.clone(),
                "yaml fragment" => block.text.clone() + PLANS,
                other => panic!(
                    "{}: a block is {other}; write yaml, or yaml fragment",
                    document.path
                ),
            };
            let config = load(&text, Vec::new())
                .unwrap_or_else(|errors| panic!("{}: {errors}\n{text}", document.path));
            assert!(
                config.warnings.is_empty(),
                "{}: {:?}",
                document.path,
                config.warnings
            );
            configs += 1;
        }
    }
    assert!(configs >= 6, "only {configs} configs were found");
}

#[test]
fn the_config_of_the_kubernetes_manifest_is_valid() {
    let manifest = std::fs::read_to_string(root().join("deploy/kubernetes/sidecar.yaml")).unwrap();
    let begin = "  tollgate.yaml: |\n";
    let lines = manifest.split(begin).nth(1).unwrap().lines();
    let lines = lines
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(|line| line.get(4..).unwrap_or(""));
    let text = lines.collect::<Vec<_>>().join("\n");
    let config = load(&text, Vec::new()).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert!(
        config.warnings.is_empty() && config.plans.len() >= 3,
        "{text}"
    );
}

/// The arguments of a command that runs tollgate, up to what is the shell's.
fn arguments(words: &[String]) -> Option<Vec<String>> {
    let end = words
        .iter()
        .position(|word| word.starts_with(['>', '|', '&']) || word.ends_with(';'));
    let words = &words[..end.unwrap_or(words.len())];
    let rest = match words {
        [first, rest @ ..] if first == "tollgate" => rest,
        [cargo, run, release, rest @ ..]
            if [cargo, run, release] == ["cargo", "run", "--release"] =>
        {
            rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest)
        }
        _ => return None,
    };
    Some(
        std::iter::once("tollgate".to_owned())
            .chain(rest.iter().cloned())
            .collect(),
    )
}

#[test]
fn every_tollgate_command_of_the_documents_is_understood() {
    let mut tried = 0;
    for document in pages() {
        for (words, _) in document.blocks_of("console").iter().flat_map(commands) {
            let Some(arguments) = arguments(&words) else {
                continue;
            };
            if let Err(error) = Arguments::command().try_get_matches_from(&arguments) {
                panic!("{}: {words:?}: {error}", document.path);
            }
            let settings = arguments
                .windows(2)
                .filter(|pair| pair[0] == "--set")
                .map(|pair| pair[1].split_once('=').unwrap());
            for (path, value) in settings {
                let known = super::reference::known_fields().contains(path);
                assert!(
                    known && !value.is_empty(),
                    "{}: {path} is not a setting",
                    document.path
                );
            }
            tried += 1;
        }
    }
    assert!(tried >= 12, "only {tried} commands were found");
}

/// Sends what curl would.
pub(super) fn curl(words: &[String], http: &str) -> Reply {
    let mut headers = Vec::new();
    let mut target = String::new();
    let mut body = None;
    let mut words = words[1..].iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-i" | "-s" => {}
            "--json" => {
                headers.push("Content-Type: application/json".to_owned());
                headers.push("Accept: application/json".to_owned());
                body = words.next().cloned();
            }
            "-H" => headers.push(words.next().unwrap().clone()),
            "-d" => body = words.next().cloned(),
            url => {
                target = url
                    .strip_prefix("127.0.0.1:8080")
                    .unwrap_or_else(|| panic!("{url}: ask 127.0.0.1:8080"))
                    .to_owned()
            }
        }
    }
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.unwrap_or_default();
    headers.extend((!body.is_empty()).then(|| format!("Content-Length: {}", body.len())));
    send(
        http,
        method,
        &target,
        &headers.iter().map(String::as_str).collect::<Vec<_>>(),
        &body,
    )
}

/// A header's value with seconds that pass while a test runs left out, and those seconds.
fn without_seconds(name: &str, value: &str) -> (String, Option<u64>) {
    let (before, after) = match name {
        "retry-after" => ("", value),
        _ => value.rsplit_once(";t=").unwrap_or((value, "")),
    };
    (before.to_owned(), after.parse().ok())
}

#[test]
fn curl_gets_the_output_that_the_documents_show() {
    let server = Server::start(EXAMPLE, &["--set", "listen.http=127.0.0.1:0"]);
    let http = server.http();
    let mut headers = 0;
    for (words, shown) in page("docs/http-api.md")
        .blocks_of("console")
        .iter()
        .flat_map(commands)
    {
        if words[0] != "curl" {
            continue;
        }
        let reply = curl(&words, &http);
        let mut lines = shown.lines();
        let status: u16 = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(reply.status, status, "{words:?}: {reply:?}");
        for (name, value) in lines
            .take_while(|line| !line.is_empty())
            .map(|line| line.split_once(": ").unwrap())
        {
            let found = reply
                .header(name)
                .unwrap_or_else(|| panic!("{words:?}: no {name} in {reply:?}"));
            let (found, found_s) = without_seconds(name, found);
            let (value, value_s) = without_seconds(name, value);
            assert_eq!(
                (found, found_s.is_some()),
                (value, value_s.is_some()),
                "{words:?}: {name}"
            );
            assert!(
                found_s.is_none_or(|seconds| (1..=60).contains(&seconds)),
                "{words:?}: {name}"
            );
            headers += 1;
        }
    }
    assert!(headers >= 10, "only {headers} header fields were compared");
    let body = page("docs/http-api.md").blocks_of("json").remove(0);
    let shown: Value = serde_json::from_str(&body.text).unwrap();
    let denied: Value =
        serde_json::from_str(&send(&http, "GET", "/v1/check?key=alice&plan=login", &[], "").body)
            .unwrap();
    assert_eq!(shape(&denied), shape(&shown));
}

/// A value without what differs from one denial to the next.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shape_of(name, value)))
            .collect(),
        Value::Array(values) => values.iter().map(shape).collect(),
        other => other.clone(),
    }
}

fn shape_of(name: &str, value: &Value) -> Value {
    let differs = name == "detail" || name.ends_with("_after_us");
    if differs {
        json!("differs")
    } else {
        shape(value)
    }
}

async fn is_allowed(client: &mut Client, plan: &str, cost: u64) -> bool {
    client
        .should_allow(request("k", plan, Some(cost)))
        .await
        .unwrap()
        .into_inner()
        .allowed
}

/// What docs/concepts.md says of priorities, by its own two configs, on either store.
#[tokio::test]
async fn plans_of_one_count_are_priorities() {
    let redis = Redis::start();
    let configs = page("docs/concepts.md").blocks_of("yaml");
    let configs: Vec<_> = configs
        .into_iter()
        .filter(|config| config.text.contains("interactive:"))
        .collect();
    assert_eq!(configs.len(), 2);
    for config in configs {
        for (store, prefix) in [
            ("memory:".to_owned(), ""),
            (
                redis.url(),
                if config.text.contains("burst") {
                    "b:"
                } else {
                    "a:"
                },
            ),
        ] {
            let prefix = format!("store.key_prefix={prefix}");
            let server = Server::start(
                &config.text,
                &[
                    "--store",
                    &store,
                    "--set",
                    "store.deadline=10s",
                    "--set",
                    &prefix,
                ],
            );
            let mut client = server.client().await;
            assert!(is_allowed(&mut client, "batch", 600).await);
            assert!(
                !is_allowed(&mut client, "batch", 300).await,
                "the lower priority is used up"
            );
            assert!(
                is_allowed(&mut client, "interactive", 350).await,
                "a reserve is left for the higher one"
            );
            assert!(
                !is_allowed(&mut client, "interactive", 300).await,
                "and this is all of it"
            );
        }
    }
}
