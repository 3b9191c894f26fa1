//! Gateways that ask the check endpoint before each request, by the recipes in `deploy`: nginx, Caddy and HAProxy.

use std::net::TcpListener;

use crate::support::caddy::Caddy;
use crate::support::envoy::application;
use crate::support::haproxy::Haproxy;
use crate::support::http::{Reply, Scrape, ask, raw};
use crate::support::nginx::{Nginx, recipe};
use crate::support::server::Server;

const PLANS: &str = "listen: { http: '127.0.0.1:0' }
plans:
  two: { limits: [ { name: day, quota: 2, window: 1d } ] }
  none: { blocked: true }
  thousand: { limits: [ { name: day, quota: 1000, window: 1d } ] }
";

/// A server, and where it serves HTTP.
fn serve() -> (Server, String) {
    let server = Server::start(PLANS, &[]);
    let http = server.http();
    (server, http)
}

fn ask_as(gateway: &str, user: &str) -> Reply {
    // What a client says about its own limits must not come back as ours.
    ask(
        gateway,
        "GET",
        "/page",
        &[&format!("X-User: {user}"), "RateLimit: \"day\";r=99"],
    )
}

/// Two of three requests are let through, and the client is told each time where it stands. Without tollgate, all are let
/// through, at once.
fn assert_limits_exactly_and_fails_open(mut server: Server, http: &str, gateway: &str) {
    for remaining in [1, 0] {
        let allowed = ask_as(gateway, "alice");
        assert_eq!(
            (allowed.status, allowed.body.as_str()),
            (200, "ok"),
            "{allowed:?}"
        );
        assert_eq!(
            allowed.header("ratelimit"),
            Some(&*format!("\"day\";r={remaining}"))
        );
        assert_eq!(
            allowed.header("ratelimit-policy"),
            Some("\"day\";q=2;w=86400")
        );
        assert_eq!(allowed.header("retry-after"), None);
    }
    let denied = ask_as(gateway, "alice");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(
        (denied.status, denied.header("ratelimit")),
        (429, Some(&*format!("\"day\";r=0;t={wait}"))),
        "{denied:?}"
    );
    assert_eq!(
        denied.header("ratelimit-policy"),
        Some("\"day\";q=2;w=86400")
    );
    assert!((86_000..=86_400).contains(&wait), "{wait}");
    assert_eq!(ask_as(gateway, "bob").status, 200);
    let decisions = Scrape::of(http).decisions();
    assert_eq!(
        (
            decisions["two allowed store"],
            decisions["two denied store"]
        ),
        (3.0, 1.0)
    );

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    for _ in 0..3 {
        let open = ask_as(gateway, "alice");
        assert_eq!(
            (open.status, open.body.as_str(), open.header("retry-after")),
            (200, "ok", None),
            "{open:?}"
        );
        assert!(
            open.header("ratelimit")
                .is_none_or(|limit| !limit.contains("day")),
            "{open:?}"
        );
    }
}

#[test]
fn haproxy_limits_exactly_and_lets_all_pass_without_tollgate() {
    let (server, http) = serve();
    let haproxy = Haproxy::asking(&http, "two", &application());
    assert_limits_exactly_and_fails_open(server, &http, &haproxy.address);
}

#[test]
fn caddy_limits_exactly_and_lets_all_pass_without_tollgate() {
    let (server, http) = serve();
    let caddy = Caddy::asking(&http, "two", &application());
    assert_limits_exactly_and_fails_open(server, &http, &caddy.address);
}

#[test]
fn caddy_sends_no_request_to_an_application_that_is_gone_twice() {
    let (_server, http) = serve();
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let caddy = Caddy::asking(
        &http,
        "thousand",
        &application.local_addr().unwrap().to_string(),
    );
    let accepted = std::thread::spawn(move || {
        // Takes a request and hangs up, so that Caddy answers 502. The next connection is the test's own.
        (0..).find(|_| {
            let (mut stream, _) = application.accept().unwrap();
            let mut head = [0; 4096];
            let read = std::io::Read::read(&mut stream, &mut head).unwrap();
            head[..read].starts_with(b"GET /end")
        })
    });
    assert_eq!(ask_as(&caddy.address, "alice").status, 502);
    let _ = ask(&caddy.address, "GET", "/end", &["X-User: alice"]);
    assert_eq!(accepted.join().unwrap(), Some(1));
}

