//! A headless Chromium that is driven as a person would: it opens a page, types, presses keys, and tells what it sees and asked.
//!
//! It speaks the DevTools protocol over a pair of pipes: JSON texts that end in a zero byte. That needs no library for WebSockets.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Guarded;
use super::server::PATIENCE;

pub struct Chromium {
    commands: File,
    messages: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// What the page told so far: its requests, its log and its errors.
    events: Vec<Value>,
    _process: Guarded,
    _folder: tempfile::TempDir,
}

impl Chromium {
    /// Starts a browser with an empty page.
    #[expect(
        clippy::too_many_lines,
        reason = "laid out by rustfmt's defaults and not yet split"
    )]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipes = ["to", "from"].map(|name| folder.path().join(name));
        assert!(
            Command::new("mkfifo")
                .args(&pipes)
                .status()
                .unwrap()
                .success(),
            "mkfifo"
        );
        let mut command = Command::new("sh");
        // Root has to do without the sandbox; the one page is ours. File descriptors 3 and 4 are those of the protocol.
        command
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\""])
            .arg(program())
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--remote-debugging-pipe",
            ]);
        command.arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ));
        command
            .envs([("TO", &pipes[0]), ("FROM", &pipes[1])])
            .env("HOME", folder.path());
        let process = Guarded(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        // Each waits for the other side, in the order of the shell.
        let commands = File::options().write(true).open(&pipes[0]).unwrap();
        let answers = BufReader::new(File::open(&pipes[1]).unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(serde_json::from_slice(&message).unwrap());
            }
        });
        let mut browser = Self {
            commands,
            messages,
            session: None,
            sent: 0,
            events: Vec::new(),
            _process: process,
            _folder: folder,
        };
        let target =
            browser.ask("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.ask(
            "Target.attachToTarget",
            json!({ "targetId": target, "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut command = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        self.commands
            .write_all(format!("{command}\0").as_bytes())
            .unwrap();
        let began = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(began.elapsed());
            let message = self
                .messages
                .recv_timeout(left)
                .unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if message["id"] == self.sent {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    pub fn open(&mut self, url: &str) {
        self.ask("Page.navigate", json!({ "url": url }));
    }

    /// The value of an expression in the page; a promise is waited for.
    pub fn eval(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", parameters);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true, and returns how long that took.
    pub fn wait_for(&mut self, expression: &str) -> Duration {
        let began = Instant::now();
        while self.eval(expression) != true {
            if began.elapsed() > PATIENCE {
                let text = self.eval("document.body.innerText");
                panic!("{expression} does not become true: {text:#}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }

    /// Types into the element that has the focus.
    pub fn type_text(&mut self, text: &str) {
        self.ask("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter` or ` `.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            " " => (32, " "),
            other => panic!("{other}"),
        };
        let down = if text.is_empty() {
            "rawKeyDown"
        } else {
            "keyDown"
        };
        for kind in [down, "keyUp"] {
            let name = if key == " " { "Space" } else { key };
            let parameters = json!({ "type": kind, "key": key, "code": name, "windowsVirtualKeyCode": code, "text": text });
            self.ask("Input.dispatchKeyEvent", parameters);
        }
    }

    /// Shows the page on a screen of this size, in the dark or not.
    pub fn screen(&mut self, width: u32, height: u32, dark: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Writes a picture of the whole page to the folder that `TOLLGATE_SCREENSHOTS` names, if it does, for people to look at.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("TOLLGATE_SCREENSHOTS").map(PathBuf::from) else {
            return;
        };
        let answer = self.ask(
            "Page.captureScreenshot",
            json!({ "format": "png", "captureBeyondViewport": true }),
        );
        let mut decode = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(file(&folder, name))
            .spawn()
            .unwrap();
        decode
            .stdin
            .take()
            .unwrap()
            .write_all(answer["data"].as_str().unwrap().as_bytes())
            .unwrap();
        assert!(decode.wait().unwrap().success());
    }

    /// Everything that the page told so far by this method of the protocol.
    pub fn told(&mut self, method: &str) -> Vec<Value> {
        // All that was told before this answer is read with it.
        self.eval("0");
        let events = self.events.iter().filter(|event| event["method"] == method);
        events.map(|event| event["params"].clone()).collect()
    }
}

fn file(folder: &std::path::Path, name: &str) -> Stdio {
    File::create(folder.join(name).with_extension("png"))
        .unwrap()
        .into()
}

/// Debian's name of the program, and those of others.
fn program() -> &'static str {
    let runs = |program: &&str| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|program| runs(program));
    found.expect("this test needs Chromium; install it, on Debian by: apt-get install chromium")
}
