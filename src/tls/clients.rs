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

use super::names::{Borne, ClientName, any_matches};

/// Lets in whoever `roots` signed and, unless `names` is empty, bears one of these. Errors: a sentence about the roots.
pub(super) fn verifier(
    roots: Vec<CertificateDer<'static>>,
    names: &[ClientName],
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
    names: Vec<ClientName>,
}

impl ClientCertVerifier for Named {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        if bears_one_of(&self.names, end_entity) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
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

/// Whether a certificate bears one of these DNS names and URIs; none does that cannot be read. Its common name is no name:
/// nobody checks those.
fn bears_one_of(listed: &[ClientName], certificate: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = Certificate::from_der(certificate) else { return false };
    let Ok(Some((_, SubjectAltName(names)))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return false;
    };
    let borne: Vec<Borne<'_>> = names.iter().filter_map(borne).collect();
    any_matches(listed, &borne)
}

fn borne(name: &GeneralName) -> Option<Borne<'_>> {
    match name {
        GeneralName::DnsName(name) => Some(Borne::Dns(name.as_str())),
        GeneralName::UniformResourceIdentifier(name) => Some(Borne::Uri(name.as_str())),
        _ => None,
    }
}
