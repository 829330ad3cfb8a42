//! The serving certificate when none is configured: `kubelet.crt` and `kubelet.key` in the certificate directory, self-signed, kept
//! while they are readable.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::sign::CertifiedKey;

use super::{TlsError, read_pair};

/// The pair in this directory, or a new one for this hostname.
pub(super) fn load_or_create(dir: &Path, hostname: &str) -> Result<CertifiedKey, TlsError> {
    let (certificate, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    match read_pair(&certificate, &key) {
        Ok(pair) => return Ok(pair),
        Err(TlsError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(%error, path = %dir.display(), "self-signed certificate cannot be used: a new one is made");
        }
    }
    let own = KeyPair::generate()?;
    let pem = certificate_params(hostname)?.self_signed(&own)?.pem();
    let failed = |source| TlsError::Write { path: dir.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(failed)?;
    write(&key, &own.serialize_pem(), 0o600)?;
    write(&certificate, &pem, 0o644)?;
    read_pair(&certificate, &key)
}

/// Valid for a year, beginning an hour ago for hosts whose clock is slow.
fn certificate_params(hostname: &str) -> Result<CertificateParams, rcgen::Error> {
    let names = if hostname.is_empty() { vec![] } else { vec![hostname.to_owned()] };
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, hostname);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now();
    params.not_before = (now - HOUR).into();
    params.not_after = (now + YEAR).into();
    Ok(params)
}

/// Replaces the file as a whole: a reader sees the old content or the new one.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.to_owned(), source };
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_pair_is_private_and_kept_while_it_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("a/pki");
        let first = load_or_create(&pki, "node-1").unwrap();
        let mode = |name: &str| fs::metadata(pki.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("kubelet.key"), mode("kubelet.crt")), (0o600, 0o644));
        let same = |a: &CertifiedKey, b: &CertifiedKey| a.cert == b.cert;
        assert!(same(&first, &load_or_create(&pki, "other").unwrap()));
        fs::write(pki.join("kubelet.crt"), "garbage").unwrap();
        let second = load_or_create(&pki, "node-1").unwrap();
        assert!(!same(&first, &second));
        fs::remove_file(pki.join("kubelet.key")).unwrap();
        assert!(!same(&second, &load_or_create(&pki, "node-1").unwrap()));
    }
}
