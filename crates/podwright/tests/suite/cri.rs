//! The runtime asked directly, past the agent.

use std::time::Duration;

use podwright_cri::labels::{containers_of_pod, sandboxes_of_pod};
use podwright_cri::v1::{Container, PodSandbox};
use podwright_cri::{RemoteRuntime, RuntimeService};

use super::Bed;

const LIMIT: Duration = Duration::from_secs(10);

/// The sandboxes and containers of a pod.
pub(crate) fn of_pod(bed: &Bed, uid: &str) -> (Vec<PodSandbox>, Vec<Container>) {
    ask(bed, async |runtime| {
        let sandboxes = runtime.list_pod_sandbox(Some(sandboxes_of_pod(uid)), LIMIT).await.expect("a list");
        let containers = runtime.list_containers(Some(containers_of_pod(uid)), LIMIT).await.expect("a list");
        (sandboxes, containers)
    })
}

/// An annotation of a container, or nothing.
pub(crate) fn annotation(container: &Container, key: &str) -> String {
    container.annotations.get(key).cloned().unwrap_or_default()
}

fn ask<T>(bed: &Bed, question: impl AsyncFnOnce(&RemoteRuntime) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let remote = RemoteRuntime::connect(&bed.containerd.endpoint()).expect("an endpoint");
        question(&remote).await
    })
}
