//! The image that deploy/image makes, run as a container would be: as its user, by its entry point, in a root of its own. Needs
//! root, and fails without. `tests/run --no-root` leaves these out and says so.
//!
//! The static program of a release takes long to build. So the image of this test has the program of the tests, with the
//! libraries that it is linked with.

mod from_dockerfile;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Guarded;
use crate::support::manifests::root;
use crate::support::redis::free_port;
use crate::support::server::{Client, PATIENCE, channel_to, decide};

/// A container of an image, in a storage of its own.
struct Container {
    folder: tempfile::TempDir,
    name: String,
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; tests/run installs what it needs"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes the image of a folder.
fn make(folder: &Path, archive: &Path) {
    run(Command::new(root().join("deploy/image")).args([folder, archive]));
}

/// A folder with the program of the tests, without symbols.
fn program() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("strip")
        .arg(env!("CARGO_BIN_EXE_tollgate"))
        .arg("-o")
        .arg(folder.path().join("tollgate")));
    folder
}

/// Puts into a root what the system's loader needs to run that program.
fn add_libraries(root: &Path) {
    let linked = run(Command::new("ldd").arg(env!("CARGO_BIN_EXE_tollgate")));
    for library in linked
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let place = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(library, place).unwrap();
    }
}

impl Container {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            name: String::new(),
        }
    }

    /// Begins with an image, or with "scratch".
    fn begin(&mut self, image: &str) {
        self.name = run(self.buildah("from").arg(image));
    }

    fn of(archive: &Path) -> Self {
        let mut container = Self::new();
        container.begin(&format!("oci-archive:{}", archive.to_str().unwrap()));
        container
    }

    fn buildah(&self, command: &str) -> Command {
        let storage = self.folder.path().join("root");
        let state = self.folder.path().join("run");
        let mut buildah = Command::new("buildah");
        buildah
            .arg("--root")
            .arg(storage)
            .arg("--runroot")
            .arg(state)
            .args(["--storage-driver", "vfs", command]);
        buildah
    }

    /// The image's config, as this format has it: "OCIv1" or "Docker".
    fn inspect(&self, format: &str) -> Value {
        let inspected: Value =
            serde_json::from_str(&run(self.buildah("inspect").arg(&self.name))).unwrap();
        inspected[format].clone()
    }

    fn files(&self) -> PathBuf {
        run(self.buildah("mount").arg(&self.name)).into()
    }

    /// Starts the program as this user, on a root that cannot be written to. buildah makes no such root.
    async fn run_read_only(&self, user: &str) -> Running {
        let port = free_port();
        let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec chroot --userspec=\"$2\" \"$1\" /tollgate --listen \"$3\"";
        let mut chroot = Command::new("unshare");
        chroot
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                script,
                "sh",
            ])
            .arg(self.files());
        chroot.args([user, &format!("127.0.0.1:{port}")]);
        let running = Running::wait(chroot.stdout(Stdio::null()).spawn().unwrap(), port).await;
        let mounts = running.proc("mountinfo");
        assert!(
            mounts.lines().any(|line| line.contains(" / ro,")),
            "{mounts}"
        );
        running
    }
}

/// The server in a container: its process, and what was started to get it.
struct Running {
    child: Guarded,
    process: u32,
    port: u16,
}

impl Running {
    /// Waits until the process that this child becomes, or starts, serves at `port`.
    async fn wait(child: Child, port: u16) -> Self {
        let started = Instant::now();
        let mut child = Guarded(child);
        loop {
            let ended = child.0.try_wait().unwrap();
            assert!(
                ended.is_none() && started.elapsed() < PATIENCE,
                "the server did not start: {ended:?}"
            );
            let serves = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            if let Some(process) = serves.then(|| process_of(port)).flatten() {
                return Self {
                    child,
                    process,
                    port,
                };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A file of the process below /proc.
    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.process)).unwrap()
    }

    /// Asks over gRPC, looks at whom the process belongs to, and stops it by SIGTERM.
    async fn assert_serves_and_stops(mut self) {
        let mut client = Client::new(channel_to(&format!("127.0.0.1:{}", self.port)).await);
        assert!(decide(&mut client, "alice", "free").await.allowed);
        drop(client);
        let status = self.proc("status");
        let ids = |name: &str| {
            status
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            (&*ids("Uid:"), &*ids("Gid:")),
            (
                "Uid:\t65532\t65532\t65532\t65532",
                "Gid:\t65532\t65532\t65532\t65532"
            )
        );
        assert!(ids("CapEff:").ends_with("\t0000000000000000"), "{status}");
        run(Command::new("sh").args(["-c", &format!("kill -TERM {}", self.process)]));
        let started = Instant::now();
        while self.child.0.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "SIGTERM did not end it");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(self.child.0.wait().unwrap().success());
    }
}

/// The process of an image's program that was told to listen at this port.
fn process_of(port: u16) -> Option<u32> {
    let told = format!("127.0.0.1:{port}");
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_it = |process: &u32| {
        let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        words.next() == Some(b"/tollgate") && words.any(|word| word == told.as_bytes())
    };
    processes.into_iter().find(is_it)
}

#[tokio::test]
async fn the_image_runs_as_nobody_on_a_read_only_root_and_stops_by_sigterm() {
    let program = program();
    let folder = tempfile::tempdir().unwrap();
    add_libraries(program.path());
    let archive = folder.path().join("image.tar");
    make(program.path(), &archive);
    let container = Container::of(&archive);
    let config = container.inspect("OCIv1");
    let of = |name: &str| config["config"][name].clone();
    assert_eq!(
        (of("User"), of("Entrypoint")),
        ("65532:65532".into(), Value::from(vec!["/tollgate"]))
    );
    let labels = of("Labels");
    for (label, value) in [
        ("title", "tollgate"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("licenses", "Apache-2.0"),
    ] {
        assert_eq!(
            labels[format!("org.opencontainers.image.{label}")],
            value,
            "{labels}"
        );
    }
    assert_eq!(
        labels["org.opencontainers.image.revision"]
            .as_str()
            .unwrap()
            .len(),
        40,
        "{labels}"
    );
    let port = free_port();
    let mut buildah = container.buildah("run");
    buildah.args([
        "--isolation",
        "chroot",
        &container.name,
        "--",
        "/tollgate",
        "--listen",
        &format!("127.0.0.1:{port}"),
    ]);
    Running::wait(buildah.stdout(Stdio::null()).spawn().unwrap(), port)
        .await
        .assert_serves_and_stops()
        .await;
    container
        .run_read_only(of("User").as_str().unwrap())
        .await
        .assert_serves_and_stops()
        .await;
}

#[test]
fn the_same_folder_makes_the_same_image() {
    let content = tempfile::tempdir().unwrap();
    let archives = tempfile::tempdir().unwrap();
    let archive = |name: &str| {
        // With another time than before.
        std::fs::write(content.path().join("tollgate"), "a program").unwrap();
        let archive = archives.path().join(name);
        make(content.path(), &archive);
        std::fs::read(archive).unwrap()
    };
    assert!(archive("first") == archive("second"));
}
