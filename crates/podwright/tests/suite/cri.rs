//! Queries the runtime directly.

use std::path::Path;
use std::time::Duration;

use podwright_cri::labels::{containers_of_pod, sandboxes_of_pod};
use podwright_cri::v1::{Container, ContainerStatus, PodSandbox, PodSandboxStatus};
use podwright_cri::{ImageService, RemoteRuntime, RuntimeService};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::TestNode;

const LIMIT: Duration = Duration::from_secs(10);

/// The sandboxes and containers of a pod.
pub(crate) fn of_pod(node: &TestNode, uid: &str) -> (Vec<PodSandbox>, Vec<Container>) {
    query(node, async |runtime| {
        let sandboxes = runtime.list_pod_sandbox(Some(sandboxes_of_pod(uid)), LIMIT).await.expect("a list");
        let containers = runtime.list_containers(Some(containers_of_pod(uid)), LIMIT).await.expect("a list");
        (sandboxes, containers)
    })
}

/// A pod's newest sandbox, its configuration as the runtime prints it, and the pod's containers.
pub(crate) struct Described {
    pub(crate) sandbox: PodSandboxStatus,
    pub(crate) config: Value,
    pub(crate) containers: Vec<ContainerStatus>,
}

/// Everything that the runtime behind this socket reports about a pod.
pub(crate) fn described(socket: &Path, uid: &str) -> Described {
    query_socket(socket, async |runtime| {
        let sandboxes = runtime.list_pod_sandbox(Some(sandboxes_of_pod(uid)), LIMIT).await.expect("a list");
        let newest = sandboxes.iter().max_by_key(|sandbox| sandbox.created_at).expect("a sandbox");
        let status = runtime.pod_sandbox_status(&newest.id, true, LIMIT).await.expect("its status");
        let info: Value = serde_json::from_str(status.info.get("info").expect("a verbose status")).expect("JSON");
        let mut containers = vec![];
        for listed in runtime.list_containers(Some(containers_of_pod(uid)), LIMIT).await.expect("a list") {
            let status = runtime.container_status(&listed.id, false, LIMIT).await.expect("its status");
            containers.extend(status.status);
        }
        let sandbox = status.status.expect("a status");
        Described { sandbox, config: info["config"].clone(), containers }
    })
}

/// Kills the first process of a container, behind the back of the runtime.
pub(crate) fn kill(node: &TestNode, id: &str) {
    let pid = query(node, async |runtime| {
        let status = runtime.container_status(id, true, LIMIT).await.expect("its status");
        let info: Value = serde_json::from_str(status.info.get("info").expect("a verbose status")).expect("JSON");
        info["pid"].as_i64().expect("it runs")
    });
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::KILL).expect("killed");
}

/// The names of all images.
pub(crate) fn images(node: &TestNode) -> Vec<String> {
    query(node, async |runtime| {
        let images = runtime.list_images(None, LIMIT).await.expect("a list");
        images.into_iter().flat_map(|image| image.repo_tags).collect()
    })
}

/// An annotation of a container; empty if absent.
pub(crate) fn annotation(container: &Container, key: &str) -> String {
    container.annotations.get(key).cloned().unwrap_or_default()
}

fn query<T>(node: &TestNode, query: impl AsyncFnOnce(&RemoteRuntime) -> T) -> T {
    query_socket(&node.runtime.socket(), query)
}

fn query_socket<T>(socket: &Path, query: impl AsyncFnOnce(&RemoteRuntime) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let remote = RemoteRuntime::connect(&format!("unix://{}", socket.display())).expect("an endpoint");
        query(&remote).await
    })
}
