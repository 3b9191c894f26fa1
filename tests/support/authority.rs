//! A folder with the certificate of a test's own authority, and the certificates that it signs.

use std::path::PathBuf;

use super::tls;

pub struct Authority {
    directory: tempfile::TempDir,
    signer: tls::Authority,
}

impl Authority {
    /// Its certificate is `ca.crt`.
    pub fn new() -> Self {
        let authority = Self {
            directory: tempfile::tempdir().unwrap(),
            signer: tls::Authority::new(),
        };
        std::fs::write(authority.path("ca.crt"), &authority.signer.pem).unwrap();
        authority
    }

    /// Signs `NAME.crt`, with `NAME.key`, for this host name or address; overwrites what is there.
    pub fn sign(&self, name: &str, host: &str) {
        let pair = self.signer.issue(&[host], 2100);
        std::fs::write(self.path(&format!("{name}.crt")), pair.cert).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), pair.key).unwrap();
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }
}
