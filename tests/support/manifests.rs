//! Runs tests/manifests, which renders and checks manifests as helm, kustomize, Docker Compose and Kubernetes do.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A program that tests/run builds.
pub fn tool(name: &str) -> PathBuf {
    let path = root().join("target/tools/bin").join(name);
    assert!(
        path.is_file(),
        "{name} is needed by this test: run tests/run, which puts it into target/tools/bin"
    );
    path
}

/// What it prints, given this input. Errors: what it says against the input.
pub fn manifests(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(tool("manifests"));
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A command that takes no input may end before it is written.
    let _ = writing.join();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

const CHART: &str = "deploy/helm/tollgate";

/// The chart with these values, in YAML, as a release called `tollgate`.
pub fn render(values: &str) -> Result<String, String> {
    render_as("tollgate", values)
}

/// The same as a release of this name.
pub fn render_as(release: &str, values: &str) -> Result<String, String> {
    manifests(&["render", release, CHART], values)
}

/// Each document of a text.
pub fn documents(text: &str) -> Vec<Value> {
    serde_json::from_str(&manifests(&["json"], text).unwrap()).unwrap()
}

/// The one document of this kind.
pub fn of_kind(text: &str, kind: &str) -> Value {
    only(text, kind, |document| document["kind"] == kind)
}

fn only(text: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found: Vec<Value> = documents(text).into_iter().filter(wanted).collect();
    assert_eq!(found.len(), 1, "{what}: {text}");
    found[0].clone()
}

/// Whether Helm makes this before it changes anything else.
pub fn is_hook(document: &Value) -> bool {
    document["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

/// The config of tollgate that a ConfigMap holds.
pub fn config_of(text: &str) -> String {
    let config = only(text, "a config", |document| {
        document["data"]["tollgate.yaml"].is_string() && !is_hook(document)
    });
    config["data"]["tollgate.yaml"].as_str().unwrap().to_owned()
}
