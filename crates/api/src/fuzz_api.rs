//! Entry points for the fuzz targets in `fuzz/`: what servers, plugins and files of others may contain.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;

use crate::watch_stream::{WatchEvent, WatchStream};
use crate::{Kubeconfig, certificate, credential_plugin};

/// The body of a watch response.
pub async fn watch(body: &[u8]) {
    let mut stream = WatchStream::new(Body::from(body.to_vec()));
    while let Some(Ok(line)) = stream.next().await {
        if let Ok(event) = WatchEvent::parse(&line) {
            let _ = serde_json::from_str::<Pod>(event.object.get());
        }
    }
}

/// A kubeconfig; `dir` is for its file.
pub fn kubeconfig(dir: &Path, content: &[u8]) {
    let path = dir.join("kubeconfig");
    if std::fs::write(&path, content).is_ok()
        && let Ok(config) = Kubeconfig::read(&path)
    {
        let _ = (config.server().to_string(), config.expires());
    }
}

/// The output of a credential plugin.
pub fn credential_plugin(output: &[u8]) {
    let _ = credential_plugin::parse(output);
}

/// A PEM file with any number of certificates.
pub fn pem(text: &[u8]) {
    let _ = (certificate::count(text), certificate::not_after(text));
}
