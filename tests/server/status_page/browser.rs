//! The status page in a browser: what a person sees, hears and can type.

use serde_json::Value;

use super::{LEAST_CONTRAST, PLANS, TOKEN, figures, open, with_token};
use crate::support::chromium::Chromium;
use crate::support::http::ask;
use crate::support::server::{Server, decide};

/// A key and a plan's name that an attacker would like to see run.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

/// Fills in the form by the keyboard alone, from the start of the page.
fn explain_by_keyboard(browser: &mut Chromium, key: &str, plan: &str) {
    browser.eval(
        "document.getElementById('explain').reset(); document.activeElement.blur(); scrollTo(0, 0)",
    );
    browser.eval("document.querySelector('.skip').focus()");
    browser.press("Enter");
    browser.wait_for("document.activeElement.id === 'explain-title'");
    for (id, text) in [("key", key), ("plan", plan)] {
        browser.press("Tab");
        browser.wait_for(&format!("document.activeElement.id === '{id}'"));
        browser.type_text(text);
    }
    browser.press("Enter");
}

/// What a browser complained of: scripts and styles that the policy refused, and errors.
fn complaints(browser: &mut Chromium) -> Vec<Value> {
    let mut complaints = browser.told("Runtime.exceptionThrown");
    complaints.extend(browser.told("Log.entryAdded"));
    complaints
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_the_denied_key_within_seconds_explains_it_and_asks_no_other_host() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let http = server.http();
    let mut browser = open(&http);
    for _ in 0..5 {
        decide(&mut client, "alice", "login").await;
    }
    let hash = "document.querySelector('#denials tbody .mono span')?.textContent";
    let took = browser.wait_for(&format!("/^[0-9a-f]{{16}}$/.test({hash})"));
    let hash = browser.eval(hash);
    assert!(
        !browser
            .eval("document.body.innerText")
            .as_str()
            .unwrap()
            .contains("alice"),
        "the key is in clear"
    );
    explain_by_keyboard(&mut browser, "alice", "login");
    browser
        .wait_for("document.getElementById('sentence').textContent.includes('is denied by limit minute: 2 of 2 units are used')");
    browser.wait_for("document.querySelector('#limits tbody td')?.textContent.includes('2 of 2')");
    browser.wait_for("document.getElementById('rate').textContent !== '–'");
    for (width, dark, name) in [
        (1200, false, "desktop"),
        (1200, true, "dark"),
        (360, false, "phone"),
        (360, true, "phone-dark"),
    ] {
        browser.screen(width, 800, dark);
        browser.picture(name);
        let wide = browser.eval("document.documentElement.scrollWidth");
        assert!(
            wide.as_u64().unwrap() <= u64::from(width),
            "{name} is {wide} px wide"
        );
        let least = browser.eval(LEAST_CONTRAST);
        assert!(least[0].as_f64().unwrap() >= 4.5, "{name}: {least}");
    }
    let urls: Vec<String> = browser
        .told("Network.requestWillBeSent")
        .iter()
        .map(|told| told["request"]["url"].as_str().unwrap().to_owned())
        .collect();
    let own = urls
        .iter()
        .filter(|url| url.starts_with(&format!("http://{http}/status")))
        .count();
    let others: Vec<_> = urls
        .iter()
        .filter(|url| !url.contains(&http) && !url.starts_with("data:"))
        .collect();
    println!(
        "the hash {hash} is shown {took:?} after the denial; {own} requests to {http}, {} to other hosts",
        others.len()
    );
    assert!(own >= 3 && others.is_empty(), "{urls:?}");
    assert_eq!(complaints(&mut browser), Vec::<Value>::new());
}

