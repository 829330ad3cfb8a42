//! Certificates that are requested from the API server: of the client (`rotateCertificates`, `--bootstrap-kubeconfig`) and of the
//! HTTPS server (`serverTLSBootstrap`).

use std::path::{Path, PathBuf};

use podwright_api::Kubeconfig;

use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute, text};

/// Which certificates are requested, and where they are kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CertificateConfig {
    /// `--cert-dir`.
    pub(crate) dir: PathBuf,
    /// Used while there is no valid client certificate; `None`: the kubeconfig is.
    pub(crate) bootstrap: Option<PathBuf>,
    /// The client certificate is replaced before it expires.
    pub(crate) rotate_client: bool,
    /// The serving certificate is requested.
    pub(crate) request_serving: bool,
    /// `tlsCertFile` and `tlsPrivateKeyFile`, served until a certificate is issued.
    pub(crate) serving_files: Option<(PathBuf, PathBuf)>,
}

/// Of a node with this kubeconfig, which is checked.
pub(super) fn read(inputs: &ConfigInputs<'_>, kubeconfig: &Path, diagnostics: &mut Diagnostics) -> CertificateConfig {
    let file = &inputs.file;
    let path = |field: &Option<String>| text(field).map(|path| inputs.file_path(path));
    let config = CertificateConfig {
        dir: cert_dir(inputs),
        bootstrap: inputs.flags.bootstrap_kubeconfig.as_deref().map(absolute),
        rotate_client: file.rotate_certificates.unwrap_or(false),
        request_serving: file.server_tls_bootstrap.unwrap_or(false),
        serving_files: path(&file.tls_cert_file).zip(path(&file.tls_private_key_file)),
    };
    let result = match (&config.bootstrap, config.rotate_client) {
        (None, false) => Kubeconfig::read(kubeconfig).map(|_| ()),
        // The certificate that it names may be in the files of the rotation.
        (None, true) => Kubeconfig::read_anonymous(kubeconfig).map(|_| ()),
        (Some(_), _) if Kubeconfig::read_anonymous(kubeconfig).is_ok() => Ok(()),
        (Some(bootstrap), _) => {
            if let Err(error) = Kubeconfig::read(bootstrap) {
                diagnostics.error("--bootstrap-kubeconfig", error);
            }
            return config;
        }
    };
    if let Err(error) = result {
        diagnostics.error("--kubeconfig", error);
    }
    config
}

/// Without a kubeconfig nothing can be requested.
pub(super) fn check_standalone(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) {
    if inputs.flags.kubeconfig.is_some() {
        return;
    }
    if inputs.flags.bootstrap_kubeconfig.is_some() {
        diagnostics.error(
            "--bootstrap-kubeconfig",
            "give --kubeconfig, too: the file that the node's credentials are written to",
        );
    }
    if inputs.file.server_tls_bootstrap.unwrap_or(false) {
        diagnostics
            .error("serverTLSBootstrap", "the API server issues certificates: give --kubeconfig, or set it to false");
    }
}

/// `--cert-dir`.
pub(super) fn cert_dir(inputs: &ConfigInputs<'_>) -> PathBuf {
    let default = inputs.flags.root_dir().join("pki");
    absolute(inputs.flags.cert_dir.as_deref().unwrap_or(&default))
}
