//! Certificates: PEM in, a configuration for rustls out.

use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

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
        let chain = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("the certificate is not PEM: {error}"))?;
        if chain.is_empty() {
            return Err("the certificate file holds no certificate".into());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| format!("the key is not PEM: {error}"))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.client_certificate {
            ClientCertificate::None => builder.with_no_client_auth(),
            required => {
                builder.with_client_cert_verifier(self.verifier(required == ClientCertificate::Required)?)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| format!("certificate and key do not fit: {error}"))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn verifier(&self, required: bool) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&self.client_ca) {
            let authority = authority.map_err(|error| format!("the client CA is not PEM: {error}"))?;
            roots.add(authority).map_err(|error| format!("the client CA cannot be used: {error}"))?;
        }
        if roots.is_empty() {
            return Err("client certificates are asked for, but the client CA holds no certificate".into());
        }
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
        let builder = if required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|error| format!("the client CA cannot be used: {error}"))
    }
}