/// The tree that screen readers are given.
#[test]
fn a_screen_reader_finds_landmarks_headings_tables_and_names() {
    let server = Server::start(PLANS, &[]);
    let mut browser = open(&server.http());
    let tree = browser.ask("Accessibility.getFullAXTree", serde_json::json!({}));
    let mut found = Vec::new();
    for node in tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["ignored"] != true)
    {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let name = node["name"]["value"].as_str().unwrap_or_default();
        found.push((role.to_owned(), name.to_owned()));
        let needs_name =
            ["table", "textbox", "combobox", "button", "region", "link"].contains(&role);
        assert!(
            !needs_name || !name.is_empty(),
            "{role} without a name: {node}"
        );
    }
    let has = |role: &str, name: &str| {
        found
            .iter()
            .any(|(other, given)| other == role && given.starts_with(name))
    };
    for (role, name) in [
        ("banner", ""),
        ("main", ""),
        ("contentinfo", ""),
        ("heading", "tollgate"),
        ("heading", "Explain a key"),
        ("region", "Plans"),
        ("table", "Keys by denials"),
        ("table", "Decisions a second by outcome"),
        ("columnheader", "Denied"),
        ("rowheader", "login"),
        ("textbox", "Key"),
        ("button", "Explain"),
        ("button", "Pause updates"),
    ] {
        assert!(has(role, name), "no {role} {name}: {found:?}");
    }
    // What is told by itself must change seldom.
    let live = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].map((node) => node.textContent).join()";
    let before = browser.eval(live);
    let figures = "performance.getEntriesByType('resource').length";
    let asked = browser.eval(figures).as_u64().unwrap();
    browser.wait_for(&format!("{figures} >= {}", asked + 2));
    assert_eq!(browser.eval(live), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_clear_with_the_token_alone_and_are_shown_as_text() {
    let (_folder, server) = with_token();
    let mut client = server.client().await;
    let http = server.http();
    for key in ["alice", HOSTILE] {
        for _ in 0..3 {
            decide(&mut client, key, "login").await;
        }
    }
    let with = |token: &str| {
        ask(
            &http,
            "GET",
            "/status/data",
            &[&format!("Authorization: {token}")],
        )
    };
    for wrong in ["Bearer wrong", "Basic eDp5", ""] {
        let refused = with(wrong);
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some("Bearer")),
            "{wrong}"
        );
    }
    let mut browser = open(&http);
    browser.wait_for("!document.getElementById('clear').hidden");
    assert!(!figures(&http).to_string().contains("alice"));
    browser.eval("document.querySelector('#clear summary').focus()");
    browser.press("Enter");
    for (token, text) in [
        ("not the token at all", "The token was refused"),
        (TOKEN, "alice"),
    ] {
        browser.eval("document.getElementById('token').focus()");
        browser.type_text(token);
        browser.press("Enter");
        browser.wait_for(&format!("document.body.innerText.includes({text:?})"));
    }
    assert!(with(&format!("Bearer {TOKEN}")).body.contains("alice"));
    browser
        .wait_for("document.getElementById('denials').innerText.includes('<img src=x onerror=')");
    explain_by_keyboard(&mut browser, HOSTILE, "login");
    browser.wait_for("document.getElementById('sentence').textContent.includes('is denied')");
    explain_by_keyboard(&mut browser, "alice", HOSTILE);
    browser.wait_for("document.getElementById('sentence').textContent.includes('<img src=x')");
    assert_eq!(
        browser.eval("document.images.length + ' ' + document.title"),
        "0 tollgate status"
    );
    browser.picture("clear");
    browser.eval("document.getElementById('logout').click()");
    browser.wait_for("!document.getElementById('denials').innerText.includes('alice')");
}

#[test]
fn the_page_says_when_the_server_stops_answering() {
    let server = Server::start(PLANS, &[]);
    let mut browser = open(&server.http());
    drop(server);
    browser.wait_for(
        "document.getElementById('alert').textContent.includes('has not answered since')",
    );
    assert_eq!(
        browser.eval("document.title"),
        "No answer – tollgate status"
    );
    assert!(browser.eval(LEAST_CONTRAST)[0].as_f64().unwrap() >= 4.5);
    browser.picture("no-answer");
}
