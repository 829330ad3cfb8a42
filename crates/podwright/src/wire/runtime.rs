//! The container runtime: the engine in this process, or another one behind a socket; and the images of the node.

use std::sync::Arc;

use podwright_cri::{ImageService, RemoteRuntime, RuntimeService};
use podwright_engine::Engine;
use podwright_linux::rlimit;
use podwright_server::local::{ImageErrorKind, ImageRequestError, NodeImages};
use podwright_tasks::{Pool, Tasks};

use crate::config::AgentConfig;
use crate::embedded::{self, EmbeddedRuntime};
use crate::store_images::StoreImages;

/// The runtime of the agent.
pub(super) struct OpenedRuntime {
    pub(super) runtime: Arc<dyn RuntimeService>,
    pub(super) images: Arc<dyn ImageService>,
    /// For the local API: an error if another program keeps the images.
    pub(super) node_images: Result<Arc<dyn NodeImages>, ImageRequestError>,
    /// `None`: the runtime is another process.
    pub(super) engine: Option<Arc<Engine>>,
}

/// Opens the embedded engine in this process, or connects to the runtime that is configured instead.
pub(super) async fn open(config: &AgentConfig, tasks: &Tasks) -> anyhow::Result<OpenedRuntime> {
    let (endpoint, image_endpoint) = (&config.runtime.endpoint, &config.runtime.image_endpoint);
    if !config.runtime.is_embedded() {
        // Each stream of the kubelet's API takes several descriptors. The embedded engine raises the limit itself.
        if let Err(error) = rlimit::raise_open_files() {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
        let runtime = Arc::new(RemoteRuntime::connect(endpoint)?);
        let images = Arc::new(RemoteRuntime::connect(image_endpoint)?);
        let node_images = Err(kept_elsewhere(endpoint, image_endpoint));
        return Ok(OpenedRuntime { runtime, images, node_images, engine: None });
    }
    let EmbeddedRuntime { engine, images } = embedded::open_for_agent(config, tasks).await?;
    let node_images: Arc<dyn NodeImages> = Arc::new(StoreImages::of_engine(&images));
    let runtime = engine.runtime();
    Ok(OpenedRuntime { runtime, images, node_images: Ok(node_images), engine: Some(engine) })
}

/// Ends the engine's own processes, and its network if there are no pods. Containers keep running.
pub(super) async fn close(engine: Option<Arc<Engine>>) {
    let Some(engine) = engine else { return };
    if let Err(error) = Pool::default().run_to_end("engine", move || engine.close()).await {
        tracing::warn!(%error, "the engine was not closed");
    }
}

/// Names the tools of the runtime, which can do what is asked of this agent.
fn kept_elsewhere(endpoint: &str, image_endpoint: &str) -> ImageRequestError {
    let images = if endpoint == image_endpoint { String::new() } else { format!(" --image-endpoint {image_endpoint}") };
    let address = image_endpoint.strip_prefix("unix://").unwrap_or(image_endpoint);
    let message = format!(
        "this agent runs containers on {endpoint}, and the images are kept there: use `crictl --runtime-endpoint {endpoint}{images}` \
         with images, pull, inspecti or rmi, and on containerd `ctr --address {address} --namespace k8s.io images` with import or export"
    );
    ImageRequestError::new(ImageErrorKind::Elsewhere, message)
}
