//! The engine behind the trait of the CRI: each call has its timeout here, and its work in [`crate::verbs`].

use std::sync::Arc;
use std::time::Duration;

use podwright_cri::{Code, CriError, CriFuture, EventStream, RuntimeService, v1};

use crate::context::EngineContext;
use crate::driver::DriverHandle;
use crate::streaming::StreamingServer;
use crate::verbs::{self, VerbContext};

/// The runtime service of an engine, one method per RPC.
#[derive(Debug)]
pub(super) struct EngineRuntime {
    pub(super) context: Arc<EngineContext>,
    pub(super) driver: Arc<DriverHandle>,
    pub(super) streaming: StreamingServer,
}

impl EngineRuntime {
    fn calls(&self) -> VerbContext<'_> {
        VerbContext { context: &self.context, driver: &self.driver }
    }
}

/// Waits for a call for at most `timeout`. What it has begun goes on.
fn within<'a, T: Send + 'a>(
    call: &'static str,
    timeout: Duration,
    work: impl Future<Output = Result<T, CriError>> + Send + 'a,
) -> CriFuture<'a, T> {
    Box::pin(async move {
        match tokio::time::timeout(timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(CriError::new(Code::DeadlineExceeded, call, format!("no result within {timeout:?}"))),
        }
    })
}

fn ready<'a, T: Send + 'a>(result: Result<T, CriError>) -> CriFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl RuntimeService for EngineRuntime {
    fn version(&self, _timeout: Duration) -> CriFuture<'_, v1::VersionResponse> {
        ready(Ok(verbs::version()))
    }

    fn status(&self, verbose: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse> {
        within("Status", timeout, verbs::status(self.calls(), verbose))
    }

    fn runtime_config(&self, _timeout: Duration) -> CriFuture<'_, v1::RuntimeConfigResponse> {
        ready(Ok(verbs::runtime_config()))
    }

    fn update_runtime_config(&self, config: v1::RuntimeConfig, timeout: Duration) -> CriFuture<'_, ()> {
        within("UpdateRuntimeConfig", timeout, verbs::update_runtime_config(self.calls(), config))
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        within("RunPodSandbox", timeout, verbs::run_pod_sandbox(self.calls(), request))
    }

    fn stop_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        within("StopPodSandbox", timeout, verbs::stop_pod_sandbox(self.calls(), sandbox_id.to_owned()))
    }

    fn remove_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        within("RemovePodSandbox", timeout, verbs::remove_pod_sandbox(self.calls(), sandbox_id.to_owned()))
    }

    fn pod_sandbox_status(
        &self,
        sandbox_id: &str,
        verbose: bool,
        _timeout: Duration,
    ) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        ready(verbs::pod_sandbox_status(self.calls(), sandbox_id, verbose))
    }

    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        _timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        ready(Ok(verbs::list_pod_sandbox(self.calls(), filter)))
    }

    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String> {
        within("CreateContainer", timeout, verbs::create_container(self.calls(), request))
    }

    fn start_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        within("StartContainer", timeout, verbs::start_container(self.calls(), container_id.to_owned()))
    }

    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> CriFuture<'_, ()> {
        let grace = Duration::from_secs(grace_seconds.into());
        within("StopContainer", timeout, verbs::stop_container(self.calls(), container_id.to_owned(), grace))
    }

    fn remove_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        within("RemoveContainer", timeout, verbs::remove_container(self.calls(), container_id.to_owned()))
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        _timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>> {
        ready(Ok(verbs::list_containers(self.calls(), filter)))
    }

    fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ContainerStatusResponse> {
        within("ContainerStatus", timeout, verbs::container_status(self.calls(), container_id.to_owned(), verbose))
    }

    fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        within("UpdateContainerResources", timeout, verbs::update_container_resources(self.calls(), request))
    }

    fn reopen_container_log(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        within("ReopenContainerLog", timeout, verbs::reopen_container_log(self.calls(), container_id.to_owned()))
    }

    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        within("ExecSync", timeout, verbs::exec_sync(self.calls(), request))
    }

    fn exec(&self, request: v1::ExecRequest, _timeout: Duration) -> CriFuture<'_, String> {
        ready(self.streaming.exec_url(request))
    }

    fn attach(&self, request: v1::AttachRequest, _timeout: Duration) -> CriFuture<'_, String> {
        ready(self.streaming.attach_url(request))
    }

    fn port_forward(&self, request: v1::PortForwardRequest, _timeout: Duration) -> CriFuture<'_, String> {
        ready(self.streaming.port_forward_url(request))
    }

    fn container_stats(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, v1::ContainerStats> {
        let id = container_id.to_owned();
        within("ContainerStats", timeout, verbs::container_stats(self.calls(), id, timeout))
    }

    fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::ContainerStats>> {
        within("ListContainerStats", timeout, verbs::list_container_stats(self.calls(), filter, timeout))
    }

    fn pod_sandbox_stats(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, v1::PodSandboxStats> {
        let id = sandbox_id.to_owned();
        within("PodSandboxStats", timeout, verbs::pod_sandbox_stats(self.calls(), id, timeout))
    }

    fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandboxStats>> {
        within("ListPodSandboxStats", timeout, verbs::list_pod_sandbox_stats(self.calls(), filter, timeout))
    }

    fn list_metric_descriptors(&self, _timeout: Duration) -> CriFuture<'_, Vec<v1::MetricDescriptor>> {
        ready(Ok(verbs::list_metric_descriptors()))
    }

    fn list_pod_sandbox_metrics(&self, timeout: Duration) -> CriFuture<'_, Vec<v1::PodSandboxMetrics>> {
        within("ListPodSandboxMetrics", timeout, verbs::list_pod_sandbox_metrics(self.calls(), timeout))
    }

    fn container_events(&self) -> EventStream {
        verbs::container_events(self.calls())
    }
}
