//! Certificates of the node that signers of the API server issue: opens their files, starts their rotation, shows them to monitoring.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use podwright_api::certificates::{
    CertificateKind, CertificateRotation, CertificateStatus, CertificateStore, CurrentCertificate, RotationClients,
    prepare_kubeconfig,
};
use podwright_api::{ApiClient, ClientCertificateSource, Kubeconfig};
use podwright_core::certificates::{client_names, serving_names};
use podwright_core::node_status::NodeEvent;
use podwright_server::kubelet::ServerTls;
use podwright_tasks::Tasks;
use secrecy::ExposeSecret;
use tokio::sync::{mpsc, watch};

use crate::config::{AgentConfig, CertificateConfig, ClusterConfig};

/// The rotations that run, opened and not yet started.
#[derive(Default)]
pub(super) struct NodeCertificates {
    client: Option<ClientRotation>,
    serving: Option<CertificateRotation>,
}

struct ClientRotation {
    rotation: CertificateRotation,
    /// For requests without a certificate.
    bootstrap: PathBuf,
    /// Without rotation: only the first certificate is requested.
    once: bool,
}

/// The client of the API server and the certificates of this node; `None`: the node is standalone.
pub(super) async fn open(config: &AgentConfig) -> anyhow::Result<(Option<ApiClient>, NodeCertificates)> {
    let Some(cluster) = &config.cluster else { return Ok((None, NodeCertificates::default())) };
    let (client, rotation) = open_client(&config.node.node_name, cluster).await?;
    let CertificateConfig { dir, request_serving, serving_files, .. } = &cluster.certificates;
    let mut certificates = NodeCertificates { client: rotation, serving: None };
    if *request_serving && config.server.is_some() {
        let store = CertificateStore::new(dir.clone(), CertificateKind::Serving, serving_files.clone());
        certificates.serving = Some(CertificateRotation::open(&config.node.node_name, store, None).await);
    }
    Ok((Some(client), certificates))
}

async fn open_client(node: &str, cluster: &ClusterConfig) -> anyhow::Result<(ApiClient, Option<ClientRotation>)> {
    let (kubeconfig, config) = (&cluster.kubeconfig, &cluster.certificates);
    let mut store = CertificateStore::new(config.dir.clone(), CertificateKind::Client, None);
    let joins = match &config.bootstrap {
        Some(bootstrap) => joins(kubeconfig, bootstrap, &store)?,
        None => false,
    };
    if !config.rotate_client && !joins {
        return Ok((ApiClient::open(kubeconfig)?, None));
    }
    let mut temporary = None;
    let mut bootstrap = config.bootstrap.as_ref().unwrap_or(kubeconfig);
    match Kubeconfig::client_certificate(kubeconfig)? {
        ClientCertificateSource::Inline(pair) => temporary = Some(pair),
        ClientCertificateSource::Files(certificate, key) if certificate != store.current_path() => {
            store = CertificateStore::new(config.dir.clone(), CertificateKind::Client, Some((certificate, key)));
        }
        ClientCertificateSource::Files(..) => {}
        // A token in it may request a certificate.
        ClientCertificateSource::None => bootstrap = kubeconfig,
    }
    let rotation = CertificateRotation::open(node, store, temporary).await;
    let current = rotation.status().current();
    if bootstrap == kubeconfig && current.borrow().is_none() {
        // Its credentials request the first certificate.
        Kubeconfig::read(kubeconfig)?;
    }
    let client = ApiClient::open_rotated(kubeconfig, current)?;
    let (bootstrap, once) = (bootstrap.clone(), !config.rotate_client);
    Ok((client, Some(ClientRotation { rotation, bootstrap, once })))
}

/// Whether the node must join, with a kubeconfig written for it.
fn joins(kubeconfig: &Path, bootstrap: &Path, store: &CertificateStore) -> anyhow::Result<bool> {
    let now = Timestamp::now();
    // Completes a rotation that was cut off: the kubeconfig names its file.
    store.read(now);
    match prepare_kubeconfig(kubeconfig, bootstrap, &store.current_path(), now) {
        Ok(written) => Ok(written),
        // Static pods run without the API server, and the file may come later.
        Err(error) if Kubeconfig::read_anonymous(kubeconfig).is_ok() => {
            tracing::error!(%error, "node cannot join: it has neither a valid certificate nor bootstrap credentials");
            Ok(false)
        }
        Err(error) => Err(error).context("join the cluster"),
    }
}

