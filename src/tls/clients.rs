//! Whom mutual TLS lets in: callers whose certificate a given authority signed and, where names are listed, bears one of
//! them. Whoever is not let in fails the handshake, so that no call of theirs is ever read.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Lets in whoever `roots` signed and, unless `names` is empty, bears one of these. Errors: a sentence about the roots.
pub(super) fn verifier(
    roots: Vec<CertificateDer<'static>>,
    names: &[String],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root).map_err(|error| format!("listen.tls.client_ca_file cannot be used: {error}"))?;
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
    let signed = signed.map_err(|error| format!("listen.tls.client_ca_file cannot be used: {error}"))?;
    Ok(if names.is_empty() { signed } else { Arc::new(Named { signed, names: names.to_vec() }) })
}

/// A verifier that looks at names too.
#[derive(Debug)]
struct Named {
    signed: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl ClientCertVerifier for Named {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        let named = names_of(end_entity).iter().any(|name| self.names.iter().any(|listed| matches(listed, name)));
        if named { Ok(verified) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// DNS names and URIs of a certificate; none of one that cannot be read. Its common name is none: nobody checks those.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some((_, SubjectAltName(names)))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let name = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::UniformResourceIdentifier(name) => Some(name.as_str().to_owned()),
        _ => None,
    };
    names.into_iter().filter_map(name).collect()
}

/// URIs go letter by letter, and may begin as one that ends in `*` does; DNS names whatever their case.
fn matches(listed: &str, name: &str) -> bool {
    match (listed.contains("://"), listed.strip_suffix('*')) {
        (true, Some(begin)) => name.starts_with(begin),
        (true, None) => name == listed,
        (false, _) => name.eq_ignore_ascii_case(listed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_matches_as_a_whole_or_by_its_beginning_and_a_dns_name_whatever_its_case() {
        for (listed, name) in [
            ("spiffe://house/shop", "spiffe://house/shop"),
            ("spiffe://house/*", "spiffe://house/shop/till"),
            ("shop.house", "Shop.House"),
        ] {
            assert!(matches(listed, name), "{listed} {name}");
        }
        for (listed, name) in [
            ("spiffe://house/shop", "spiffe://house/shop/till"),
            ("spiffe://house/*", "spiffe://other/shop"),
            ("spiffe://house/shop", "spiffe://House/shop"),
            ("shop.house", "till.shop.house"),
            ("*", "shop.house"),
        ] {
            assert!(!matches(listed, name), "{listed} {name}");
        }
    }
}
