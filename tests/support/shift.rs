//! Processes whose time of day a test sets while they run, by a library that is preloaded (`shift.c`).

use std::process::Command;
use std::sync::OnceLock;

/// The offset of the clock of the processes that were started with it.
pub struct Shift {
    file: tempfile::NamedTempFile,
}

impl Shift {
    pub fn none() -> Self {
        let shift = Self {
            file: tempfile::NamedTempFile::new().unwrap(),
        };
        shift.by_ms(0);
        shift
    }

    /// Sets the clock so many milliseconds ahead, or behind if negative.
    pub fn by_ms(&self, ms: i64) {
        std::fs::write(self.file.path(), (ms * 1_000).to_ne_bytes()).unwrap();
    }

    /// The environment variables that a process needs.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", library().to_owned()),
            ("CLOCK_SHIFT", self.file.path().to_str().unwrap().to_owned()),
        ]
    }
}

fn library() -> &'static str {
    static BUILT: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shift.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/shift.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&path)
            .arg(source);
        let built = compiler
            .status()
            .expect("cc is needed by this test, as by cargo: apt-get install gcc");
        assert!(built.success(), "cc cannot build {source}");
        let path = path.to_str().unwrap().to_owned();
        (directory, path)
    });
    path
}
