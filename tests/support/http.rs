//! A plain HTTP client with one connection for each request, and a strict parser of the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::server::PATIENCE;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// Asserts that it is an error of this status in the form of RFC 9457 that says this sentence. `asked` is what was sent.
    pub fn assert_is_problem(&self, status: u16, sentence: &str, asked: &(impl Debug + ?Sized)) {
        assert_eq!(
            (self.status, self.header("content-type")),
            (status, Some("application/problem+json")),
            "{asked:?}"
        );
        assert!(self.body.contains(sentence), "{asked:?}: {self:?}");
    }

    /// Names, in lower case, and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self
            .headers
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {self:?}");
        value
    }
}

pub fn get(address: &str, target: &str) -> Reply {
    ask(address, "GET", target, &[])
}

pub fn ask(address: &str, method: &str, target: &str, headers: &[&str]) -> Reply {
    send(address, method, target, headers, "")
}

pub fn post(address: &str, target: &str, media: &str, body: &str) -> Reply {
    let headers = [
        format!("Content-Type: {media}"),
        format!("Content-Length: {}", body.len()),
    ];
    send(address, "POST", target, &[&headers[0], &headers[1]], body)
}

/// Sends a request with a body, which the headers must describe.
pub fn send(address: &str, method: &str, target: &str, headers: &[&str], body: &str) -> Reply {
    let stream = TcpStream::connect(address).unwrap();
    let mut request =
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    headers
        .iter()
        .for_each(|header| request.push_str(&format!("{header}\r\n")));
    exchange(stream, (request + "\r\n" + body).as_bytes())
}

/// Sends these bytes as a request, and reads the answer until the server closes the connection.
pub fn ask_raw(address: &str, request: impl AsRef<[u8]>) -> Reply {
    exchange(TcpStream::connect(address).unwrap(), request.as_ref())
}

/// What a server answers until it closes. It may refuse a request before all of it is sent.
pub fn raw(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let request = request.to_owned();
    let sent = std::thread::spawn(move || drop(sending.write_all(request.as_bytes())));
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    drop(stream);
    sent.join().unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn exchange(mut stream: TcpStream, request: &[u8]) -> Reply {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that has refused the head already may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer to {}: {text:?}", request.escape_ascii()));
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let header = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .unwrap()
    };
    Reply {
        status,
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    }
}

/// The values of `/metrics` by sample, which is name and labels as written.
pub struct Scrape {
    samples: BTreeMap<String, f64>,
    pub text: String,
}

impl Scrape {
    pub fn of(address: &str) -> Self {
        let reply = get(address, "/metrics");
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        Self::parse(reply.body)
    }

    /// Panics at whatever the format does not allow, or good practice: families that are whole, each begun by a help and a
    /// type, no sample twice, counters that are called so, buckets that add up.
    pub fn parse(text: String) -> Self {
        let mut samples = BTreeMap::new();
        let mut types: BTreeMap<String, String> = BTreeMap::new();
        let mut helped = String::new();
        let mut family = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(words.len() > 10 && words.ends_with('.'), "{line}");
                helped = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped, "a type without its help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                let is_ours = name.starts_with("tollgate_") || name.starts_with("process_");
                assert!(
                    is_ours && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{line}"
                );
                assert!(
                    types.insert(name.to_owned(), kind.to_owned()).is_none(),
                    "{name} begins twice"
                );
                family = name.to_owned();
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let name = sample.split('{').next().unwrap();
                let suffix = name
                    .strip_prefix(family.as_str())
                    .unwrap_or_else(|| panic!("{line} is not of {family}"));
                let histogram = types[&family] == "histogram";
                assert!(
                    if histogram {
                        ["_bucket", "_sum", "_count"].contains(&suffix)
                    } else {
                        suffix.is_empty()
                    },
                    "{line}"
                );
                assert!(
                    samples
                        .insert(sample.to_owned(), value.parse().unwrap())
                        .is_none(),
                    "{sample} is there twice"
                );
            }
        }
        let scrape = Self { samples, text };
        types
            .iter()
            .filter(|(_, kind)| *kind == "histogram")
            .for_each(|(name, _)| scrape.check_histogram(name));
        scrape
    }

    fn check_histogram(&self, name: &str) {
        let begin = format!("{name}_bucket{{le=\"");
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(&begin)?.split_once("\"} ").unwrap();
            Some((bound.parse::<f64>().unwrap(), count.parse::<f64>().unwrap()))
        };
        let buckets: Vec<(f64, f64)> = self.text.lines().filter_map(bucket).collect();
        assert!(
            buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{buckets:?}"
        );
        assert_eq!(buckets[0].0, 0.000_05);
        let last = buckets.last().unwrap();
        assert_eq!(
            (last.0, last.1),
            (f64::INFINITY, self.value(&format!("{name}_count"))),
            "{name}"
        );
    }

    /// The value of a sample, which must exist.
    pub fn value(&self, sample: &str) -> f64 {
        *self
            .samples
            .get(sample)
            .unwrap_or_else(|| panic!("no {sample} in {}", self.text))
    }

    /// Decisions by plan, outcome and decider that are not zero, as `plan outcome decider`.
    pub fn decisions(&self) -> BTreeMap<String, f64> {
        let decision = |(sample, count): (&String, &f64)| {
            let labels = sample
                .strip_prefix("tollgate_decisions_total{")?
                .strip_suffix('}')?;
            let words: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
            (*count != 0.0).then(|| (words.join(" "), *count))
        };
        self.samples.iter().filter_map(decision).collect()
    }
}
