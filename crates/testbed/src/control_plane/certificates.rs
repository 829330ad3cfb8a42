//! The certificate authority of a test cluster, and the certificates and kubeconfigs it issues.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::api_client::ClientIdentity;

/// Signs all certificates of the cluster.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl CertificateAuthority {
    /// Creates a CA: `ca.crt` and `ca.key` in the directory.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name("testbed-ca", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        fs::write(dir.join("ca.crt"), certificate.pem())?;
        write_private(&dir.join("ca.key"), &key.serialize_pem())?;
        let der = certificate.der().clone();
        Ok(Self { dir: dir.to_owned(), issuer: Issuer::new(params, key), certificate: der })
    }

    /// The path of the CA certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Issues a certificate for a server on loopback.
    pub(crate) fn server(&self, common_name: &str) -> Result<ClientIdentity> {
        let names = ["localhost", "kubernetes", "kubernetes.default.svc", "127.0.0.1", "10.96.0.1"];
        let mut params = CertificateParams::new(names.map(str::to_owned))?;
        params.distinguished_name = name(common_name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(common_name, &params).map(|(_, identity)| identity)
    }

    /// Issues a client certificate for a user in a group, as `<file>.crt` and `<file>.key`.
    pub(crate) fn user(&self, file: &str, user: &str, group: &str) -> Result<(CertificateFiles, ClientIdentity)> {
        self.sign(file, &client(user, group))
    }

    /// As [`Self::user`], with an expired certificate.
    pub(crate) fn expired(&self, file: &str, user: &str, group: &str) -> Result<CertificateFiles> {
        let mut params = client(user, group);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.sign(file, &params).map(|(pair, _)| pair)
    }

    /// Writes a kubeconfig with the certificate files of a user.
    pub(crate) fn kubeconfig(&self, file: &str, server: &str, user: &CertificateFiles) -> Result<PathBuf> {
        let user = json!({"client-certificate": user.certificate, "client-key": user.key});
        self.kubeconfig_of(file, server, &user)
    }

    /// Writes a kubeconfig with these credentials; JSON is valid YAML.
    pub(crate) fn kubeconfig_of(&self, file: &str, server: &str, user: &Value) -> Result<PathBuf> {
        let path = self.dir.join(format!("{file}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "testbed",
            "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": self.certificate()}}],
            "users": [{"name": file, "user": user}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": file}}],
        });
        write_private(&path, &serde_json::to_string_pretty::<Value>(&config)?)?;
        Ok(path)
    }

    fn sign(&self, file: &str, params: &CertificateParams) -> Result<(CertificateFiles, ClientIdentity)> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let at = |end: &str| self.dir.join(format!("{file}.{end}"));
        let pair = CertificateFiles { certificate: at("crt"), key: at("key") };
        fs::write(&pair.certificate, certificate.pem())?;
        write_private(&pair.key, &key.serialize_pem())?;
        let identity = ClientIdentity {
            authority: self.certificate.clone(),
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?.into(),
        };
        Ok((pair, identity))
    }
}

/// The key pair that signs tokens of service accounts: `sa.key` and `sa.pub`.
pub(crate) fn service_account_keys(dir: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    fs::write(dir.join("sa.pub"), key.public_key_pem())?;
    write_private(&dir.join("sa.key"), &key.serialize_pem())
}

fn client(user: &str, group: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(user, Some(group));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn name(common_name: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}
