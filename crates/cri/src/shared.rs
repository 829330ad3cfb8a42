//! A shared runtime is a runtime.

use std::sync::Arc;
use std::time::Duration;

use crate::{CriFuture, EventStream, ImageService, RuntimeService, v1};

impl<R: RuntimeService + ?Sized> RuntimeService for Arc<R> {
    fn version(&self, timeout: Duration) -> CriFuture<'_, v1::VersionResponse> {
        (**self).version(timeout)
    }

    fn status(&self, verbose: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse> {
        (**self).status(verbose, timeout)
    }

    fn runtime_config(&self, timeout: Duration) -> CriFuture<'_, v1::RuntimeConfigResponse> {
        (**self).runtime_config(timeout)
    }

    fn update_runtime_config(&self, config: v1::RuntimeConfig, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).update_runtime_config(config, timeout)
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).run_pod_sandbox(request, timeout)
    }

    fn stop_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).stop_pod_sandbox(sandbox_id, timeout)
    }

    fn remove_pod_sandbox(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).remove_pod_sandbox(sandbox_id, timeout)
    }

    fn pod_sandbox_status(
        &self,
        sandbox_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        (**self).pod_sandbox_status(sandbox_id, verbose, timeout)
    }

    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        (**self).list_pod_sandbox(filter, timeout)
    }

    fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        (**self).update_pod_sandbox_resources(request, timeout)
    }

    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).create_container(request, timeout)
    }

    fn start_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).start_container(container_id, timeout)
    }

    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).stop_container(container_id, grace_seconds, timeout)
    }

    fn remove_container(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).remove_container(container_id, timeout)
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>> {
        (**self).list_containers(filter, timeout)
    }

    fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ContainerStatusResponse> {
        (**self).container_status(container_id, verbose, timeout)
    }

    fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        (**self).update_container_resources(request, timeout)
    }

    fn reopen_container_log(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).reopen_container_log(container_id, timeout)
    }

    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        (**self).exec_sync(request, timeout)
    }

    fn exec(&self, request: v1::ExecRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).exec(request, timeout)
    }

    fn attach(&self, request: v1::AttachRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).attach(request, timeout)
    }

    fn port_forward(&self, request: v1::PortForwardRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).port_forward(request, timeout)
    }

    fn container_stats(&self, container_id: &str, timeout: Duration) -> CriFuture<'_, v1::ContainerStats> {
        (**self).container_stats(container_id, timeout)
    }

    fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::ContainerStats>> {
        (**self).list_container_stats(filter, timeout)
    }

    fn pod_sandbox_stats(&self, sandbox_id: &str, timeout: Duration) -> CriFuture<'_, v1::PodSandboxStats> {
        (**self).pod_sandbox_stats(sandbox_id, timeout)
    }

    fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandboxStats>> {
        (**self).list_pod_sandbox_stats(filter, timeout)
    }

    fn list_metric_descriptors(&self, timeout: Duration) -> CriFuture<'_, Vec<v1::MetricDescriptor>> {
        (**self).list_metric_descriptors(timeout)
    }

    fn list_pod_sandbox_metrics(&self, timeout: Duration) -> CriFuture<'_, Vec<v1::PodSandboxMetrics>> {
        (**self).list_pod_sandbox_metrics(timeout)
    }

    fn container_events(&self) -> EventStream {
        (**self).container_events()
    }
}

impl<I: ImageService + ?Sized> ImageService for Arc<I> {
    fn list_images(&self, filter: Option<v1::ImageFilter>, timeout: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        (**self).list_images(filter, timeout)
    }

    fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ImageStatusResponse> {
        (**self).image_status(image, verbose, timeout)
    }

    fn pull_image(&self, request: v1::PullImageRequest, timeout: Duration) -> CriFuture<'_, String> {
        (**self).pull_image(request, timeout)
    }

    fn remove_image(&self, image: v1::ImageSpec, timeout: Duration) -> CriFuture<'_, ()> {
        (**self).remove_image(image, timeout)
    }

    fn image_fs_info(&self, timeout: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        (**self).image_fs_info(timeout)
    }
}
