//! The status page: its figures, what it refuses, and what a person sees of it in a browser.

mod browser;

use serde_json::Value;

use crate::support::chromium::Chromium;
use crate::support::http::{Reply, ask, get, post};
use crate::support::server::{PATIENCE, Server, decide};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }
status: { page: true, keys: clear }
plans:
  login: { limits: [ { name: minute, quota: 2, window: 1d, algorithm: sliding_log } ] }
  bucket: { limits: [ { name: rate, quota: 60, window: 1m, algorithm: token_bucket, burst: 5 } ], shadow: true }
  free: { unlimited: true }
";

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Most bytes of the figures, whatever the config holds.
const FIGURES_BYTES_MAX: usize = 256 << 10;

fn figures(http: &str) -> Value {
    let reply = get(http, "/status/data");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(
        reply.body.len() <= FIGURES_BYTES_MAX,
        "{} bytes",
        reply.body.len()
    );
    serde_json::from_str(&reply.body).unwrap()
}

fn explain(http: &str, body: &str) -> (u16, Value) {
    let reply = post(http, "/status/explain", "application/json", body);
    (reply.status, serde_json::from_str(&reply.body).unwrap())
}

/// A folder with a file of the token, and a server of `PLANS` that takes it.
fn with_token() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let server = Server::start(
        PLANS,
        &[
            "--set",
            &format!("listen.admin_token_file={}", file.display()),
        ],
    );
    (folder, server)
}

#[test]
fn there_is_no_page_unless_it_is_asked_for() {
    let server = Server::start(&PLANS.replace("page: true", "page: false"), &[]);
    let http = server.http();
    for path in ["/status", "/status/data", "/status/explain"] {
        assert_eq!(
            (
                get(&http, path).status,
                ask(&http, "POST", path, &["Content-Length: 0"]).status
            ),
            (404, 404),
            "{path}"
        );
    }
    assert!(!get(&http, "/").body.contains("/status"));
    let on = Server::start(PLANS, &["--set", "listen.metrics=127.0.0.1:0"]);
    assert!(get(&on.http(), "/").body.contains("/status"));
    let metrics = crate::support::server::field(&on.log(), "metrics");
    assert_eq!(
        (
            get(&on.http(), "/status").status,
            get(&metrics, "/status").status
        ),
        (200, 404)
    );
}

