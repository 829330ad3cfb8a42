//! Registries over TLS: certificates of `hosts.toml`, and what is refused without them.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;

/// A certificate authority, and a server's configuration with a certificate for 127.0.0.1 from it.
fn certificates() -> (String, ServerConfig) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private).unwrap();
    (ca_pem, config)
}

fn hosts_toml(config: &Path, registry: &FakeRegistry, options: &str) {
    let dir = config.join(&registry.address);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("hosts.toml"), format!("server = \"https://{}\"\n{options}\n", registry.address)).unwrap();
}

#[tokio::test]
async fn a_certificate_is_trusted_only_if_its_authority_is() {
    let image = two_layers("app:1");
    let (ca, server) = certificates();
    let routes = image.routes();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let registry = FakeRegistry::start_tls(acceptor, move |got| serve_content(&routes, got)).await;
    let config = tempfile::tempdir().unwrap();
    let fixture = PullFixture::with(ImageLimits::default(), Some(config.path().to_owned()));
    let reference = registry.reference("app:1");
    hosts_toml(config.path(), &registry, "");
    assert_eq!(fixture.refuses(&reference, "invalid peer certificate").await, PullErrorKind::Unavailable);
    assert_eq!(registry.requests().len(), 0, "nothing was sent");
    hosts_toml(config.path(), &registry, "ca = \"missing.pem\"");
    assert_eq!(fixture.refuses(&reference, "missing.pem").await, PullErrorKind::Internal);
    hosts_toml(config.path(), &registry, "ca = \"hosts.toml\"");
    fixture.refuses(&reference, "no certificate in PEM").await;
    hosts_toml(config.path(), &registry, "skip_verify = true");
    fixture.pull(&reference).await.unwrap();
    fs::write(config.path().join(&registry.address).join("ca.pem"), ca).unwrap();
    hosts_toml(config.path(), &registry, "ca = \"ca.pem\"");
    fixture.pull(&reference).await.unwrap();
    assert_eq!(registry.count("manifests/1"), 2);
}

#[tokio::test]
async fn a_redirect_or_token_server_without_tls_is_refused_after_tls() {
    let plain = FakeRegistry::start(|_| Reply::status(200)).await;
    let to = plain.address.clone();
    let (_, server) = certificates();
    let registry = FakeRegistry::start_tls(TlsAcceptor::from(Arc::new(server)), move |got| match got.path.as_str() {
        "/v2/app/manifests/1" => Reply::redirect(format!("http://{to}/x")),
        _ => {
            let challenge = format!("Bearer realm=\"http://{to}/token\"");
            Reply::Content(StatusCode::UNAUTHORIZED, vec![("www-authenticate", challenge)], Bytes::new())
        }
    })
    .await;
    let config = tempfile::tempdir().unwrap();
    hosts_toml(config.path(), &registry, "skip_verify = true");
    let fixture = PullFixture::with(ImageLimits::default(), Some(config.path().to_owned()));
    fixture.refuses(&registry.reference("app:1"), "it leaves https for http").await;
    fixture.refuses(&registry.reference("app:2"), "reached without TLS").await;
    assert_eq!(plain.requests().len(), 0);
}
