//! Loading and reloading the TLS files, without a connection.

use super::*;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

/// A folder with a certificate and its key.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn issue(&self, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.not_after = date_time_ymd(year, 1, 1);
        self.write(
            "cert",
            parameters.self_signed(&key).unwrap().pem().as_bytes(),
        );
        self.write("key", key.serialize_pem().as_bytes());
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    fn settings(&self) -> TlsSettings {
        let path = |name| self.0.path().join(name);
        TlsSettings {
            cert_file: path("cert"),
            key_file: path("key"),
            client_ca_file: None,
            client_names: Vec::new(),
        }
    }

    fn load(&self) -> (Arc<Tls>, TlsWatch) {
        Tls::load(self.settings()).unwrap()
    }
}

/// Start of the years 2100 and 2101, in seconds since 1970.
const Y2100: u64 = 4_102_444_800;
const Y2101: u64 = 4_133_980_800;

#[test]
fn a_new_pair_is_used_when_two_polls_find_the_same_content() {
    let folder = Folder::new();
    folder.issue(2100);
    let (tls, mut watch) = folder.load();
    watch.poll();
    assert_eq!((tls.status().not_after, tls.status().taken_up), (Y2100, 0));
    folder.issue(2101);
    watch.poll();
    assert_eq!(tls.status().not_after, Y2100);
    watch.poll();
    watch.poll();
    assert_eq!(
        (
            tls.status().not_after,
            tls.status().taken_up,
            tls.status().refused
        ),
        (Y2101, 1, 0)
    );
}

#[test]
fn a_bad_pair_leaves_the_old_one_in_use_and_is_rejected_once() {
    let folder = Folder::new();
    folder.issue(2100);
    let (tls, mut watch) = folder.load();
    let mut refused = 0;
    let mut refuse = |change: &dyn Fn()| {
        change();
        (0..4).for_each(|_| watch.poll());
        refused += 1;
        let status = tls.status();
        assert_eq!(
            (
                status.not_after,
                status.taken_up,
                status.refused,
                status.last_refused
            ),
            (Y2100, 0, refused, true)
        );
    };
    refuse(&|| {
        folder.write(
            "key",
            KeyPair::generate().unwrap().serialize_pem().as_bytes(),
        )
    });
    refuse(&|| folder.write("cert", b"-----BEGIN CERTIFICATE-----\nMII"));
    refuse(&|| folder.write("cert", b""));
    refuse(&|| std::fs::remove_file(folder.0.path().join("key")).unwrap());
    refuse(&|| folder.issue(2000));
    folder.issue(2101);
    (0..2).for_each(|_| watch.poll());
    let status = tls.status();
    assert_eq!(
        (status.not_after, status.taken_up, status.last_refused),
        (Y2101, 1, false)
    );
}

#[test]
fn a_reload_on_request_uses_the_new_files_at_once() {
    let folder = Folder::new();
    folder.issue(2100);
    let (tls, mut watch) = folder.load();
    folder.issue(2101);
    watch.load();
    assert_eq!(tls.status().not_after, Y2101);
}

/// A running process would keep the old pair, as the test of bad pairs shows; a start has no other.
#[test]
fn a_start_with_a_certificate_that_has_expired_serves_it() {
    let folder = Folder::new();
    folder.issue(2000);
    let (tls, _watch) = folder.load();
    assert!(tls.pair().has_expired());
    assert!(!tls.status().last_refused);
}

#[test]
fn an_error_names_its_setting_and_not_its_path() {
    let folder = Folder::new();
    let said = |settings: TlsSettings| {
        let said = Tls::load(settings).map(|_| ()).unwrap_err();
        assert!(!said.contains(folder.0.path().to_str().unwrap()), "{said}");
        said
    };
    assert!(
        said(folder.settings()).starts_with("listen.tls.cert_file cannot be read: No such file")
    );
    folder.issue(2100);
    let mut settings = folder.settings();
    settings.key_file = settings.cert_file.clone();
    assert!(said(settings).starts_with("listen.tls.key_file has no private key"));
    let mut settings = folder.settings();
    settings.client_ca_file = Some(settings.key_file.clone());
    assert!(said(settings).starts_with("listen.tls.client_ca_file has no certificate"));
    folder.write(
        "key",
        KeyPair::generate().unwrap().serialize_pem().as_bytes(),
    );
    assert_eq!(
        said(folder.settings()),
        "listen.tls.key_file is not the key of cert_file's certificate"
    );
}
