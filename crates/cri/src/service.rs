//! The two traits every runtime is seen through: one method a call of the protocol.
//!
//! Rules that hold for every method:
//! - **A time limit.** `timeout` is how long the caller waits. When it passes, the call fails with
//!   [`Code::DeadlineExceeded`](crate::Code), and is in doubt.
//! - **Dropping the future abandons the wait**, nothing more: the runtime is told on a best effort, and what it was
//!   asked to do may be done, be undone, or be half done. The call is then in doubt exactly as after a deadline, and its
//!   object is looked up before anything follows. A stop that is abandoned sends no SIGKILL. Run, Create and Start are
//!   therefore not to be dropped lightly; a pull may be.
//! - **Calls are independent.** Any number may be under way; an implementation keeps no order between them.
//! - **Futures borrow only the service**, so that they outlive the arguments.
//! - Calls that stop or remove succeed when there is nothing left to stop; a remote runtime may still answer not found,
//!   which callers take for success.
//! - What older runtimes lack has a default body that answers [`Code::Unimplemented`](crate::Code).

use std::{pin::Pin, time::Duration};

use futures::Stream;

use crate::{CriError, v1};

/// A future in a box, so that the traits can be used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a call gives, some time.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, CriError>>;

/// Container events as they come. Ends after its first error; the end, with or without one, means that events may have
/// been missed.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, CriError>> + Send>>;

