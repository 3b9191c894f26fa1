//! A network for one test, which can drop all packets of a connection silently, in one direction or in both. An island is a
//! network namespace that a virtual cable joins to this one. It needs root and iproute2.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of islands of this process, so that each has a name and a subnet of its own.
static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Island {
    pub name: String,
    /// Addresses on it, which can be cut off one by one.
    pub addresses: [String; 2],
}

impl Island {
    pub fn make() -> Self {
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let process = std::process::id();
        assert!(number < 32, "a subnet has room for 32 islands");
        let name = format!("tg{process}n{number}");
        let near = format!("tn{process}n{number}");
        let far = format!("tf{process}n{number}");
        // The range that is set aside for tests of networks (RFC 2544); of its 2^17 addresses, eight.
        let address = |host| format!("198.18.{}.{}", process % 256, number * 8 + host);
        let addresses = [address(2), address(3)];
        must(ip(&["netns", "add", &name]));
        let island = Self { name, addresses };
        must(ip(&[
            "link",
            "add",
            &near,
            "type",
            "veth",
            "peer",
            "name",
            &far,
            "netns",
            &island.name,
        ]));
        must(ip(&[
            "address",
            "add",
            &format!("{}/29", address(1)),
            "dev",
            &near,
        ]));
        must(ip(&["link", "set", &near, "up"]));
        for address in &island.addresses {
            must(island.ip(&["address", "add", &format!("{address}/29"), "dev", &far]));
        }
        must(island.ip(&["link", "set", &far, "up"]));
        // By default the table of local addresses comes first, so packets to them would pass whatever other rules say. Move it
        // behind those rules.
        must(island.ip(&["rule", "add", "pref", "100", "lookup", "local"]));
        must(island.ip(&["rule", "del", "pref", "0"]));
        island
    }

    /// Drops all packets to and from this address of the island.
    pub fn cut(&self, address: &str) {
        self.rule("add", "to", address);
        self.silence(address);
    }

    /// Drops all packets from this address, and lets those to it pass.
    pub fn silence(&self, address: &str) {
        self.rule("add", "from", address);
    }

    /// Undoes [`Self::cut`].
    pub fn heal(&self, address: &str) {
        self.rule("del", "to", address);
        self.unsilence(address);
    }

    /// Undoes [`Self::silence`].
    pub fn unsilence(&self, address: &str) {
        self.rule("del", "from", address);
    }

    fn rule(&self, verb: &str, direction: &str, address: &str) {
        must(self.ip(&["rule", verb, "pref", "1", direction, address, "blackhole"]));
    }

    fn ip(&self, arguments: &[&str]) -> Output {
        ip(&[&["-n", &self.name], arguments].concat())
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        // Removes the virtual cable too, once no process runs in the namespace.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Output {
    let missing = "ip is needed by this test and not installed; tests/run installs it, or: apt-get install iproute2";
    Command::new("ip")
        .args(arguments)
        .output()
        .unwrap_or_else(|_| panic!("{missing}"))
}

fn must(output: Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "this test needs root, to make a network of its own; tests/run --no-root leaves it out: {said}"
    );
}
