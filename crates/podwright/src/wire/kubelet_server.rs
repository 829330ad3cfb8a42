//! Opens and starts the kubelet's API.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use podwright_agent::event_loop::Handle;
use podwright_agent::host::Pool;
use podwright_api::ApiClient;
use podwright_server::StreamingRuntime;
use podwright_server::health_server::{AgentStatus, PodListCache};
use podwright_server::kubelet::{self, KubeletAccess, KubeletApi, Reviewer, ServerTls};
use podwright_tasks::Tasks;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::monitor::Monitor;
use super::settings;
use crate::cluster::ApiReviewer;
use crate::config::AgentConfig;
use crate::logging;

/// The bound address and the certificates: what can fail at the start.
pub(super) struct OpenedServer {
    listener: TcpListener,
    tls: Arc<ServerTls>,
}

/// `None`: it is switched off.
pub(super) async fn open(config: &AgentConfig) -> anyhow::Result<Option<OpenedServer>> {
    let Some(server) = &config.server else { return Ok(None) };
    let address = server.address;
    let listener = kubelet::bind(address).await.with_context(|| format!("listen on {address}"))?;
    let tls = ServerTls::open(server.files.clone(), &server.policy, &Pool::default()).await;
    Ok(Some(OpenedServer { listener, tls: Arc::new(tls.context("open the HTTPS server")?) }))
}

/// Starts its tasks, and the listener for `/healthz`. Returns its certificates; `None`: it is switched off.
pub(super) fn start(
    opened: Option<OpenedServer>,
    config: &AgentConfig,
    cluster: Option<&ApiClient>,
    runtime: Arc<dyn StreamingRuntime>,
    (monitor, handle, pool): (&Arc<Monitor>, &Handle, &Pool),
    (tasks, stop): (&Tasks, &CancellationToken),
) -> Option<Arc<ServerTls>> {
    if let Some(address) = config.healthz {
        tasks.drained_service("healthz-listener", kubelet::serve_healthz(address, stop.clone()));
    }
    let (Some(server), Some(OpenedServer { listener, tls })) = (&config.server, opened) else { return None };
    let feed = Arc::clone(handle.state().feed());
    let api = KubeletApi {
        node: config.node.node_name.clone(),
        paths: settings::paths(config),
        pods: PodListCache::complete(Arc::clone(&feed), pool.clone()),
        feed,
        runtime,
        status: Arc::clone(monitor) as Arc<dyn AgentStatus>,
        configz: Bytes::from(config.configz.to_string()),
        set_verbosity: Arc::new(logging::set_verbosity),
        pool: pool.clone(),
        handlers: server.handlers,
        system_logs: PathBuf::from("/var/log"),
        run_timeout: config.node.runtime_request_timeout,
        stream_idle: server.stream_idle,
    };
    let reviewer = cluster.map(|cluster| Arc::new(ApiReviewer::new(cluster)) as Arc<dyn Reviewer>);
    let access = KubeletAccess { config: server.access.clone(), reviewer };
    tracing::info!(address = %server.address, "HTTPS server listens");
    tasks.drained_service("kubelet-server", kubelet::serve(listener, tls.clone(), access, api, stop.clone()));
    Some(tls)
}