#[test]
fn nginx_limits_exactly_and_lets_all_pass_without_tollgate() {
    let (server, http) = serve();
    let proxied = format!("proxy_pass http://{};", application());
    let nginx = Nginx::by_recipe(&recipe(&http, "two"), &[("/", &proxied)], "");
    assert_limits_exactly_and_fails_open(server, &http, &nginx.address);
}

#[test]
fn no_gateway_lets_a_client_smuggle_a_parameter() {
    let (_server, http) = serve();
    let smuggled = "alice&plan=thousand";
    let haproxy = Haproxy::asking(&http, "two", &application());
    let found: Vec<u16> = (0..3)
        .map(|_| ask_as(&haproxy.address, smuggled).status)
        .collect();
    assert_eq!(found, [200, 200, 429], "it is a key like any other");
    let caddy = Caddy::asking(&http, "two", &application());
    assert_eq!(
        ask_as(&caddy.address, smuggled).status,
        429,
        "it is the same key"
    );
    // nginx does not escape it. The plan is given twice then, which is an error.
    let nginx = Nginx::asking(&http, "two");
    assert_eq!(ask_as(&nginx.address, smuggled).status, 500);
    assert!(
        !Scrape::of(&http)
            .decisions()
            .keys()
            .any(|labels| labels.starts_with("thousand"))
    );
}

#[test]
fn nginx_forwards_a_request_only_when_it_is_allowed() {
    let (_server, http) = serve();
    let nginx = Nginx::asking(&http, "two");
    let ask_as = |user: &str| {
        ask(
            &nginx.address,
            "GET",
            "/page",
            &[&format!("X-User: {user}")],
        )
    };
    for remaining in [1, 0] {
        let reply = ask_as("alice");
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "the application")
        );
        assert_eq!(
            reply.header("ratelimit"),
            Some(&*format!("\"day\";r={remaining}"))
        );
    }
    let denied = ask_as("alice");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(ask_as("bob").status, 200);
    let decisions = Scrape::of(&http).decisions();
    assert_eq!(
        (
            decisions["two allowed store"],
            decisions["two denied store"]
        ),
        (3.0, 1.0)
    );
}

fn decisions(http: &str) -> f64 {
    Scrape::of(http).decisions().values().sum()
}

#[test]
fn nginx_charges_a_request_once_wherever_it_sends_it_on_to() {
    let (_server, http) = serve();
    let folder = tempfile::tempdir().unwrap();
    for page in ["page.html", "folder/index.html", "spa/index.html"] {
        let path = folder.path().join(page);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, page).unwrap();
    }
    // nginx's workers may run as another user.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = format!("root {};", folder.path().display());
    let proxied = format!("proxy_pass http://{};", application());
    let files = format!("{root} index index.html;");
    let spa = format!("{files} try_files $uri $uri/ /spa/index.html;");
    let locations = [
        ("/", files.as_str()),
        ("/spa/", &spa),
        ("/application/", &proxied),
    ];
    let targets = [
        "/page.html",
        "/folder/",
        "/spa/",
        "/spa/no/such/page",
        "/application/",
    ];
    let recipe = recipe(&http, "thousand");
    let nginx = Nginx::by_recipe(&recipe, &locations, "");
    let charged: Vec<f64> = targets
        .iter()
        .map(|target| decisions_of_three_requests(&nginx, &http, target))
        .collect();
    assert_eq!(charged, [3.0; 5]);
    // The answer has the header fields, also after an internal redirect of nginx.
    for target in targets {
        let reply = ask(&nginx.address, "GET", target, &["X-User: alice"]);
        assert!(
            reply
                .header("ratelimit")
                .is_some_and(|limit| limit.starts_with("\"day\";r=")),
            "{target}: {reply:?}"
        );
    }
    // Without `$charged`, an internal redirect of nginx is charged again.
    let forgetful = Nginx::by_recipe(
        &recipe.replace("if ($charged) { return 204; }", ""),
        &locations,
        "",
    );
    let charged: Vec<f64> = targets
        .iter()
        .map(|target| decisions_of_three_requests(&forgetful, &http, target))
        .collect();
    assert!(
        charged[0] == 3.0 && charged[1] == 6.0 && charged[3] == 6.0 && charged[4] == 3.0,
        "{charged:?}"
    );
}

