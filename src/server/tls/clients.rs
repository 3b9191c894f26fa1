//! Mutual TLS. It accepts callers whose certificate is signed by a given authority and, if names are configured, has one of
//! them. Any other caller fails the handshake, so none of its calls is read.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::names::{CertificateName, ClientName, any_matches};

/// Accepts certificates that `roots` signed and that have one of `names`, unless that is empty. Errors: a sentence about the
/// roots.
pub(super) fn verifier(
    roots: Vec<CertificateDer<'static>>,
    names: &[ClientName],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store
            .add(root)
            .map_err(|error| format!("listen.tls.client_ca_file cannot be used: {error}"))?;
    }
    let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
    let signed =
        signed.map_err(|error| format!("listen.tls.client_ca_file cannot be used: {error}"))?;
    Ok(if names.is_empty() {
        signed
    } else {
        Arc::new(NameVerifier {
            signed,
            names: names.to_vec(),
        })
    })
}

/// A verifier that also checks names.
#[derive(Debug)]
struct NameVerifier {
    signed: Arc<dyn ClientCertVerifier>,
    names: Vec<ClientName>,
}

impl ClientCertVerifier for NameVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .signed
            .verify_client_cert(end_entity, intermediates, now)?;
        if has_one_of(&self.names, end_entity) {
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
        self.signed
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// Whether a certificate has one of these DNS names or URIs. A certificate that cannot be parsed has none. The common name is
/// ignored, since authorities do not check it.
fn has_one_of(listed: &[ClientName], certificate: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = Certificate::from_der(certificate) else {
        return false;
    };
    let Ok(Some((_, SubjectAltName(names)))) = certificate
        .tbs_certificate()
        .get_extension::<SubjectAltName>()
    else {
        return false;
    };
    let certificate_names: Vec<CertificateName<'_>> =
        names.iter().filter_map(certificate_name).collect();
    any_matches(listed, &certificate_names)
}

fn certificate_name(name: &GeneralName) -> Option<CertificateName<'_>> {
    match name {
        GeneralName::DnsName(name) => Some(CertificateName::Dns(name.as_str())),
        GeneralName::UniformResourceIdentifier(name) => Some(CertificateName::Uri(name.as_str())),
        _ => None,
    }
}
