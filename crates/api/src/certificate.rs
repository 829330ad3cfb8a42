//! The few facts we read from X.509 certificates in PEM.

use std::net::IpAddr;

use jiff::Timestamp;
use podwright_core::certificates::{CertificateFacts, CertificateNames};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The number of certificates in a PEM text; `None` if one of them is malformed.
pub(crate) fn count(pem: &[u8]) -> Option<usize> {
    let parts = Pem::iter_from_buffer(pem).collect::<Result<Vec<_>, _>>().ok()?;
    let certificates = parts.iter().filter(|part| part.label == "CERTIFICATE");
    certificates.map(|part| part.parse_x509().ok()).collect::<Option<Vec<_>>>().map(|all| all.len())
}

/// The end of validity of the first certificate of a PEM text; `None` if there is none or it is malformed.
pub(crate) fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let parts = Pem::iter_from_buffer(pem).filter_map(Result::ok);
    let first = parts.into_iter().find(|part| part.label == "CERTIFICATE")?;
    Some(clamped(first.parse_x509().ok()?.validity().not_after.timestamp()))
}

/// Facts of a certificate in DER; `None`: it is malformed.
pub(crate) fn facts(der: &[u8]) -> Option<CertificateFacts> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let common_name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
    let organizations = subject.iter_organization().filter_map(|name| name.as_str().ok());
    let mut names = CertificateNames {
        common_name: common_name.to_owned(),
        organizations: organizations.map(str::to_owned).collect(),
        ..CertificateNames::default()
    };
    let alternative = certificate.subject_alternative_name().ok()?;
    for name in alternative.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                names.dns_names.insert((*name).to_owned());
            }
            GeneralName::IPAddress(octets) => names.ip_addresses.extend(address(octets)),
            _ => {}
        }
    }
    let validity = certificate.validity();
    Some(CertificateFacts {
        names,
        not_before: clamped(validity.not_before.timestamp()),
        not_after: clamped(validity.not_after.timestamp()),
        serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

/// A certificate without end has the time 9999-12-31T23:59:59Z (RFC 5280, 4.1.2.5), which is later than the last timestamp.
fn clamped(second: i64) -> Timestamp {
    let bound = if second > 0 { Timestamp::MAX } else { Timestamp::MIN };
    Timestamp::from_second(second).unwrap_or(bound)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(octets).ok().map(IpAddr::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_without_end_is_read() {
        let mut params = rcgen::CertificateParams::new(vec!["node".into()]).unwrap();
        let last_day = rcgen::date_time_ymd(9999, 12, 31);
        params.not_after = last_day;
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(not_after(certificate.pem().as_bytes()), Some(Timestamp::MAX), "{last_day}");
        assert_eq!(facts(certificate.der()).unwrap().not_after, Timestamp::MAX);
    }
}
