//! The gRPC services: each call of the protocol becomes a call of the traits.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{
    CriError, ImageService, RuntimeService,
    v1::{self, image_service_server, runtime_service_server},
};

/// Implements tonic's server traits for one runtime: one method per RPC of the protocol.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) runtime: Arc<dyn RuntimeService>,
    pub(super) images: Arc<dyn ImageService>,
    /// Cancelled when the shutdown starts: event streams end.
    pub(super) closing: CancellationToken,
    /// Cancelled when the drain period is over: calls are abandoned.
    pub(super) closed: CancellationToken,
}

type Reply<T> = Result<Response<T>, Status>;

impl Adapter {
    /// Waits for the call's result and converts it to the protocol's message.
    async fn reply<A, T>(
        &self,
        call: impl Future<Output = Result<A, CriError>>,
        message: impl FnOnce(A) -> T,
    ) -> Reply<T> {
        tokio::select! {
            result = call => result.map(|value| Response::new(message(value))).map_err(|error| error.to_status()),
            () = self.closed.cancelled() => Err(Status::unavailable("the server is shutting down")),
        }
    }
}

#[tonic::async_trait]
impl runtime_service_server::RuntimeService for Adapter {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Reply<v1::VersionResponse> {
        let (_, timeout) = open(request);
        self.reply(self.runtime.version(timeout), |response| response).await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.status(req.verbose, timeout), |response| response).await
    }

    async fn runtime_config(&self, request: Request<v1::RuntimeConfigRequest>) -> Reply<v1::RuntimeConfigResponse> {
        let (_, timeout) = open(request);
        self.reply(self.runtime.runtime_config(timeout), |response| response).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Reply<v1::UpdateRuntimeConfigResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.update_runtime_config(req.runtime_config.unwrap_or_default(), timeout), |()| {
            v1::UpdateRuntimeConfigResponse {}
        })
        .await
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Reply<v1::RunPodSandboxResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.run_pod_sandbox(req, timeout), |pod_sandbox_id| v1::RunPodSandboxResponse {
            pod_sandbox_id,
        })
        .await
    }

    async fn stop_pod_sandbox(&self, request: Request<v1::StopPodSandboxRequest>) -> Reply<v1::StopPodSandboxResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.stop_pod_sandbox(&req.pod_sandbox_id, timeout), |()| v1::StopPodSandboxResponse {})
            .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Reply<v1::RemovePodSandboxResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.remove_pod_sandbox(&req.pod_sandbox_id, timeout), |()| v1::RemovePodSandboxResponse {})
            .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Reply<v1::PodSandboxStatusResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.pod_sandbox_status(&req.pod_sandbox_id, req.verbose, timeout), |response| response)
            .await
    }

    async fn list_pod_sandbox(&self, request: Request<v1::ListPodSandboxRequest>) -> Reply<v1::ListPodSandboxResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.list_pod_sandbox(req.filter, timeout), |items| v1::ListPodSandboxResponse { items })
            .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Reply<v1::UpdatePodSandboxResourcesResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.update_pod_sandbox_resources(req, timeout), |()| {
            v1::UpdatePodSandboxResourcesResponse {}
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Reply<v1::CreateContainerResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.create_container(req, timeout), |container_id| v1::CreateContainerResponse {
            container_id,
        })
        .await
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Reply<v1::StartContainerResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.start_container(&req.container_id, timeout), |()| v1::StartContainerResponse {}).await
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Reply<v1::StopContainerResponse> {
        let (req, timeout) = open(request);
        let grace = whole_seconds(req.timeout)?;
        self.reply(self.runtime.stop_container(&req.container_id, grace, timeout), |()| v1::StopContainerResponse {})
            .await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Reply<v1::RemoveContainerResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.remove_container(&req.container_id, timeout), |()| v1::RemoveContainerResponse {}).await
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Reply<v1::ListContainersResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.list_containers(req.filter, timeout), |containers| v1::ListContainersResponse {
            containers,
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Reply<v1::ContainerStatusResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.container_status(&req.container_id, req.verbose, timeout), |response| response).await
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Reply<v1::UpdateContainerResourcesResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.update_container_resources(req, timeout), |()| v1::UpdateContainerResourcesResponse {})
            .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Reply<v1::ReopenContainerLogResponse> {
        let (req, timeout) = open(request);
        self.reply(
            self.runtime.reopen_container_log(&req.container_id, timeout),
            |()| v1::ReopenContainerLogResponse {},
        )
        .await
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Reply<v1::ExecSyncResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.exec_sync(req, timeout), |response| response).await
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Reply<v1::ExecResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.exec(req, timeout), |url| v1::ExecResponse { url }).await
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Reply<v1::AttachResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.attach(req, timeout), |url| v1::AttachResponse { url }).await
    }

    async fn port_forward(&self, request: Request<v1::PortForwardRequest>) -> Reply<v1::PortForwardResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.port_forward(req, timeout), |url| v1::PortForwardResponse { url }).await
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Reply<v1::ContainerStatsResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.container_stats(&req.container_id, timeout), |stats| v1::ContainerStatsResponse {
            stats: Some(stats),
        })
        .await
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Reply<v1::ListContainerStatsResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.list_container_stats(req.filter, timeout), |stats| v1::ListContainerStatsResponse {
            stats,
        })
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Reply<v1::PodSandboxStatsResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.pod_sandbox_stats(&req.pod_sandbox_id, timeout), |stats| v1::PodSandboxStatsResponse {
            stats: Some(stats),
        })
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Reply<v1::ListPodSandboxStatsResponse> {
        let (req, timeout) = open(request);
        self.reply(self.runtime.list_pod_sandbox_stats(req.filter, timeout), |stats| v1::ListPodSandboxStatsResponse {
            stats,
        })
        .await
    }

    async fn list_metric_descriptors(
        &self,
        request: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Reply<v1::ListMetricDescriptorsResponse> {
        let (_, timeout) = open(request);
        self.reply(self.runtime.list_metric_descriptors(timeout), |descriptors| v1::ListMetricDescriptorsResponse {
            descriptors,
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Reply<v1::ListPodSandboxMetricsResponse> {
        let (_, timeout) = open(request);
        self.reply(self.runtime.list_pod_sandbox_metrics(timeout), |pod_metrics| v1::ListPodSandboxMetricsResponse {
            pod_metrics,
        })
        .await
    }

    type GetContainerEventsStream = BoxStream<'static, Result<v1::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        _request: Request<v1::GetEventsRequest>,
    ) -> Reply<Self::GetContainerEventsStream> {
        let events = self.runtime.container_events().map_err(|error| error.to_status());
        Ok(Response::new(events.take_until(self.closing.clone().cancelled_owned()).boxed()))
    }
}

#[tonic::async_trait]
impl image_service_server::ImageService for Adapter {
    async fn list_images(&self, request: Request<v1::ListImagesRequest>) -> Reply<v1::ListImagesResponse> {
        let (req, timeout) = open(request);
        self.reply(self.images.list_images(req.filter, timeout), |images| v1::ListImagesResponse { images }).await
    }

    async fn image_status(&self, request: Request<v1::ImageStatusRequest>) -> Reply<v1::ImageStatusResponse> {
        let (req, timeout) = open(request);
        let image = req.image.unwrap_or_default();
        self.reply(self.images.image_status(image, req.verbose, timeout), |response| response).await
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Reply<v1::PullImageResponse> {
        let (req, timeout) = open(request);
        self.reply(self.images.pull_image(req, timeout), |image_ref| v1::PullImageResponse { image_ref }).await
    }

    async fn remove_image(&self, request: Request<v1::RemoveImageRequest>) -> Reply<v1::RemoveImageResponse> {
        let (req, timeout) = open(request);
        let image = req.image.unwrap_or_default();
        self.reply(self.images.remove_image(image, timeout), |()| v1::RemoveImageResponse {}).await
    }

    async fn image_fs_info(&self, request: Request<v1::ImageFsInfoRequest>) -> Reply<v1::ImageFsInfoResponse> {
        let (_, timeout) = open(request);
        self.reply(self.images.image_fs_info(timeout), |response| response).await
    }
}

/// The message, and the timeout of its sender.
fn open<T>(request: Request<T>) -> (T, Duration) {
    let timeout = sent_timeout(request.metadata()).unwrap_or(TIMEOUT_DEFAULT);
    (request.into_inner(), timeout)
}

/// The `grpc-timeout` header: at most eight digits and a unit.
fn sent_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

/// A grace period from the wire: negative is invalid, and a hundred years are the maximum.
fn whole_seconds(sent: i64) -> Result<u32, Status> {
    if sent < 0 {
        return Err(Status::invalid_argument(format!("a stop timeout of {sent} s is negative")));
    }
    Ok(u32::try_from(sent).unwrap_or(u32::MAX))
}

/// For a caller without a timeout (a pull of the Go kubelet has none).
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_timeouts_are_parsed_and_others_are_ignored() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().expect("a header value"));
            sent_timeout(&metadata)
        };
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for nonsense in ["", "S", "5", "-1S", "+1S", "1.5S", "999999999S", "5x", "5 S"] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(sent_timeout(&MetadataMap::new()), None);
    }

    #[test]
    fn a_grace_period_is_never_negative_and_never_wraps() {
        assert_eq!(whole_seconds(30).expect("fine"), 30);
        assert_eq!(whole_seconds(i64::MAX).expect("fine"), u32::MAX);
        assert_eq!(whole_seconds(-1).expect_err("negative").code(), tonic::Code::InvalidArgument);
    }
}
