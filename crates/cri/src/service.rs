//! The two traits of a runtime: one method per call of the protocol.
//!
//! Rules for every method:
//! - **A timeout.** `timeout` is how long the caller waits. When it expires, the call fails with
//!   [`Code::DeadlineExceeded`](crate::Code), and is in doubt.
//! - **Dropping the future only abandons the wait**: the cancellation reaches the runtime on a best effort, and the effect may be
//!   complete, absent, or partial. The call is then in doubt exactly as after a deadline, and the caller observes the object
//!   before it continues. An abandoned stop sends no SIGKILL. Therefore do not drop Run, Create and Start without need; a pull
//!   may be dropped.
//! - **Calls are independent.** Any number may run concurrently; an implementation guarantees no order between them.
//! - **Futures borrow only the service**, so that they outlive the arguments.
//! - Calls that stop or remove succeed if the object is already stopped or removed; a remote runtime may still return NotFound,
//!   which callers treat as success.
//! - Calls that older runtimes lack have a default body that returns [`Code::Unimplemented`](crate::Code).

use std::{pin::Pin, time::Duration};

use futures::Stream;

use crate::{CriError, v1};

/// A boxed future, so that the traits can be used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future of a call's result.
pub type CriFuture<'a, T> = BoxFuture<'a, Result<T, CriError>>;

/// A stream of container events. It ends after its first error; after its end, with or without an error, events may have been
/// missed.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, CriError>> + Send>>;

/// Sandboxes and containers of one runtime.
pub trait RuntimeService: Send + Sync + 'static {
    /// Name and version of the runtime.
    fn version(&self, timeout: Duration) -> CriFuture<'_, v1::VersionResponse>;

    /// Whether runtime and network are ready, and the features of the runtime handlers.
    fn status(&self, verbose: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse>;

    /// The runtime's cgroup driver.
    fn runtime_config(&self, _timeout: Duration) -> CriFuture<'_, v1::RuntimeConfigResponse> {
        unimplemented("RuntimeConfig")
    }

    /// Sends the node's pod CIDR to the runtime.
    fn update_runtime_config(&self, _config: v1::RuntimeConfig, _timeout: Duration) -> CriFuture<'_, ()> {
        unimplemented("UpdateRuntimeConfig")
    }

    /// Creates and starts a sandbox with its network; returns its id.
    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String>;

    /// Kills the processes of the sandbox and releases its network. May be repeated.
    fn stop_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()>;

    /// Removes the sandbox and every container in it, by force.
    fn remove_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()>;

    /// One sandbox. `status` is always set, with an id and metadata.
    fn pod_sandbox_status(
        &self,
        sandbox_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::PodSandboxStatusResponse>;

    /// All sandboxes, or those that match the filter.
    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>>;

    /// Sets new resource limits for the pod as a whole.
    fn update_pod_sandbox_resources(
        &self,
        _request: v1::UpdatePodSandboxResourcesRequest,
        _timeout: Duration,
    ) -> CriFuture<'_, ()> {
        unimplemented("UpdatePodSandboxResources")
    }

    /// Creates a container in a sandbox that is ready; returns its id.
    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String>;

    /// Starts a created container.
    fn start_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()>;

    /// Sends the stop signal, waits `grace_seconds`, then sends SIGKILL; returns when the container has exited. `timeout` must be
    /// longer than the grace period. A second stop with a shorter grace period shortens the first.
    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> CriFuture<'_, ()>;

    /// Removes a container, by force if it runs.
    fn remove_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()>;

    /// All containers, or those that match the filter.
    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>>;

    /// One container. `status` is always set, with an id and metadata.
    fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ContainerStatusResponse>;

    /// Sets new resource limits for one container.
    fn update_container_resources(
        &self,
        _request: v1::UpdateContainerResourcesRequest,
        _timeout: Duration,
    ) -> CriFuture<'_, ()> {
        unimplemented("UpdateContainerResources")
    }

    /// Reopens the log file after it was renamed.
    fn reopen_container_log(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()>;

    /// Runs a command and waits for it. A command that exceeds the request's `timeout` fails with DeadlineExceeded.
    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse>;

    /// Prepares an exec; returns the URL on the streaming server.
    fn exec(&self, _request: v1::ExecRequest, _timeout: Duration) -> CriFuture<'_, String> {
        unimplemented("Exec")
    }

    /// Prepares an attach; returns the URL on the streaming server.
    fn attach(&self, _request: v1::AttachRequest, _timeout: Duration) -> CriFuture<'_, String> {
        unimplemented("Attach")
    }

    /// Prepares a port-forward; returns the URL on the streaming server.
    fn port_forward(&self, _request: v1::PortForwardRequest, _timeout: Duration) -> CriFuture<'_, String> {
        unimplemented("PortForward")
    }

    /// Usage of one container.
    fn container_stats(&self, _container_id: &str, _timeout: Duration) -> CriFuture<'_, v1::ContainerStats> {
        unimplemented("ContainerStats")
    }

    /// Usage of all containers, or of those that match the filter.
    fn list_container_stats(
        &self,
        _filter: Option<v1::ContainerStatsFilter>,
        _timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::ContainerStats>> {
        unimplemented("ListContainerStats")
    }

    /// Usage of one pod.
    fn pod_sandbox_stats(&self, _sandbox_id: &str, _timeout: Duration) -> CriFuture<'_, v1::PodSandboxStats> {
        unimplemented("PodSandboxStats")
    }

    /// Usage of all pods, or of those that match the filter.
    fn list_pod_sandbox_stats(
        &self,
        _filter: Option<v1::PodSandboxStatsFilter>,
        _timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandboxStats>> {
        unimplemented("ListPodSandboxStats")
    }

    /// What [`Self::list_pod_sandbox_metrics`] returns, the same for the life of the runtime.
    fn list_metric_descriptors(&self, _timeout: Duration) -> CriFuture<'_, Vec<v1::MetricDescriptor>> {
        unimplemented("ListMetricDescriptors")
    }

    /// Metrics of all pods that are ready, and of their containers.
    fn list_pod_sandbox_metrics(&self, _timeout: Duration) -> CriFuture<'_, Vec<v1::PodSandboxMetrics>> {
        unimplemented("ListPodSandboxMetrics")
    }

    /// Subscribes to container events. There is no timeout and no result to wait for: real runtimes send their response headers
    /// with the first event, so the error of a runtime that is unreachable or has no events is the stream's first item.
    fn container_events(&self) -> EventStream {
        Box::pin(futures::stream::iter([Err(CriError::unimplemented("GetContainerEvents"))]))
    }
}

/// Images of one runtime.
pub trait ImageService: Send + Sync + 'static {
    /// All images, or those that match the filter.
    fn list_images(&self, filter: Option<v1::ImageFilter>, timeout: Duration) -> CriFuture<'_, Vec<v1::Image>>;

    /// One image; a missing image is not an error, `image` is then `None`.
    fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ImageStatusResponse>;

    /// Pulls an image; returns the reference to create containers with. Dropping the future cancels the pull.
    fn pull_image(&self, request: v1::PullImageRequest, timeout: Duration) -> CriFuture<'_, String>;

    /// Removes an image; succeeds if it does not exist.
    fn remove_image(&self, image: v1::ImageSpec, timeout: Duration) -> CriFuture<'_, ()>;

    /// Usage of the filesystems of images and containers.
    fn image_fs_info(&self, timeout: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse>;
}

/// The result of a call that the runtime does not implement.
fn unimplemented<'a, T: Send + 'a>(call: &'static str) -> CriFuture<'a, T> {
    Box::pin(std::future::ready(Err(CriError::unimplemented(call))))
}