#[test]
fn the_page_is_for_reading_alone_and_no_other_site_may_use_it() {
    let server = Server::start(PLANS, &[]);
    let http = server.http();
    let allow = |reply: &Reply| reply.header("allow").map(str::to_owned);
    for (path, media) in [
        ("/status", "text/html; charset=utf-8"),
        ("/status/data", "application/json"),
    ] {
        let page = get(&http, path);
        let head = ask(&http, "HEAD", path, &[]);
        assert_eq!(
            (page.status, page.header("content-type")),
            (200, Some(media))
        );
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        for reply in [&page, &head] {
            assert_eq!(reply.header("cache-control"), Some("no-store"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(
                reply.header("cross-origin-resource-policy"),
                Some("same-origin")
            );
        }
        let put = ask(&http, "PUT", path, &["Content-Length: 0"]);
        assert_eq!(
            (put.status, allow(&put).as_deref()),
            (405, Some("GET,HEAD"))
        );
    }
    let policy = get(&http, "/status")
        .header("content-security-policy")
        .unwrap()
        .to_owned();
    for rule in [
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    let explain = get(&http, "/status/explain");
    assert_eq!(
        (explain.status, allow(&explain).as_deref()),
        (405, Some("POST"))
    );
}

#[tokio::test]
async fn the_figures_tell_plans_decisions_store_and_changes() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let http = server.http();
    for _ in 0..3 {
        decide(&mut client, "alice", "login").await;
    }
    let began = std::time::Instant::now();
    let mut first = figures(&http);
    while first["span_ms"].is_null() {
        assert!(began.elapsed() < PATIENCE, "{first}");
        first = figures(&http);
    }
    let plans = &first["plans"];
    assert_eq!(
        (&plans["total"], &plans["others"]),
        (&Value::from(3), &Value::from(0))
    );
    let login = plans["shown"]
        .as_array()
        .unwrap()
        .iter()
        .find(|plan| plan["name"] == "login")
        .unwrap();
    assert_eq!(login["rule"], "2 in 1d (sliding_log)");
    assert_eq!(
        login["counts"]["total"],
        serde_json::json!({ "allowed": 2, "denied": 1, "shadow_denied": 0, "by_policy": 0 })
    );
    assert_eq!(
        (&first["store"]["embedded"], &first["store"]["url"]),
        (&Value::from(true), &Value::from("memory:"))
    );
    assert_eq!(
        (&first["replicas"], &first["config_changes"][0]["outcome"]),
        (&Value::from(1), &Value::from("started"))
    );
    let overrides = &first["overrides"];
    assert_eq!(
        (&overrides["count"], &overrides["version"]),
        (&Value::from(0), &Value::from(0))
    );
    assert!(
        overrides["age_s"].as_u64().is_some_and(|age| age < 60),
        "{overrides}"
    );
    assert_eq!(first["latency"]["decisions"]["count"], 3);
}

#[tokio::test]
async fn the_figures_and_the_page_tell_how_a_candidate_differs() {
    let limits = |quota| format!("limits: [ {{ quota: {quota}, window: 1d }} ]");
    let config = format!(
        "listen: {{ grpc: '127.0.0.1:0', http: '127.0.0.1:0' }}\nstatus: {{ page: true }}\nplans:\n  free: {{ {}, candidate: less }}\n  less: {{ {} }}\n",
        limits(10),
        limits(3)
    );
    let server = Server::start(&config, &[]);
    let mut client = server.client().await;
    let http = server.http();
    for _ in 0..8 {
        assert!(
            decide(&mut client, "alice", "free").await.allowed,
            "a candidate denies nobody"
        );
    }
    let figures = figures(&http);
    let free = figures["plans"]["shown"]
        .as_array()
        .unwrap()
        .iter()
        .find(|plan| plan["name"] == "free")
        .unwrap();
    assert_eq!(
        free["candidate"],
        serde_json::json!({ "name": "less", "denies_more": 5, "denies_less": 0 })
    );
    let mut browser = open(&http);
    browser.wait_for("document.body.innerText.includes('candidate less: 5 more denied, 0 fewer')");
}

#[test]
fn the_figures_stay_small_with_ten_thousand_plans() {
    let limit = |number| {
        format!(
            "{{ name: {}-{number}, quota: 1000000000000, window: {number}d }}",
            "n".repeat(60)
        )
    };
    let limits: Vec<String> = (1..=8).map(limit).collect();
    let plans = (0..10_000).map(|number| {
        // Aliases are expanded within bounds, so most plans are short.
        let rule = if number < 200 {
            format!("limits: [ {} ]", limits.join(", "))
        } else {
            "unlimited: true".to_owned()
        };
        format!("  {}{number}: {{ {rule} }}\n", "p".repeat(50))
    });
    let config = format!(
        "listen: {{ http: '127.0.0.1:0' }}\nstatus: {{ page: true }}\nplans:\n{}",
        plans.collect::<String>()
    );
    let server = Server::start(&config, &[]);
    let figures = figures(&server.http());
    assert_eq!(
        (&figures["plans"]["total"], &figures["plans"]["others"]),
        (&Value::from(10_000), &Value::from(9_950))
    );
    assert_eq!(figures["plans"]["shown"].as_array().unwrap().len(), 50);
}

#[tokio::test]
async fn a_key_is_explained_without_a_charge_and_only_to_this_page() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let http = server.http();
    for _ in 0..3 {
        decide(&mut client, "alice", "login").await;
    }
    for _ in 0..2 {
        let (status, answer) = explain(&http, r#"{"key":"alice","plan":"login"}"#);
        assert_eq!(
            (status, &answer["outcome"], &answer["limits"][0]["used"]),
            (200, &Value::from("denied"), &Value::from(2))
        );
        assert!(
            answer["sentence"]
                .as_str()
                .unwrap()
                .contains("is denied by limit minute: 2 of 2 units are used"),
            "{answer}"
        );
    }
    let of_shard = r#"{"key":"alice","plan":"login","shard":"acme"}"#;
    let (status, answer) = explain(&http, of_shard);
    assert_eq!(
        (
            status,
            &answer["outcome"],
            &answer["limits"][0]["used"],
            &answer["overridden"]
        ),
        (
            200,
            &Value::from("allowed"),
            &Value::from(0),
            &Value::from(false)
        )
    );
    assert_bad_bodies_are_refused(&http);
}

fn assert_bad_bodies_are_refused(http: &str) {
    let long = format!(r#"{{"key":"{}","plan":"login"}}"#, "k".repeat(513));
    for (body, status) in [
        (r#"{"key":"alice","plan":"nowhere"}"#, 404),
        (r#"{"key":"","plan":"login"}"#, 400),
        (r#"{"key":"alice","plan":""}"#, 400),
        (r#"{"key":"alice"}"#, 400),
        (r#"{"key":"alice","plan":"login","cost":1}"#, 400),
        (r#"["alice","login"]"#, 400),
        ("", 400),
        (long.as_str(), 400),
        (&" ".repeat(5_000), 413),
    ] {
        let (found, answer) = explain(http, body);
        assert!(
            found == status && answer["error"].is_string(),
            "{body}: {found} {answer}"
        );
    }
    let form = post(
        http,
        "/status/explain",
        "text/plain",
        r#"{"key":"alice","plan":"login"}"#,
    );
    assert_eq!(form.status, 415);
}

#[tokio::test]
async fn explanations_are_few_in_a_second() {
    let server = Server::start(PLANS, &[]);
    let http = server.http();
    let refused = (0..10_000).find_map(|_| {
        let reply = post(
            &http,
            "/status/explain",
            "application/json",
            r#"{"key":"alice","plan":"login"}"#,
        );
        (reply.status != 200).then_some(reply)
    });
    let refused = refused.expect("all were given");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("1"))
    );
}

/// The least contrast of a text with what is behind it, and that text. Backgrounds here are opaque or not there.
pub(super) const LEAST_CONTRAST: &str = "(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parse(color).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => { const found = parse(getComputedStyle(node).backgroundColor); return found[3] === 0 ? behind(node.parentElement) : getComputedStyle(node).backgroundColor; };
  let least = [99, ''];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || ['SCRIPT', 'STYLE'].includes(node.tagName)) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < least[0]) least = [contrast, node.textContent];
  }
  return least;
})()";

/// The page of a server, on a screen of a desk.
fn open(http: &str) -> Chromium {
    let mut browser = Chromium::start();
    browser.screen(1200, 900, false);
    browser.open(&format!("http://{http}/status"));
    browser.wait_for("document.getElementById('state')?.textContent === 'is serving'");
    browser
}

#[tokio::test]
async fn nothing_is_hidden_in_a_key_that_is_shown_in_clear() {
    let (_folder, server) = with_token();
    let mut client = server.client().await;
    let http = server.http();
    for _ in 0..3 {
        decide(&mut client, "\u{202e}ecila\u{200b}", "login").await;
    }
    let began = std::time::Instant::now();
    let shown = loop {
        let shown = ask(
            &http,
            "GET",
            "/status/data",
            &[&format!("Authorization: Bearer {TOKEN}")],
        )
        .body;
        if shown.contains("ecila") {
            break shown;
        }
        assert!(began.elapsed() < PATIENCE, "{shown}");
    };
    assert!(
        shown.contains(r"\\u{202e}ecila\\u{200b}") && !shown.contains('\u{202e}'),
        "{shown}"
    );
}

#[test]
fn reloads_and_refused_configs_are_told_with_their_time() {
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::io::Write::write_all(&mut file, PLANS.as_bytes()).unwrap();
    let server = Server::start_on(file.path(), &[]);
    let http = server.http();
    for (text, outcome, words) in [
        (
            PLANS.replace("unlimited", "blocked"),
            "reloaded",
            "3 plans: 0 added, 0 removed, 1 edited",
        ),
        (
            PLANS.replace("quota: 60", "quota: none"),
            "refused",
            "plans.bucket.limits[0].quota",
        ),
    ] {
        std::fs::write(file.path(), text).unwrap();
        server.signal("HUP");
        let began = std::time::Instant::now();
        let change = loop {
            let change = figures(&http)["config_changes"][0].clone();
            if change["outcome"] == outcome {
                break change;
            }
            assert!(began.elapsed() < PATIENCE, "{change}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert!(change["text"].as_str().unwrap().contains(words), "{change}");
        assert!(
            change["at_ms"].as_u64()
                >= figures(&http)["config_changes"]
                    .as_array()
                    .unwrap()
                    .last()
                    .unwrap()["at_ms"]
                    .as_u64()
        );
    }
}
