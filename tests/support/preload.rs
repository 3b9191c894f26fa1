//! Processes with a clock of a test's own, by libraries that are preloaded: a time of day that the test sets while they run
//! (`shift.c`), and one that does not count when a busy machine lets others run (`processor_clock.c`).

use std::os::unix::fs::FileExt;
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
    ///
    /// In one write over the number before. A file that is emptied first is read as no shift until it is written, however short.
    pub fn by_ms(&self, ms: i64) {
        let number = (ms * 1_000).to_ne_bytes();
        self.file.as_file().write_all_at(&number, 0).unwrap();
    }

    /// The environment variables that a process needs.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", SHIFT.path()),
            ("CLOCK_SHIFT", self.file.path().to_str().unwrap().to_owned()),
        ]
    }
}

/// The program and its arguments, so that the times it measures are of the processor.
pub fn by_processor_time(program: &str) -> [String; 3] {
    let library = format!("LD_PRELOAD={}", PROCESSOR_CLOCK.path());
    ["env".to_owned(), library, program.to_owned()]
}

static SHIFT: Library = Library::new(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/support/shift.c"
));
static PROCESSOR_CLOCK: Library = Library::new(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/support/processor_clock.c"
));

/// A library that is compiled when a test first needs it.
struct Library {
    source: &'static str,
    built: OnceLock<(tempfile::TempDir, String)>,
}

impl Library {
    const fn new(source: &'static str) -> Self {
        let built = OnceLock::new();
        Self { source, built }
    }

    fn path(&self) -> String {
        self.built.get_or_init(|| self.build()).1.clone()
    }

    fn build(&self) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("library.so");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&path)
            .arg(self.source);
        let built = compiler
            .status()
            .expect("cc is needed by this test, as by cargo: apt-get install gcc");
        assert!(built.success(), "cc cannot build {}", self.source);
        let path = path.to_str().unwrap().to_owned();
        (directory, path)
    }
}
