//! Certificates: PEM in, a configuration for rustls out.

use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// They are not asked.
    None,
    /// They may; one that does not verify ends the connection.
    Optional,
    /// They must.
    Required,
}

/// What TLS is made of.
#[derive(Clone)]
pub struct TlsSource {
    /// Certificate chain, PEM.
    pub certificate: Vec<u8>,
    /// Private key, PEM.
    pub key: Vec<u8>,
    /// The authorities that sign client certificates, PEM.
    pub client_ca: Vec<u8>,
    /// Whether clients are asked for one.
    pub client_certificate: ClientCertificate,
}

impl TlsSource {
    /// Check the parts and make the configuration: TLS 1.2 and 1.3, HTTP/2 by ALPN.
    pub fn build(&self) -> Result<Arc<ServerConfig>, String> {
        let chain = certificates("certificate file", &self.certificate)?;
        let key = private_key(&self.key)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.client_certificate {
            ClientCertificate::None => builder.with_no_client_auth(),
            required => {
                builder.with_client_cert_verifier(self.verifier(required == ClientCertificate::Required)?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                String::from("certificate and key do not fit: the key is another's")
            }
            error => format!("the certificate cannot be used: {error}"),
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn verifier(&self, required: bool) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for authority in certificates("client CA file", &self.client_ca)? {
            roots.add(authority).map_err(|error| format!("the client CA cannot be used: {error}"))?;
        }
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
        let builder = if required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|error| format!("the client CA cannot be used: {error}"))
    }
}

const KEY_WANTED: &str = "wanted is one in PEM without a passphrase (BEGIN PRIVATE KEY, BEGIN RSA PRIVATE KEY \
                          or BEGIN EC PRIVATE KEY): RSA of 2048 to 8192 bits, ECDSA on P-256 or P-384, or Ed25519";
const CERTIFICATE_WANTED: &str = "wanted is one or more in PEM (BEGIN CERTIFICATE)";

/// The certificates of a PEM text, at least one.
fn certificates(part: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("the {part} cannot be read: {}; {CERTIFICATE_WANTED}", said(&error)))?;
    if found.is_empty() {
        return Err(format!("the {part} holds no certificate ({}); {CERTIFICATE_WANTED}", blocks(text)));
    }
    Ok(found)
}

/// The private key of a PEM text, one that can sign.
fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            format!("the key file holds no private key ({}); {KEY_WANTED}", blocks(text))
        }
        error => format!("the key file cannot be read: {}; {KEY_WANTED}", said(&error)),
    })?;
    if ring::sign::any_supported_type(&key).is_err() {
        return Err(format!("the key file is damaged, or of a kind that cannot be used here; {KEY_WANTED}"));
    }
    Ok(key)
}

/// What is wrong with a PEM text.
fn said(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the line END {} is missing", String::from_utf8_lossy(end_marker))
        }
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is broken".into(),
        pem::Error::Base64Decode(_) => "what stands after a BEGIN line is not base64".into(),
        error => error.to_string(),
    }
}

/// What a text holds instead of what is wanted.
fn blocks(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let labels: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
        .take(5)
        .collect();
    match (labels.as_slice(), text.trim()) {
        ([], "") => "it is empty".into(),
        ([], _) => "it is not PEM".into(),
        (labels, _) => format!("it holds {}", labels.join(", ")),
    }
}
