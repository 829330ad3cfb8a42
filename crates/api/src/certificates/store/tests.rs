//! Files of certificates: layout, crashes, and the order of reading.

use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, DnType, KeyPair};

use super::*;

/// A certificate with this common name that is valid until this year.
fn pem(name: &str, until: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(until, 1, 1));
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn pair(name: &str) -> CertificatePair {
    let (certificate, key) = pem(name, 2090);
    CertificatePair::parse(certificate.as_bytes(), key.as_bytes()).unwrap()
}

fn at(second: i64) -> Timestamp {
    "2026-01-31T12:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second)
}

fn name(store: &CertificateStore) -> Option<String> {
    store.read(at(0)).map(|pair| pair.facts().names.common_name.clone())
}

#[test]
fn files_have_the_names_links_and_modes_of_the_go_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let store = CertificateStore::new(dir.path().join("a/pki"), CertificateKind::Client, None);
    assert_eq!(name(&store), None);
    store.write(&pair("first"), at(0)).unwrap();
    let file = dir.path().join("a/pki/kubelet-client-2026-01-31-12-00-00.pem");
    assert_eq!(fs::read_link(store.current_path()).unwrap(), file);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("-----BEGIN CERTIFICATE-----"), "{text}");
    assert!(text.find("PRIVATE KEY").unwrap() > text.find("END CERTIFICATE").unwrap());
    // In the same second: the content is replaced, and never half of it.
    store.write(&pair("second"), at(0)).unwrap();
    assert_eq!(name(&store).as_deref(), Some("second"));
    for second in 1..20 {
        store.write(&pair("later"), at(second)).unwrap();
    }
    let mut left: Vec<_> = fs::read_dir(dir.path().join("a/pki")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left.len(), KEPT + 1, "{left:?}");
    assert_eq!(left[KEPT], "kubelet-client-current.pem", "{left:?}");
    assert_eq!(left[KEPT - 1], "kubelet-client-2026-01-31-12-00-19.pem", "{left:?}");
}

#[test]
fn a_crash_at_any_step_leaves_a_certificate() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CertificateStore::new(dir.path().into(), CertificateKind::Serving, None);
    let updated = dir.path().join("kubelet-server-updated.pem");
    // Killed while the first file was written.
    fs::write(dir.path().join("kubelet-server-2026-01-31-12-00-00.pem.new"), "-----BEGIN").unwrap();
    assert_eq!(name(&store), None);
    // Killed before the first link was renamed.
    let other = CertificateStore::new(files.path().into(), CertificateKind::Serving, None);
    other.write(&pair("first"), at(0)).unwrap();
    symlink(files.path().join("kubelet-server-2026-01-31-12-00-00.pem"), &updated).unwrap();
    assert_eq!(name(&store).as_deref(), Some("first"));
    assert!(fs::symlink_metadata(&updated).is_err() && store.current_path().is_symlink(), "it was renamed");
    // Killed before a later link was renamed: the current one stays, and the next write succeeds.
    other.write(&pair("second"), at(1)).unwrap();
    symlink(files.path().join("kubelet-server-2026-01-31-12-00-01.pem"), &updated).unwrap();
    assert_eq!(name(&store).as_deref(), Some("first"));
    store.write(&pair("third"), at(0)).unwrap();
    assert_eq!(name(&store).as_deref(), Some("third"));
    assert!(fs::symlink_metadata(&updated).is_err());
}

#[test]
fn a_file_in_the_place_of_a_link_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = CertificateStore::new(dir.path().into(), CertificateKind::Client, None);
    for place in ["current", "updated"] {
        let path = dir.path().join(format!("kubelet-client-{place}.pem"));
        fs::write(&path, "mine").unwrap();
        let error = store.write(&pair("first"), at(0)).unwrap_err();
        assert!(error.to_string().contains(&format!("{place}.pem is not a symbolic link")), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_first_certificate_that_has_not_expired_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let configured = (path("own.crt"), path("own.key"));
    let store = CertificateStore::new(dir.path().into(), CertificateKind::Client, Some(configured));
    let put = |base: &str, until: i32| {
        let (certificate, key) = pem(base, until);
        fs::write(path(&format!("{base}.crt")), certificate).unwrap();
        fs::write(path(&format!("{base}.key")), key).unwrap();
    };
    put("kubelet-client", 2090);
    assert_eq!(name(&store).as_deref(), Some("kubelet-client"));
    put("own", 2090);
    assert_eq!(name(&store).as_deref(), Some("own"));
    store.write(&pair("current"), at(0)).unwrap();
    assert_eq!(name(&store).as_deref(), Some("current"));
    fs::write(fs::read_link(store.current_path()).unwrap(), "garbage").unwrap();
    assert_eq!(name(&store).as_deref(), Some("own"));
    put("own", 2021);
    assert_eq!(name(&store).as_deref(), Some("kubelet-client"));
    put("kubelet-client", 2021);
    assert_eq!(name(&store).as_deref(), Some("own"), "all have expired");
    // The key of another certificate.
    fs::write(path("own.key"), pem("x", 2090).1).unwrap();
    assert_eq!(name(&store).as_deref(), Some("kubelet-client"));
}