impl NodeCertificates {
    /// Starts the rotations. `tls` serves the issued certificates, `events` receives the reasons to act for an administrator.
    pub(super) fn start(
        self,
        cluster: &ApiClient,
        config: &AgentConfig,
        tls: Option<Arc<ServerTls>>,
        events: &mpsc::Sender<NodeEvent>,
        tasks: &Tasks,
    ) {
        let node = config.node.node_name.as_str();
        if let Some(ClientRotation { rotation, bootstrap, once }) = self.client {
            let clients = RotationClients { own: cluster.new_connection(), bootstrap: Some(bootstrap) };
            let (wanted, names) = watch::channel(Some(client_names(node)));
            let events = events.clone();
            let run = async move {
                rotation.run(clients, names, events, once).await;
                drop(wanted);
            };
            match once {
                true => tasks.job("client-certificate", run),
                false => tasks.service("client-certificate", run),
            };
        }
        if let (Some(rotation), Some(tls)) = (self.serving, tls) {
            let clients = RotationClients { own: cluster.new_connection(), bootstrap: None };
            let addresses = config.node.host_ips.iter().map(String::as_str).chain([config.hostname.as_str()]);
            let (wanted, names) = watch::channel(serving_names(node, addresses));
            let (current, events) = (rotation.status().current(), events.clone());
            tasks.service("serving-certificate", async move {
                tokio::select! {
                    () = rotation.run(clients, names, events, false) => drop(wanted),
                    () = serve_newest(current, &tls) => {}
                }
            });
        }
    }

    /// For monitoring.
    pub(super) fn metrics(&self) -> CertificateMetrics {
        CertificateMetrics {
            client: self.client.as_ref().map(|client| client.rotation.status()),
            serving: self.serving.as_ref().map(CertificateRotation::status),
        }
    }
}

/// Serves each new certificate.
async fn serve_newest(mut current: CurrentCertificate, tls: &ServerTls) {
    loop {
        let newest = current.borrow_and_update().clone();
        if let Some(pair) = newest {
            match tls.set_serving(pair.certificates(), pair.key().expose_secret()) {
                Ok(()) => tracing::info!(not_after = %pair.facts().not_after, "HTTPS server has a certificate"),
                Err(error) => tracing::error!(%error, "issued certificate cannot be served"),
            }
        }
        if current.changed().await.is_err() {
            return;
        }
    }
}

/// How long certificates are valid, and how often requests for them failed.
#[derive(Clone, Debug, Default)]
pub(super) struct CertificateMetrics {
    client: Option<CertificateStatus>,
    serving: Option<CertificateStatus>,
}

impl CertificateMetrics {
    /// In the text format of Prometheus.
    pub(super) fn text(&self, now: Timestamp) -> String {
        let ttl = |status: &Option<CertificateStatus>| {
            let seconds = status.as_ref().map_or(f64::INFINITY, |status| status.ttl_seconds(now));
            if seconds.is_infinite() { "+Inf".to_owned() } else { seconds.to_string() }
        };
        let failures = |status: &Option<CertificateStatus>| status.as_ref().map_or(0, CertificateStatus::failures);
        let rest = "Seconds until it expires, negative after that; +Inf if none is rotated.";
        format!(
            "# HELP {CLIENT_TTL} Lifetime left of the client certificate. {rest}\n# TYPE {CLIENT_TTL} gauge\n{CLIENT_TTL} {}\n\
             # HELP {SERVER_TTL} Lifetime left of the serving certificate. {rest}\n# TYPE {SERVER_TTL} gauge\n{SERVER_TTL} {}\n\
             # HELP {CLIENT_ERRORS} Failed requests for a client certificate.\n# TYPE {CLIENT_ERRORS} counter\n{CLIENT_ERRORS} {}\n\
             # HELP {SERVER_ERRORS} Failed requests for a serving certificate.\n# TYPE {SERVER_ERRORS} counter\n{SERVER_ERRORS} {}\n",
            ttl(&self.client),
            ttl(&self.serving),
            failures(&self.client),
            failures(&self.serving),
        )
    }
}

const CLIENT_TTL: &str = "kubelet_certificate_manager_client_ttl_seconds";
const SERVER_TTL: &str = "kubelet_certificate_manager_server_ttl_seconds";
const CLIENT_ERRORS: &str = "kubelet_certificate_manager_client_expiration_renew_errors";
const SERVER_ERRORS: &str = "kubelet_server_expiration_renew_errors";
