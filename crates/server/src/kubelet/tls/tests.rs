//! Reading and reloading of certificates.

use rcgen::{CertificateParams, KeyPair};
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn a_new_serving_certificate_is_used_and_a_pair_that_does_not_fit_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("a.crt"), dir.path().join("a.key"));
    let write = |own: &KeyPair, written: &KeyPair| {
        let signed = CertificateParams::new(vec!["node".to_owned()]).unwrap().self_signed(own).unwrap();
        std::fs::write(&certificate, signed.pem()).unwrap();
        std::fs::write(&key, written.serialize_pem()).unwrap();
        signed.der().clone()
    };
    let (first, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let old = write(&first, &first);
    let files = TlsFiles {
        serving: ServingSource::Files { certificate: certificate.clone(), key: key.clone() },
        cert_dir: dir.path().into(),
        hostname: "node".into(),
        client_ca: None,
    };
    let pool = Pool::default();
    let tls = ServerTls::open(files.clone(), &TlsPolicy::default(), &pool).await.unwrap();
    let served = || tls.serving.0.read().unwrap().as_ref().unwrap().cert[0].clone();
    assert_eq!(served(), old);
    let serving = FilePart::Serving;
    let before = file_stamps(&files, serving);
    assert_eq!(tls.opened[0], before);
    write(&second, &first);
    assert_ne!(file_stamps(&files, serving), before);
    assert!(tls.reload(serving, &pool).await.is_err());
    assert_eq!(served(), old);
    let new = write(&second, &second);
    tls.reload(serving, &pool).await.unwrap();
    assert_eq!(served(), new);
    let no_ca = TlsFiles { client_ca: Some(dir.path().join("none")), ..files };
    assert!(ServerTls::open(no_ca, &TlsPolicy::default(), &pool).await.is_err(), "a CA that is missing at the start");
}

#[tokio::test]
async fn unsupported_cipher_suites_are_not_known() {
    let known = TlsPolicy::known_cipher_suites();
    assert!(known.contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()), "{known:?}");
    assert!(!known.iter().any(|name| name.contains("CBC")), "{known:?}");
}

#[tokio::test]
async fn a_broken_serving_pair_does_not_keep_a_removed_ca() {
    for missing in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(vec!["node".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(path("a.crt"), signed.pem()).unwrap();
        std::fs::write(path("a.key"), key.serialize_pem()).unwrap();
        std::fs::write(path("ca.crt"), signed.pem()).unwrap();
        let files = TlsFiles {
            serving: ServingSource::Files { certificate: path("a.crt"), key: path("a.key") },
            cert_dir: dir.path().into(),
            hostname: "node".into(),
            client_ca: Some(path("ca.crt")),
        };
        let pool = Pool::default();
        let tls = Arc::new(ServerTls::open(files, &TlsPolicy::default(), &pool).await.unwrap());
        let current = || Arc::clone(&tls.authorities.as_ref().unwrap().read().unwrap());
        let old = current();
        // Before the first check: the files are compared with those that were opened.
        match missing {
            true => std::fs::remove_file(path("a.key")).unwrap(),
            false => std::fs::write(path("a.key"), "garbage").unwrap(),
        }
        let other = CertificateParams::new(vec!["other-ca".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(path("ca.new"), other.pem()).unwrap();
        std::fs::rename(path("ca.new"), path("ca.crt")).unwrap();
        let stop = CancellationToken::new();
        let (followed, stopped) = (Arc::clone(&tls), stop.clone());
        let follower = tokio::spawn(async move { followed.follow_files(pool, stopped).await });
        let began = std::time::Instant::now();
        while Arc::ptr_eq(&current(), &old) {
            assert!(began.elapsed() < Duration::from_secs(20), "the old CA stays (missing: {missing})");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stop.cancel();
        follower.await.unwrap();
    }
}

#[tokio::test]
async fn a_ca_that_has_expired_or_is_not_valid_yet_is_not_trusted() {
    use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, Issuer, date_time_ymd};
    let dir = tempfile::tempdir().unwrap();
    let (old, now, new) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1), date_time_ymd(3000, 1, 1));
    for (from, until, trusted) in [(old, new, true), (old, now, false), (new, date_time_ymd(3001, 1, 1), false)] {
        let mut ca = CertificateParams::new(vec![]).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(rcgen::DnType::CommonName, "ca");
        (ca.not_before, ca.not_after) = (from, until);
        let ca_key = KeyPair::generate().unwrap();
        let pem = ca.self_signed(&ca_key).unwrap().pem();
        let mut client = CertificateParams::new(vec![]).unwrap();
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let own = client.signed_by(&KeyPair::generate().unwrap(), &Issuer::new(ca, ca_key)).unwrap();
        std::fs::write(dir.path().join("ca.crt"), pem).unwrap();
        let files = TlsFiles {
            serving: ServingSource::SelfSigned,
            cert_dir: dir.path().into(),
            hostname: "node".into(),
            client_ca: Some(dir.path().join("ca.crt")),
        };
        let tls = ServerTls::open(files, &TlsPolicy::default(), &Pool::default()).await.unwrap();
        let chain = ClientChain::new(vec![own.der().clone()]);
        assert_eq!(tls.is_trusted(&chain), trusted, "valid from {from} until {until}");
    }
}

#[tokio::test]
async fn an_issued_certificate_is_used_once_it_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        serving: ServingSource::Issued,
        cert_dir: dir.path().into(),
        hostname: "node".into(),
        client_ca: None,
    };
    let pool = Pool::default();
    let tls = ServerTls::open(files, &TlsPolicy::default(), &pool).await.unwrap();
    let served = || tls.serving.0.read().unwrap().as_ref().map(|pair| pair.cert[0].clone());
    assert_eq!(served(), None);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no self-signed certificate is made");
    let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let signed = CertificateParams::new(vec!["node".to_owned()]).unwrap().self_signed(&own).unwrap();
    tls.set_serving(&signed.pem(), &own.serialize_pem()).unwrap();
    assert_eq!(served().as_ref(), Some(signed.der()));
    assert!(tls.set_serving(&signed.pem(), &other.serialize_pem()).is_err());
    tls.reload(FilePart::Serving, &pool).await.unwrap();
    assert_eq!(served().as_ref(), Some(signed.der()), "what is wrong leaves the old one");
}
