//! A certificate that signs itself, for a server that was given none.

use rcgen::{BasicConstraints, CertificateParams, DnType, Error, IsCa, KeyPair};
use std::time::{Duration, SystemTime};

/// Clocks of clients may be behind by so much.
const BEHIND: Duration = Duration::from_secs(86_400);
const DAY: Duration = Duration::from_secs(86_400);

/// Make a certificate for these names (host names and addresses) and its key, P-256, as PEM texts.
///
/// It may sign: who trusts it trusts itself only, and clients that insist on an authority take it for one.
pub fn self_signed(common_name: &str, names: Vec<String>, days: u16) -> Result<(String, String), String> {
    make(common_name, names, days).map_err(|error| format!("no certificate could be made: {error}"))
}

fn make(common_name: &str, names: Vec<String>, days: u16) -> Result<(String, String), Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = SystemTime::now();
    params.not_before = (now - BEHIND).into();
    params.not_after = (now + DAY * u32::from(days)).into();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::self_signed;
    use crate::tls::{ClientCertificate, TlsSource};

    #[test]
    fn a_certificate_can_be_served() -> Result<(), String> {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let (chain, key) = self_signed("test", names, 30)?;
        let source = TlsSource {
            certificate: chain.into_bytes(),
            key: key.into_bytes(),
            client_ca: Vec::new(),
            client_certificate: ClientCertificate::None,
        };
        source.build().map(drop)
    }

    #[test]
    fn a_name_that_is_none_is_an_error() {
        assert!(self_signed("test", vec!["\u{e9}".to_owned()], 30).is_err());
    }
}
