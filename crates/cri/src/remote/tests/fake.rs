//! A runtime without containers, whose responses depend on the requested names.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use tokio::sync::{Notify, mpsc};

use crate::{Code, CriError, CriFuture, EventStream, ImageService, RuntimeService, v1};

/// Records requests; the names "gone", "empty", "nameless" and "hangs" select a misbehaviour.
#[derive(Default)]
pub(super) struct FakeRuntime {
    seen: Mutex<Vec<String>>,
    subscribers: Mutex<Vec<mpsc::Sender<v1::ContainerEventResponse>>>,
    pub(super) hanging: Arc<Notify>,
    pub(super) abandoned: Arc<Notify>,
}

impl FakeRuntime {
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }

    pub(super) fn subscribers(&self) -> usize {
        self.subscribers.lock().expect("no panic").len()
    }

    pub(super) fn emit(&self, container_id: &str) {
        let event = v1::ContainerEventResponse { container_id: container_id.into(), ..Default::default() };
        for subscriber in &*self.subscribers.lock().expect("no panic") {
            subscriber.try_send(event.clone()).expect("capacity");
        }
    }

    /// Records a request with its timeout, rounded to seconds because the encoding loses some precision.
    fn record(&self, what: String, timeout: Duration) {
        self.seen.lock().expect("no panic").push(format!("{what} {:.0}s", timeout.as_secs_f64()));
    }
}

/// Notifies when the future that owns it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn ready<'a, T: Send + 'a>(result: Result<T, CriError>) -> CriFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl RuntimeService for FakeRuntime {
    fn version(&self, _: Duration) -> CriFuture<'_, v1::VersionResponse> {
        ready(Ok(v1::VersionResponse { runtime_name: "fake".into(), ..Default::default() }))
    }

    fn status(&self, _: bool, _: Duration) -> CriFuture<'_, v1::StatusResponse> {
        ready(Ok(v1::StatusResponse::default()))
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        let Some(config) = request.config else { return ready(Ok(String::new())) };
        self.record(format!("run {} {}", config.hostname, request.runtime_handler), timeout);
        ready(Ok(format!("{}/{}", config.hostname, request.runtime_handler)))
    }

    fn stop_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        ready(Ok(()))
    }

    fn remove_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        ready(Ok(()))
    }

    fn pod_sandbox_status(&self, _: &str, _: bool, _: Duration) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        ready(Ok(v1::PodSandboxStatusResponse::default()))
    }

    fn list_pod_sandbox(&self, _: Option<v1::PodSandboxFilter>, _: Duration) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        ready(Ok(Vec::new()))
    }

    fn create_container(&self, _: v1::CreateContainerRequest, _: Duration) -> CriFuture<'_, String> {
        ready(Err(CriError::new(Code::AlreadyExists, "CreateContainer", "the name is reserved")))
    }

    fn start_container(&self, container_id: &str, _: Duration) -> CriFuture<'_, ()> {
        assert_eq!(container_id, "hangs");
        Box::pin(async {
            let _notify = NotifyOnDrop(self.abandoned.clone());
            self.hanging.notify_one();
            std::future::pending().await
        })
    }

    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> CriFuture<'_, ()> {
        self.record(format!("stop {container_id} {grace_seconds}"), timeout);
        ready(Ok(()))
    }

    fn remove_container(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        ready(Ok(()))
    }

    fn list_containers(&self, filter: Option<v1::ContainerFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Container>> {
        let count = filter.and_then(|f| f.id.parse().ok()).unwrap_or(0);
        let annotations = [("padding".to_owned(), "x".repeat(1024))];
        let container =
            |n| v1::Container { id: format!("c{n}"), annotations: annotations.clone().into(), ..Default::default() };
        ready(Ok((0..count).map(container).collect()))
    }

    fn container_status(&self, container_id: &str, _: bool, _: Duration) -> CriFuture<'_, v1::ContainerStatusResponse> {
        let status = v1::ContainerStatus { id: container_id.into(), ..Default::default() };
        ready(match container_id {
            "empty" => Ok(v1::ContainerStatusResponse::default()),
            "nameless" => Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }),
            _ => Err(CriError::new(Code::NotFound, "ContainerStatus", format!("no container {container_id}"))),
        })
    }

    fn reopen_container_log(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        ready(Ok(()))
    }

    fn exec_sync(&self, _: v1::ExecSyncRequest, _: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        ready(Ok(v1::ExecSyncResponse::default()))
    }

    fn container_events(&self) -> EventStream {
        let (subscriber, events) = mpsc::channel(8);
        self.subscribers.lock().expect("no panic").push(subscriber);
        let next = |mut events: mpsc::Receiver<_>| async { events.recv().await.map(|event| (Ok(event), events)) };
        futures::stream::unfold(events, next).boxed()
    }
}

impl ImageService for FakeRuntime {
    fn list_images(&self, _: Option<v1::ImageFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        ready(Ok(Vec::new()))
    }

    fn image_status(&self, image: v1::ImageSpec, _: bool, _: Duration) -> CriFuture<'_, v1::ImageStatusResponse> {
        let image = v1::Image { id: image.image, ..Default::default() };
        ready(Ok(v1::ImageStatusResponse { image: Some(image), ..Default::default() }))
    }

    fn pull_image(&self, request: v1::PullImageRequest, _: Duration) -> CriFuture<'_, String> {
        ready(Ok(format!("sha256:{}", request.image.unwrap_or_default().image)))
    }

    fn remove_image(&self, _: v1::ImageSpec, _: Duration) -> CriFuture<'_, ()> {
        ready(Ok(()))
    }

    fn image_fs_info(&self, _: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        ready(Ok(v1::ImageFsInfoResponse::default()))
    }
}
