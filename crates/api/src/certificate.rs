//! The few facts we read from X.509 certificates in PEM.

use jiff::Timestamp;
use x509_parser::pem::Pem;

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
    Timestamp::from_second(first.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}