/// Makes three requests for this target. Returns how many decisions they caused.
fn decisions_of_three_requests(nginx: &Nginx, http: &str, target: &str) -> f64 {
    let before = decisions(http);
    (0..3).for_each(|_| {
        assert_eq!(
            ask(&nginx.address, "GET", target, &["X-User: bob"]).status,
            200
        )
    });
    decisions(http) - before
}

/// Heads of 1 KiB to 1 MiB, each of lines of at most `line` bytes.
fn heads(line: usize) -> impl Iterator<Item = (usize, String)> {
    let sizes = [
        1, 4, 7, 8, 12, 15, 16, 20, 28, 30, 48, 64, 100, 256, 512, 900, 1_024,
    ]
    .map(|kib| kib << 10);
    sizes.into_iter().map(move |size: usize| {
        let count = size.div_ceil(line);
        (
            size,
            (0..count)
                .map(|index| {
                    format!(
                        "Cookie: c{index}={}\r\n",
                        "x".repeat((size / count).saturating_sub(16))
                    )
                })
                .collect(),
        )
    })
}

/// Asks a gateway with large heads, with bodies, and two requests at a time. Under a plan that denies, nothing passes. Under one
/// that allows, heads pass that the gateway itself takes: in lines of up to `line` bytes and up to `takes` bytes in all.
fn assert_no_head_matters(denying: &str, allowing: &str, line: usize, takes: usize) {
    let status = |reply: &str| {
        reply
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0)
    };
    // Caddy serves the hosts of its addresses only.
    let ask = |gateway: &str, request: &str| {
        raw(
            gateway,
            &request.replace("Host: h\r\n", &format!("Host: {gateway}\r\n")),
        )
    };
    let mut passed = Vec::new();
    for lines in [line, 1 << 20] {
        for (size, fields) in heads(lines) {
            for request in [
                format!(
                    "GET /page HTTP/1.1\r\nHost: h\r\nX-User: u\r\nConnection: close\r\n{fields}\r\n"
                ),
                format!(
                    "HEAD /page HTTP/1.1\r\nHost: h\r\nX-User: u\r\nConnection: close\r\n{fields}\r\n"
                ),
                format!(
                    "POST /page HTTP/1.1\r\nHost: h\r\nX-User: u\r\nConnection: close\r\nContent-Length: {size}\r\n{fields}\r\n{}",
                    "x".repeat(size)
                ),
                format!("GET /page HTTP/1.1\r\nHost: h\r\nX-User: u\r\n{fields}\r\n").repeat(2)
                    + "GET /page HTTP/1.1\r\nHost: h\r\nX-User: u\r\nConnection: close\r\n\r\n",
            ] {
                let text = ask(denying, &request);
                let what = format!(
                    "{} with {size} bytes in lines of {lines}: {text}",
                    &request[..4]
                );
                assert!(
                    !text.contains(" 200 ") && !text.contains("\r\n\r\nok"),
                    "{what}"
                );
                if lines == line && size <= takes {
                    assert_eq!(status(&text), 429, "{what}");
                    let text = ask(allowing, &request);
                    passed.push(status(&text));
                    assert_eq!(status(&text), 200, "{what}, allowed: {text}");
                }
            }
        }
    }
    assert!(passed.len() >= 12, "{passed:?}");
}

#[test]
fn no_head_passes_caddy_or_locks_its_sender_out() {
    let (_server, http) = serve();
    let [denying, allowing] =
        ["none", "thousand"].map(|plan| Caddy::asking(&http, plan, &application()));
    assert_no_head_matters(&denying.address, &allowing.address, 900 << 10, 900 << 10);
}

#[test]
fn no_head_passes_nginx_or_locks_its_sender_out() {
    let (_server, http) = serve();
    let proxied = format!("proxy_pass http://{};", application());
    let [denying, allowing] = ["none", "thousand"]
        .map(|plan| Nginx::by_recipe(&recipe(&http, plan), &[("/", &proxied)], ""));
    // Four buffers of 8 KiB.
    assert_no_head_matters(&denying.address, &allowing.address, 7 << 10, 28 << 10);
}

#[test]
fn no_head_passes_haproxy_or_locks_its_sender_out() {
    let (_server, http) = serve();
    let [denying, allowing] =
        ["none", "thousand"].map(|plan| Haproxy::asking(&http, plan, &application()));
    // A buffer of 16 KiB, of which 1 KiB is for what it adds.
    assert_no_head_matters(&denying.address, &allowing.address, 14 << 10, 14 << 10);
}
