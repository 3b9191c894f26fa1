//! Checks of the section `listen`: admin and TLS.

use super::*;

/// Wrong addresses of admin, each with a part of its error.
const ADMIN_ERRORS: &[(&str, &str)] = &[
    (
        "admin: '127.0.0.1:1'",
        "is 127.0.0.1:1, where every process of this host can connect; name listen.admin_token_file",
    ),
    (
        "admin: '127.0.0.1:1', admin_token_file: ''",
        "name listen.admin_token_file",
    ),
    (
        "admin: '0.0.0.0:1', admin_token_file: /t",
        "is 0.0.0.0:1; admin listens on loopback",
    ),
    (
        "admin: '[::]:1', admin_token_file: /t",
        "is [::]:1; admin listens on loopback",
    ),
    (
        "admin: 'localhost.example.com:1', admin_token_file: /t",
        "admin listens on loopback",
    ),
    (
        "admin: 'nowhere'",
        "is wrong: \"nowhere\" is not an address",
    ),
];

#[test]
fn admin_is_off_unless_it_has_an_address_that_other_hosts_and_users_cannot_use() {
    let admin = |yaml: &str| load(&format!("{PLANS}listen: {{ {yaml} }}")).unwrap();
    assert_eq!(
        (admin("").listen.admin, admin("admin: ''").listen.admin),
        (None, None)
    );
    for address in [
        "127.0.0.1:50052",
        "[::1]:0",
        "localhost:1",
        "unix:/run/tollgate/admin.sock",
    ] {
        let config = admin(&format!(
            "admin: '{address}', admin_token_file: /run/secrets/admin"
        ));
        assert_eq!(
            config
                .listen
                .admin
                .map(|address| address.to_string())
                .as_deref(),
            Some(address)
        );
        assert_eq!(
            config.listen.admin_token_file,
            Some("/run/secrets/admin".into())
        );
    }
    assert_eq!(
        admin("admin: 'unix:/run/tollgate/admin.sock'")
            .listen
            .admin_token_file,
        None
    );
    for (yaml, wrong) in ADMIN_ERRORS.iter().copied() {
        let found = errors(&format!("{PLANS}listen: {{ {yaml} }}"));
        assert!(
            found.len() == 1 && found[0].starts_with("listen.admin ") && found[0].contains(wrong),
            "{yaml}: {found:?}"
        );
    }
    assert_eq!(
        errors(&format!("{PLANS}listen: {{ admin: 'example.com:1' }}")).len(),
        2
    );
}

/// Wrong fields of TLS, each with the starts of its errors.
const TLS_ERRORS: &[(&str, &[&str])] = &[
    ("cert_file: c", &["listen.tls.key_file is missing"]),
    (
        "",
        &[
            "listen.tls.cert_file is missing",
            "listen.tls.key_file is missing",
        ],
    ),
    (
        "cert_file: [], key_file: k",
        &["listen.tls.cert_file is a list"],
    ),
    (
        "cert_file: '', key_file: k",
        &["listen.tls.cert_file is empty"],
    ),
    (
        "cert_file: c, key_file: k, client_names: [a]",
        &["listen.tls.client_names is of no use without client_ca_file"],
    ),
    (
        "cert_file: c, key_file: k, client_ca_file: a, client_names: ['*.a']",
        &["listen.tls.client_names[0] is wrong; "],
    ),
    (
        "cert_file: c, key_file: k, client_ca_file: a, client_names: [a, 'spiffe://h*', 'spiffe://h/../*']",
        &[
            "listen.tls.client_names[1] is wrong; a *",
            "listen.tls.client_names[2] is wrong; ",
        ],
    ),
    (
        "cert_file: c, key_file: k, ca_file: a",
        &["listen.tls.ca_file is not a field"],
    ),
];

#[test]
fn tls_has_a_certificate_pair_and_names_of_callers() {
    let of = |fields: &str| format!("{PLANS}listen: {{ tls: {{ {fields} }} }}");
    let tls = load(&of(
        "cert_file: c, key_file: k, client_ca_file: a, client_names: [shop, 'spiffe://h/*']",
    ))
    .unwrap()
    .listen
    .tls;
    let names: Vec<String> = tls
        .unwrap()
        .client_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["shop", "spiffe://h/*"]);
    for (fields, expected) in TLS_ERRORS {
        let found = errors(&of(fields));
        assert!(
            found.len() == expected.len()
                && found.iter().zip(*expected).all(|(f, e)| f.starts_with(e)),
            "{fields}: {found:?}"
        );
    }
    let both = errors(&format!(
        "{PLANS}listen: {{ plaintext: true, tls: {{ cert_file: c, key_file: k }} }}"
    ));
    assert!(
        both.len() == 1 && both[0].starts_with("listen.plaintext is true, and listen.tls is set"),
        "{both:?}"
    );
}
