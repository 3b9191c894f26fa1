//! Certificates of a day, signed by an authority of the test's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MISSING: &str = "openssl is needed by this test and not installed; tests/run installs it, or: apt-get install openssl";

pub struct Authority {
    pub directory: tempfile::TempDir,
}

impl Authority {
    /// Its certificate is `ca.crt`.
    pub fn new() -> Self {
        let authority = Self { directory: tempfile::tempdir().unwrap() };
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"];
        let own = ["req", "-x509", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.crt"];
        authority.openssl(&[&own[..], &curve].concat());
        authority
    }

    /// Signs `NAME.crt`, with `NAME.key`, for these names, such as `IP:127.0.0.1` or `DNS:redis.internal`; overwrites what is
    /// there.
    pub fn sign(&self, name: &str, names: &str) {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
        let subject = format!("/CN={name}");
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        self.openssl(&[&["req", "-new", "-subj", &subject, "-keyout", &key, "-out", &request][..], &curve].concat());
        std::fs::write(self.path("names.cnf"), format!("subjectAltName={names}\n")).unwrap();
        let by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names.cnf"];
        self.openssl(&[&["x509", "-req", "-in", &request, "-out", &certificate][..], &by].concat());
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }

    fn openssl(&self, arguments: &[&str]) {
        let at: &Path = self.directory.path();
        let mut command = Command::new("openssl");
        let output =
            command.args(arguments).current_dir(at).stdin(Stdio::null()).output().unwrap_or_else(|_| panic!("{MISSING}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