/// Sandboxes and containers of one runtime.
pub trait RuntimeService: Send + Sync + 'static {
    /// Name and version of the runtime.
    fn version(&self, timeout: Duration) -> Answer<'_, v1::VersionResponse>;

    /// Whether runtime and network are ready, and what the handlers can do.
    fn status(&self, verbose: bool, timeout: Duration) -> Answer<'_, v1::StatusResponse>;

    /// The runtime's cgroup driver.
    fn runtime_config(&self, _timeout: Duration) -> Answer<'_, v1::RuntimeConfigResponse> {
        lacking("RuntimeConfig")
    }

    /// Tells the runtime the node's pod CIDR.
    fn update_runtime_config(&self, _config: v1::RuntimeConfig, _timeout: Duration) -> Answer<'_, ()> {
        lacking("UpdateRuntimeConfig")
    }

    /// Makes a sandbox and starts it, network included. Its id.
    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> Answer<'_, String>;

    /// Kills what runs in the sandbox and gives its network back. May be repeated.
    fn stop_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> Answer<'_, ()>;

    /// Removes the sandbox and every container in it, by force.
    fn remove_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> Answer<'_, ()>;

    /// One sandbox. `status` is there, with an id and metadata.
    fn pod_sandbox_status(
        &self,
        sandbox_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> Answer<'_, v1::PodSandboxStatusResponse>;

    /// All sandboxes, or those the filter lets through.
    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> Answer<'_, Vec<v1::PodSandbox>>;

    /// New limits for the pod as a whole.
    fn update_pod_sandbox_resources(
        &self,
        _request: v1::UpdatePodSandboxResourcesRequest,
        _timeout: Duration,
    ) -> Answer<'_, ()> {
        lacking("UpdatePodSandboxResources")
    }

    /// Makes a container in a sandbox that is ready. Its id.
    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> Answer<'_, String>;

    /// Starts a created container.
    fn start_container(&self, container_id: &str, timeout: Duration) -> Answer<'_, ()>;

    /// Sends the stop signal, waits `grace_seconds`, then SIGKILL; returns when the container is gone. `timeout` must
    /// be longer than the grace. A second stop with a shorter grace shortens the first.
    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> Answer<'_, ()>;

    /// Removes a container, by force if it runs.
    fn remove_container(&self, container_id: &str, timeout: Duration) -> Answer<'_, ()>;

    /// All containers, or those the filter lets through.
    fn list_containers(&self, filter: Option<v1::ContainerFilter>, timeout: Duration)
    -> Answer<'_, Vec<v1::Container>>;

    /// One container. `status` is there, with an id and metadata.
    fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> Answer<'_, v1::ContainerStatusResponse>;

    /// New limits for one container.
    fn update_container_resources(
        &self,
        _request: v1::UpdateContainerResourcesRequest,
        _timeout: Duration,
    ) -> Answer<'_, ()> {
        lacking("UpdateContainerResources")
    }

    /// Opens the log file anew, after it was renamed.
    fn reopen_container_log(&self, container_id: &str, timeout: Duration) -> Answer<'_, ()>;

    /// Runs a command and waits for it. A command that overruns its own `timeout` ends as a deadline exceeded.
    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> Answer<'_, v1::ExecSyncResponse>;

    /// Prepares an exec; the URL of the streaming server to go to.
    fn exec(&self, _request: v1::ExecRequest, _timeout: Duration) -> Answer<'_, String> {
        lacking("Exec")
    }

    /// Prepares an attach; the URL of the streaming server to go to.
    fn attach(&self, _request: v1::AttachRequest, _timeout: Duration) -> Answer<'_, String> {
        lacking("Attach")
    }

    /// Prepares a port-forward; the URL of the streaming server to go to.
    fn port_forward(&self, _request: v1::PortForwardRequest, _timeout: Duration) -> Answer<'_, String> {
        lacking("PortForward")
    }

    /// Usage of one container.
    fn container_stats(&self, _container_id: &str, _timeout: Duration) -> Answer<'_, v1::ContainerStats> {
        lacking("ContainerStats")
    }

    /// Usage of all containers, or of those the filter lets through.
    fn list_container_stats(
        &self,
        _filter: Option<v1::ContainerStatsFilter>,
        _timeout: Duration,
    ) -> Answer<'_, Vec<v1::ContainerStats>> {
        lacking("ListContainerStats")
    }

    /// Usage of one pod.
    fn pod_sandbox_stats(&self, _sandbox_id: &str, _timeout: Duration) -> Answer<'_, v1::PodSandboxStats> {
        lacking("PodSandboxStats")
    }

    /// Usage of all pods, or of those the filter lets through.
    fn list_pod_sandbox_stats(
        &self,
        _filter: Option<v1::PodSandboxStatsFilter>,
        _timeout: Duration,
    ) -> Answer<'_, Vec<v1::PodSandboxStats>> {
        lacking("ListPodSandboxStats")
    }

    /// Subscribes to container events. There is no time limit and no answer to wait for: real runtimes send their first
    /// byte with the first event, so a runtime that cannot be reached or has no events says so as the stream's first item.
    fn container_events(&self) -> EventStream {
        Box::pin(futures::stream::iter([Err(CriError::unimplemented("GetContainerEvents"))]))
    }
}

/// Images of one runtime.
pub trait ImageService: Send + Sync + 'static {
    /// All images, or those the filter lets through.
    fn list_images(&self, filter: Option<v1::ImageFilter>, timeout: Duration) -> Answer<'_, Vec<v1::Image>>;

    /// One image; `image` is absent when it is not there, which is not an error.
    fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
        timeout: Duration,
    ) -> Answer<'_, v1::ImageStatusResponse>;

    /// Pulls an image; the reference to create containers with. Dropping the future cancels the pull.
    fn pull_image(&self, request: v1::PullImageRequest, timeout: Duration) -> Answer<'_, String>;

    /// Removes an image; fine when it is not there.
    fn remove_image(&self, image: v1::ImageSpec, timeout: Duration) -> Answer<'_, ()>;

    /// Usage of the filesystems that images and containers live on.
    fn image_fs_info(&self, timeout: Duration) -> Answer<'_, v1::ImageFsInfoResponse>;
}

/// The answer of a runtime that does not have the call.
fn lacking<'a, T: Send + 'a>(call: &'static str) -> Answer<'a, T> {
    Box::pin(std::future::ready(Err(CriError::unimplemented(call))))
}
