//! The kubelet's API: HTTPS on port 10250, for the API server, administrators and monitoring.
//!
//! ```text
//!  accept ─▶ connections (limits) ─▶ TLS handshake ─▶ HTTP/1.1 or h2 ─▶ authentication ─▶ authorization ─▶ router ─▶ handler
//!                                    tls: certificate    connection      x509, token,       core's access
//!                                    and CA, reloaded    limits          anonymous          rules, reviews
//! ```
//! Clients are not trusted before they are authorized: handshake, header, body, idle time, connections and reviews are bounded.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use podwright_agent::feed::PodFeed;
use podwright_agent::host::{HostPaths, Pool};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health_server::{AgentStatus, PodListCache};
use crate::streaming_proxy::StreamingRuntime;

mod access;
mod connection;
mod connections;
mod container_logs;
mod healthz;
mod phase;
mod review_cache;
mod reviews;
mod router;
mod running_pods;
mod state;
mod streams;
mod system_logs;
mod tls;

pub use access::{AccessConfig, AuthorizationMode};
pub use healthz::serve_healthz;
pub use reviews::{AccessReview, ReviewError, Reviewer, UserInfo};
pub use tls::{ServerTls, ServingSource, TlsError, TlsFiles, TlsPolicy};

/// The parts that the kubelet's API serves from.
pub struct KubeletApi {
    /// Name of the Node object.
    pub node: String,
    /// The directories of container logs.
    pub paths: HostPaths,
    /// Every pod with its current status.
    pub feed: Arc<PodFeed>,
    /// For exec, attach, port-forward, run and the list of running pods.
    pub runtime: Arc<dyn StreamingRuntime>,
    /// Health and metrics.
    pub status: Arc<dyn AgentStatus>,
    /// The list of all pods, for authorized readers.
    pub pods: PodListCache,
    /// The response of `/configz`: a JSON object.
    pub configz: Bytes,
    /// Sets the verbosity of the log.
    pub set_verbosity: Arc<dyn Fn(u8) + Send + Sync>,
    /// For blocking work on files.
    pub pool: Pool,
    /// Which routes are served.
    pub handlers: HandlerSwitches,
    /// The directory behind `/logs/`.
    pub system_logs: PathBuf,
    /// How long a command of `/run` may take.
    pub run_timeout: Duration,
    /// `streamingConnectionIdleTimeout`; `None`: no limit.
    pub stream_idle: Option<Duration>,
}

/// The switches of KubeletConfiguration for groups of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerSwitches {
    /// `enableDebuggingHandlers`
    pub debugging: bool,
    /// `enableSystemLogHandler`
    pub system_logs: bool,
    /// `enableProfilingHandler`
    pub profiling: bool,
    /// `enableDebugFlagsHandler`
    pub debug_flags: bool,
}

impl Default for HandlerSwitches {
    fn default() -> Self {
        Self { debugging: true, system_logs: true, profiling: true, debug_flags: true }
    }
}

/// Who may use the API.
pub struct KubeletAccess {
    /// The ways to authenticate, and the authorization.
    pub config: AccessConfig,
    /// Reviews by the API server; `None`: the node is standalone.
    pub reviewer: Option<Arc<dyn Reviewer>>,
}

/// Binds the address. Done before other parts start, so that an address in use is reported early.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `stop` is cancelled; reloads certificate and CA when their files change.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerTls>,
    access: KubeletAccess,
    api: KubeletApi,
    stop: CancellationToken,
) {
    let pool = api.pool.clone();
    let access = access::AccessControl::new(access, Arc::clone(&tls), api.node.clone());
    let state = Arc::new(state::ServerState::new(api, access, stop.clone()));
    tokio::join!(connections::accept(listener, Arc::clone(&tls), state, stop.clone()), tls.follow_files(pool, stop));
}

/// The address of a client, without the IPv4 mapping of a socket for both families.
fn client_ip(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

#[cfg(test)]
mod tests;
