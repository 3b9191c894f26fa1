//! The calls of grpcurl that documents show, made by grpcurl itself, which finds the contract by reflection.

use std::process::Command;

use serde_json::Value;
use tollgate::config::EXAMPLE;

use super::markdown::{commands, page, pages};
use crate::support::manifests::tool;
use crate::support::server::{Server, decide};

const ADDRESS: &str = "127.0.0.1:50051";
const ADMIN_SOCKET: &str = "/run/tollgate/admin.sock";

/// A server with the example plans and an admin socket, and the addresses of documents beside its own.
struct Asked {
    server: Server,
    admin: String,
    _folder: tempfile::TempDir,
}

impl Asked {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admin = folder.path().join("admin.sock").display().to_string();
        let set = format!("listen.admin=unix:{admin}");
        Self {
            server: Server::start(EXAMPLE, &["--set", &set]),
            admin,
            _folder: folder,
        }
    }

    /// What grpcurl prints when it runs these words of a document.
    fn by(&self, words: &[String]) -> Value {
        let here = words[1..].iter().map(|word| {
            word.replace(ADDRESS, &self.server.address)
                .replace(ADMIN_SOCKET, &self.admin)
        });
        let output = Command::new(tool("grpcurl"))
            .args(["-max-time", "60"])
            .args(here)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// The commands of grpcurl of a document, each with what it printed.
fn shown_in(page: &super::markdown::Page) -> Vec<(Vec<String>, String)> {
    let blocks = page.blocks_of("console");
    let mut shown: Vec<_> = blocks.iter().flat_map(commands).collect();
    shown.retain(|(words, _)| words[0] == "grpcurl");
    shown
}

#[test]
fn every_call_of_the_documents_is_answered_as_shown() {
    let asked = Asked::start();
    let mut made = 0;
    // README.md is the first. What it charged is reset by a call of docs/admin.md.
    for page in pages() {
        for (words, shown) in shown_in(&page) {
            let answer = asked.by(&words);
            if !shown.is_empty() {
                let shown: Value = serde_json::from_str(&shown).unwrap();
                assert_eq!(answer, shown, "{}: {words:?}", page.path);
            }
            made += 1;
        }
    }
    assert!(made >= 6, "only {made} calls were found");
}

fn seconds(value: &Value) -> f64 {
    let text = value.as_str().unwrap().strip_suffix('s').unwrap();
    text.parse().unwrap()
}

#[tokio::test]
async fn the_denial_of_the_readme_is_what_the_next_call_is_answered() {
    let readme = page("README.md");
    let (words, _) = shown_in(&readme).remove(0);
    let shown: Value = serde_json::from_str(&readme.blocks_of("json")[0].text).unwrap();
    let asked = Asked::start();
    assert_eq!(asked.by(&words)["allowed"], true);
    let mut client = asked.server.client().await;
    for _ in 0..99 {
        assert!(decide(&mut client, "alice", "free").await.allowed);
    }
    let denied = asked.by(&words);
    let fields =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(fields(&denied), fields(&shown));
    for (name, value) in denied.as_object().unwrap() {
        if ["retryAfter", "resetAfter", "moreAfter"].contains(&name.as_str()) {
            assert!(
                seconds(value) <= 60.0 && seconds(&shown[name]) <= 60.0,
                "{name}: {value}"
            );
        } else {
            assert_eq!(*value, shown[name], "{name}");
        }
    }
}
