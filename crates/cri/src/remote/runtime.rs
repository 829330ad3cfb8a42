//! `RuntimeService` over the socket.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future, stream};

use super::{RemoteRuntime, request, require, require_id, within};
use crate::{CriError, CriFuture, EventStream, RuntimeService, v1};

impl RuntimeService for RemoteRuntime {
    fn version(&self, timeout: Duration) -> CriFuture<'_, v1::VersionResponse> {
        let mut client = self.runtime.clone();
        let request = request(v1::VersionRequest { version: API_VERSION.to_owned() }, timeout);
        Box::pin(async move { within("Version", timeout, client.version(request)).await })
    }

    fn status(&self, verbose: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse> {
        let mut client = self.runtime.clone();
        let request = request(v1::StatusRequest { verbose }, timeout);
        Box::pin(async move { within("Status", timeout, client.status(request)).await })
    }

    fn runtime_config(&self, timeout: Duration) -> CriFuture<'_, v1::RuntimeConfigResponse> {
        let mut client = self.runtime.clone();
        let request = request(v1::RuntimeConfigRequest {}, timeout);
        Box::pin(async move { within("RuntimeConfig", timeout, client.runtime_config(request)).await })
    }

    fn update_runtime_config(&self, config: v1::RuntimeConfig, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) }, timeout);
        Box::pin(async move {
            within("UpdateRuntimeConfig", timeout, client.update_runtime_config(request)).await.map(drop)
        })
    }

    fn run_pod_sandbox(&self, message: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("RunPodSandbox", timeout, client.run_pod_sandbox(request)).await?;
            require_id("RunPodSandbox", response.pod_sandbox_id)
        })
    }

    fn stop_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::StopPodSandboxRequest { pod_sandbox_id: sandbox_id.to_owned() }, timeout);
        Box::pin(async move { within("StopPodSandbox", timeout, client.stop_pod_sandbox(request)).await.map(drop) })
    }

    fn remove_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox_id.to_owned() }, timeout);
        Box::pin(async move { within("RemovePodSandbox", timeout, client.remove_pod_sandbox(request)).await.map(drop) })
    }

    fn pod_sandbox_status(
        &self,
        sandbox_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        let mut client = self.runtime.clone();
        let request = request(v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.to_owned(), verbose }, timeout);
        Box::pin(async move {
            let response = within("PodSandboxStatus", timeout, client.pod_sandbox_status(request)).await?;
            let status = require("PodSandboxStatus", "a status", response.status.as_ref())?;
            if status.id.is_empty() || status.metadata.is_none() {
                return Err(CriError::malformed("PodSandboxStatus", "the runtime's status has no id or no metadata"));
            }
            Ok(response)
        })
    }

    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListPodSandboxRequest { filter }, timeout);
        Box::pin(async move { Ok(within("ListPodSandbox", timeout, client.list_pod_sandbox(request)).await?.items) })
    }

    fn update_pod_sandbox_resources(
        &self,
        message: v1::UpdatePodSandboxResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            within("UpdatePodSandboxResources", timeout, client.update_pod_sandbox_resources(request)).await.map(drop)
        })
    }

    fn create_container(&self, message: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("CreateContainer", timeout, client.create_container(request)).await?;
            require_id("CreateContainer", response.container_id)
        })
    }

    fn start_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::StartContainerRequest { container_id: container_id.to_owned() }, timeout);
        Box::pin(async move { within("StartContainer", timeout, client.start_container(request)).await.map(drop) })
    }

    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(
            v1::StopContainerRequest { container_id: container_id.to_owned(), timeout: grace_seconds.into() },
            timeout,
        );
        Box::pin(async move { within("StopContainer", timeout, client.stop_container(request)).await.map(drop) })
    }

    fn remove_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::RemoveContainerRequest { container_id: container_id.to_owned() }, timeout);
        Box::pin(async move { within("RemoveContainer", timeout, client.remove_container(request)).await.map(drop) })
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListContainersRequest { filter }, timeout);
        Box::pin(
            async move { Ok(within("ListContainers", timeout, client.list_containers(request)).await?.containers) },
        )
    }

    fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ContainerStatusResponse> {
        let mut client = self.runtime.clone();
        let request = request(v1::ContainerStatusRequest { container_id: container_id.to_owned(), verbose }, timeout);
        Box::pin(async move {
            let response = within("ContainerStatus", timeout, client.container_status(request)).await?;
            let status = require("ContainerStatus", "a status", response.status.as_ref())?;
            if status.id.is_empty() || status.metadata.is_none() {
                return Err(CriError::malformed("ContainerStatus", "the runtime's status has no id or no metadata"));
            }
            Ok(response)
        })
    }

    fn update_container_resources(
        &self,
        message: v1::UpdateContainerResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            within("UpdateContainerResources", timeout, client.update_container_resources(request)).await.map(drop)
        })
    }

    fn reopen_container_log(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.runtime.clone();
        let request = request(v1::ReopenContainerLogRequest { container_id: container_id.to_owned() }, timeout);
        Box::pin(
            async move { within("ReopenContainerLog", timeout, client.reopen_container_log(request)).await.map(drop) },
        )
    }

    fn exec_sync(&self, message: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move { within("ExecSync", timeout, client.exec_sync(request)).await })
    }

    fn exec(&self, message: v1::ExecRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("Exec", timeout, client.exec(request)).await?;
            require("Exec", "a URL", Some(response.url).filter(|url| !url.is_empty()))
        })
    }

    fn attach(&self, message: v1::AttachRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("Attach", timeout, client.attach(request)).await?;
            require("Attach", "a URL", Some(response.url).filter(|url| !url.is_empty()))
        })
    }

    fn port_forward(&self, message: v1::PortForwardRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.runtime.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("PortForward", timeout, client.port_forward(request)).await?;
            require("PortForward", "a URL", Some(response.url).filter(|url| !url.is_empty()))
        })
    }

    fn container_stats(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, v1::ContainerStats> {
        let mut client = self.runtime.clone();
        let request = request(v1::ContainerStatsRequest { container_id: container_id.to_owned() }, timeout);
        Box::pin(async move {
            let response = within("ContainerStats", timeout, client.container_stats(request)).await?;
            require("ContainerStats", "stats", response.stats)
        })
    }

    fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::ContainerStats>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListContainerStatsRequest { filter }, timeout);
        Box::pin(
            async move { Ok(within("ListContainerStats", timeout, client.list_container_stats(request)).await?.stats) },
        )
    }

    fn pod_sandbox_stats(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, v1::PodSandboxStats> {
        let mut client = self.runtime.clone();
        let request = request(v1::PodSandboxStatsRequest { pod_sandbox_id: sandbox_id.to_owned() }, timeout);
        Box::pin(async move {
            let response = within("PodSandboxStats", timeout, client.pod_sandbox_stats(request)).await?;
            require("PodSandboxStats", "stats", response.stats)
        })
    }

    fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandboxStats>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListPodSandboxStatsRequest { filter }, timeout);
        Box::pin(async move {
            Ok(within("ListPodSandboxStats", timeout, client.list_pod_sandbox_stats(request)).await?.stats)
        })
    }

    fn list_metric_descriptors(&self, timeout: Duration) -> CriFuture<'_, Vec<v1::MetricDescriptor>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListMetricDescriptorsRequest {}, timeout);
        Box::pin(async move {
            Ok(within("ListMetricDescriptors", timeout, client.list_metric_descriptors(request)).await?.descriptors)
        })
    }

    fn list_pod_sandbox_metrics(&self, timeout: Duration) -> CriFuture<'_, Vec<v1::PodSandboxMetrics>> {
        let mut client = self.runtime.clone();
        let request = request(v1::ListPodSandboxMetricsRequest {}, timeout);
        Box::pin(async move {
            Ok(within("ListPodSandboxMetrics", timeout, client.list_pod_sandbox_metrics(request)).await?.pod_metrics)
        })
    }

    // No timeout, not even for the subscription: the Go runtimes send their headers with the first event.
    fn container_events(&self) -> EventStream {
        let mut client = self.runtime.clone();
        let failed = |status| CriError::from_status("GetContainerEvents", &status);
        let events = async move {
            match client.get_container_events(v1::GetEventsRequest {}).await {
                Ok(response) => response.into_inner().map(move |event| event.map_err(failed)).left_stream(),
                Err(status) => stream::iter([Err(failed(status))]).right_stream(),
            }
        };
        Box::pin(events.flatten_stream().scan(false, |ended, event| {
            let last = event.is_err();
            future::ready((!std::mem::replace(ended, last)).then_some(event))
        }))
    }
}

/// The value that kubelets have always sent; runtimes ignore it.
const API_VERSION: &str = "0.1.0";
