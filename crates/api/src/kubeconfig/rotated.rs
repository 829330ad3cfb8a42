//! The kubeconfig of a node whose client certificate is rotated: its server counts, its credentials only for the first request.

use std::path::{Path, PathBuf};

use kube::config::AuthInfo;
use secrecy::ExposeSecret;

use super::{Kubeconfig, KubeconfigError};
use crate::certificate_pair::CertificatePair;

/// Where a kubeconfig has its client certificate.
#[derive(Clone, Debug)]
pub enum ClientCertificateSource {
    /// It has none, or none that can be used.
    None,
    /// In the kubeconfig itself.
    Inline(CertificatePair),
    /// Paths of certificate and key.
    Files(PathBuf, PathBuf),
}

impl Kubeconfig {
    /// As [`Self::read`], without the user's credentials: certificates of a rotation replace them, and the file that the
    /// kubeconfig names may not exist yet.
    pub fn read_anonymous(path: &Path) -> Result<Self, KubeconfigError> {
        let read = Self { user: AuthInfo::default(), ..Self::parse(path)? };
        read.check()?;
        Ok(read)
    }

    /// Where the client certificate of a kubeconfig is; the files may not exist yet.
    pub fn client_certificate(path: &Path) -> Result<ClientCertificateSource, KubeconfigError> {
        let read = Self::parse(path)?;
        let inline = |data: Option<&str>| data.is_some_and(|data| !data.is_empty());
        let key_data = read.user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        if inline(read.user.client_certificate_data.as_deref()) || inline(key_data) {
            let pair = read.client()?.and_then(|(certificate, key)| {
                CertificatePair::parse(&certificate, key.expose_secret().as_bytes())
                    .inspect_err(
                        |error| tracing::warn!(path = %path.display(), %error, "client certificate cannot be used"),
                    )
                    .ok()
            });
            return Ok(pair.map_or(ClientCertificateSource::None, ClientCertificateSource::Inline));
        }
        let file = |path: &Option<String>| path.as_deref().filter(|path| !path.is_empty()).map(PathBuf::from);
        let files = file(&read.user.client_certificate).zip(file(&read.user.client_key));
        Ok(files.map_or(ClientCertificateSource::None, |(certificate, key)| {
            ClientCertificateSource::Files(certificate, key)
        }))
    }

    /// The text of a kubeconfig for the same server that names one file as client certificate and key (Kubernetes:
    /// `writeKubeconfigFromBootstrapping`).
    pub(crate) fn with_certificate(&self, certificate: &Path) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let absolute = |path: &str| std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string();
        let cluster = &self.cluster;
        let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let data = given(&cluster.certificate_authority_data).map(|data| ("certificate-authority-data", quoted(&data)));
        let file =
            given(&cluster.certificate_authority).map(|path| ("certificate-authority", quoted(&absolute(&path))));
        let insecure = cluster.insecure_skip_tls_verify.unwrap_or(false);
        let fields = [
            data.or(file),
            insecure.then(|| ("insecure-skip-tls-verify", "true".to_owned())),
            Some(("server", quoted(cluster.server.as_deref().unwrap_or_default()))),
            given(&cluster.tls_server_name).map(|name| ("tls-server-name", quoted(&name))),
        ];
        let fields: String =
            fields.into_iter().flatten().map(|(field, value)| format!("    {field}: {value}\n")).collect();
        let pem = quoted(&absolute(&certificate.display().to_string()));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: default-cluster\n  cluster:\n{fields}\
             contexts:\n- name: default-context\n  context:\n    cluster: default-cluster\n    namespace: default\n\
             \x20   user: default-auth\ncurrent-context: default-context\npreferences: {{}}\nusers:\n- name: default-auth\n\
             \x20 user:\n    client-certificate: {pem}\n    client-key: {pem}\n"
        )
    }
}
