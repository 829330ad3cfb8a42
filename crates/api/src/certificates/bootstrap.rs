//! The kubeconfig of a node that joins with bootstrap credentials: it names the certificate that is going to be issued.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::store::{CertificateFileError, remove, rename, sync_dir, write_private};
use crate::kubeconfig::{Kubeconfig, KubeconfigError};

/// Why a node can use neither its kubeconfig nor the bootstrap kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The bootstrap kubeconfig is needed and cannot be used.
    #[error("bootstrap kubeconfig: {0}")]
    Bootstrap(#[from] KubeconfigError),
    /// The kubeconfig cannot be written.
    #[error("write the kubeconfig: {0}")]
    Write(#[from] CertificateFileError),
}

/// Whether a certificate must be requested: writes the kubeconfig unless it can be used as it is (Kubernetes: `LoadClientConfig`).
///
/// `bootstrap` is read only if it is needed: installers delete it when the node has joined.
pub fn prepare_kubeconfig(
    kubeconfig: &Path,
    bootstrap: &Path,
    certificate: &Path,
    now: Timestamp,
) -> Result<bool, BootstrapError> {
    match Kubeconfig::read(kubeconfig) {
        Ok(own) if own.expires().is_none_or(|end| end >= now) => return Ok(false),
        Ok(own) => {
            let not_after = own.expires().map(tracing::field::display);
            tracing::warn!(path = %kubeconfig.display(), not_after, "client certificate has expired: joining again");
        }
        Err(KubeconfigError::Read { source, path, .. }) if source.kind() == ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "no credentials yet: joining with the bootstrap kubeconfig");
        }
        Err(error) => tracing::warn!(%error, "kubeconfig cannot be used: joining with the bootstrap kubeconfig"),
    }
    let text = Kubeconfig::read(bootstrap)?.with_certificate(certificate);
    let dir = kubeconfig.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
    let failed = |source| CertificateFileError::Io { operation: "create", path: dir.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(failed)?;
    let new = kubeconfig.with_extension("new");
    remove(&new)?;
    write_private(&new, &text)?;
    rename(&new, kubeconfig)?;
    sync_dir(&dir)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            files.put_pair("ca", 2090);
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn put_pair(&self, name: &str, until: i32) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            let text = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
            fs::write(self.path(&format!("{name}.pem")), text).unwrap();
        }

        fn put_kubeconfig(&self, name: &str, user: &str) {
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:6443', certificate-authority: ca.pem}}}}]\n\
                 users: [{{name: u, user: {user}}}]\n"
            );
            fs::write(self.path(name), text).unwrap();
        }

        fn prepare(&self) -> Result<bool, BootstrapError> {
            let (kubeconfig, current) = (self.path("kubeconfig"), self.path("kubelet-client-current.pem"));
            prepare_kubeconfig(&kubeconfig, &self.path("bootstrap"), &current, Timestamp::now())
        }
    }

    #[test]
    fn a_kubeconfig_that_can_be_used_stays_and_any_other_is_written() {
        let files = Files::new();
        files.put_pair("own", 2090);
        files.put_pair("old", 2021);
        let own = "{client-certificate: own.pem, client-key: own.pem}";
        for usable in [own, "{token: abc}"] {
            files.put_kubeconfig("kubeconfig", usable);
            let before = fs::read(files.path("kubeconfig")).unwrap();
            // Without a bootstrap kubeconfig: it is not read.
            assert!(!files.prepare().unwrap(), "{usable}");
            assert_eq!(fs::read(files.path("kubeconfig")).unwrap(), before);
        }
        let error = files.prepare().map(|_| ());
        assert!(error.is_ok());
        files.put_kubeconfig("kubeconfig", "{client-certificate: old.pem, client-key: old.pem}");
        let before = fs::read(files.path("kubeconfig")).unwrap();
        let error = files.prepare().unwrap_err().to_string();
        assert!(error.contains("bootstrap") && error.contains("No such file"), "{error}");
        assert_eq!(fs::read(files.path("kubeconfig")).unwrap(), before, "nothing changes without credentials");
        files.put_kubeconfig("bootstrap", "{token: s3cret}");
        for unusable in [
            "{client-certificate: old.pem, client-key: old.pem}",
            "{client-certificate: none.pem, client-key: none.pem}",
        ] {
            files.put_kubeconfig("kubeconfig", unusable);
            assert!(files.prepare().unwrap(), "{unusable}");
        }
        fs::remove_file(files.path("kubeconfig")).unwrap();
        assert!(files.prepare().unwrap());
        let text = fs::read_to_string(files.path("kubeconfig")).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        for part in
            ["name: default-cluster", "name: default-auth", "current-context: default-context", "namespace: default"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Once the certificate is there, the file is complete.
        assert!(files.prepare().unwrap());
        fs::copy(files.path("own.pem"), files.path("kubelet-client-current.pem")).unwrap();
        assert!(!files.prepare().unwrap());
        let read = Kubeconfig::read(&files.path("kubeconfig")).unwrap();
        assert_eq!(read.server().to_string(), "https://127.0.0.1:6443/");
    }
}
