//! Reading and reloading of certificates.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
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
    use rcgen::{Issuer, date_time_ymd};
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

/// A certificate and the key that signs with it.
struct Signer {
    der: CertificateDer<'static>,
    issuer: rcgen::Issuer<'static, KeyPair>,
}

impl Signer {
    /// Self-signed, or signed by `parent`.
    fn new(parent: Option<&Self>, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let (params, key) = (named(name, change), KeyPair::generate().unwrap());
        let certificate = match parent {
            Some(parent) => params.signed_by(&key, &parent.issuer),
            None => params.self_signed(&key),
        };
        Self { der: certificate.unwrap().der().clone(), issuer: rcgen::Issuer::new(params, key) }
    }

    /// A certificate of an administrator.
    fn sign_admin(&self) -> CertificateDer<'static> {
        let admin = named("system:masters", |params| params.extended_key_usages = vec![CLIENT_AUTH]);
        admin.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().der().clone()
    }
}

fn named(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, name);
    change(&mut params);
    params
}

fn ca_with(max: BasicConstraints) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.is_ca = IsCa::Ca(max)
}

fn is_trusted(trusted: &[&CertificateDer<'static>], chain: &[&CertificateDer<'static>]) -> bool {
    let trusted = ClientAuthorities::new(trusted.iter().copied().cloned().collect()).unwrap();
    let rest: Vec<_> = chain[1..].iter().copied().cloned().collect();
    trusted.verify_client_cert(chain[0], &rest, UnixTime::now()).is_ok()
}

const CLIENT_AUTH: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ClientAuth;
const SERVER_AUTH: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;

#[test]
fn only_certificates_that_may_issue_client_certificates_are_cas() {
    use KeyUsagePurpose::{DigitalSignature, KeyCertSign};
    let (ca, any) = (IsCa::Ca(BasicConstraints::Unconstrained), ExtendedKeyUsagePurpose::Any);
    let table = [
        ("a CA", ca, vec![], vec![], true),
        ("keyCertSign", ca, vec![DigitalSignature, KeyCertSign], vec![], true),
        ("clientAuth", ca, vec![], vec![SERVER_AUTH, CLIENT_AUTH], true),
        ("any usage", ca, vec![], vec![any], true),
        ("CA: false", IsCa::ExplicitNoCa, vec![], vec![], false),
        ("no basic constraints", IsCa::NoCa, vec![], vec![], false),
        ("no keyCertSign", ca, vec![DigitalSignature], vec![], false),
        ("serverAuth only", ca, vec![], vec![SERVER_AUTH], false),
    ];
    for (name, is_ca, usages, extended, trusted) in table {
        let signer = Signer::new(None, "signer", |params| {
            (params.is_ca, params.key_usages, params.extended_key_usages) = (is_ca, usages, extended);
        });
        assert_eq!(is_trusted(&[&signer.der], &[&signer.sign_admin()]), trusted, "{name}");
    }
    let unknown = Signer::new(None, "signer", |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let mut extension = rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions.push(extension);
    });
    assert!(!is_trusted(&[&unknown.der], &[&unknown.sign_admin()]), "an unknown critical extension");
}

#[test]
fn a_chain_is_not_longer_than_its_ca_permits() {
    for (max, trusted) in [(BasicConstraints::Constrained(0), false), (BasicConstraints::Constrained(1), true)] {
        let root = Signer::new(None, "root", ca_with(max));
        let middle = Signer::new(Some(&root), "middle", ca_with(BasicConstraints::Unconstrained));
        let (direct, below) = (root.sign_admin(), middle.sign_admin());
        assert!(is_trusted(&[&root.der], &[&direct]));
        assert!(is_trusted(&[&root.der], &[&direct, &middle.der, &root.der]), "certificates that are not needed");
        assert_eq!(is_trusted(&[&root.der], &[&below, &middle.der]), trusted, "{max:?}");
        let other = Signer::new(None, "other", ca_with(BasicConstraints::Unconstrained));
        assert_eq!(is_trusted(&[&other.der, &root.der], &[&below, &middle.der]), trusted, "{max:?}");
        assert!(is_trusted(&[&root.der, &middle.der], &[&below]), "an intermediate CA that is trusted itself");
    }
}

#[test]
fn a_client_certificate_in_the_ca_file_is_trusted_and_signs_no_other() {
    let pinned = Signer::new(None, "client", |params| params.extended_key_usages = vec![CLIENT_AUTH]);
    assert!(is_trusted(&[&pinned.der], &[&pinned.der]));
    assert!(!is_trusted(&[&pinned.der], &[&pinned.sign_admin()]));
    let other = Signer::new(None, "client", |params| params.extended_key_usages = vec![CLIENT_AUTH]);
    assert!(!is_trusted(&[&pinned.der], &[&other.der]), "another key");
    let server = Signer::new(None, "server", |params| params.extended_key_usages = vec![SERVER_AUTH]);
    assert!(!is_trusted(&[&server.der], &[&server.der]), "not for clients");
    let expired = Signer::new(None, "client", |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    assert!(!is_trusted(&[&expired.der], &[&expired.der]), "expired");
}
