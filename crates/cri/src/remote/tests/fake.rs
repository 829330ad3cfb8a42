//! A runtime without containers: answers by the name of what is asked for.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use tokio::sync::{Notify, mpsc};

use crate::{Answer, Code, CriError, EventStream, ImageService, RuntimeService, v1};

/// What was asked is kept; the names "gone", "empty", "nameless" and "hangs" do what they say.
#[derive(Default)]
pub(super) struct Fake {
    seen: Mutex<Vec<String>>,
    subscribers: Mutex<Vec<mpsc::Sender<v1::ContainerEventResponse>>>,
    pub(super) hanging: Arc<Notify>,
    pub(super) abandoned: Arc<Notify>,
}

impl Fake {
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }

    pub(super) fn subscribers(&self) -> usize {
        self.subscribers.lock().expect("no panic").len()
    }

    pub(super) fn emit(&self, container_id: &str) {
        let event = v1::ContainerEventResponse { container_id: container_id.into(), ..Default::default() };
        for subscriber in &*self.subscribers.lock().expect("no panic") {
            subscriber.try_send(event.clone()).expect("room");
        }
    }

    /// Wire forms lose a little: the time limit to the nearest second.
    fn note(&self, what: String, timeout: Duration) {
        self.seen.lock().expect("no panic").push(format!("{what} {:.0}s", timeout.as_secs_f64()));
    }
}

/// Tells when the call it lives in is dropped.
struct Abandon(Arc<Notify>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn now<'a, T: Send + 'a>(answer: Result<T, CriError>) -> Answer<'a, T> {
    Box::pin(std::future::ready(answer))
}

impl RuntimeService for Fake {
    fn version(&self, _: Duration) -> Answer<'_, v1::VersionResponse> {
        now(Ok(v1::VersionResponse { runtime_name: "fake".into(), ..Default::default() }))
    }

    fn status(&self, _: bool, _: Duration) -> Answer<'_, v1::StatusResponse> {
        now(Ok(v1::StatusResponse::default()))
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> Answer<'_, String> {
        let Some(config) = request.config else { return now(Ok(String::new())) };
        self.note(format!("run {} {}", config.hostname, request.runtime_handler), timeout);
        now(Ok(format!("{}/{}", config.hostname, request.runtime_handler)))
    }

    fn stop_pod_sandbox(&self, _: &str, _: Duration) -> Answer<'_, ()> {
        now(Ok(()))
    }

    fn remove_pod_sandbox(&self, _: &str, _: Duration) -> Answer<'_, ()> {
        now(Ok(()))
    }

    fn pod_sandbox_status(&self, _: &str, _: bool, _: Duration) -> Answer<'_, v1::PodSandboxStatusResponse> {
        now(Ok(v1::PodSandboxStatusResponse::default()))
    }

    fn list_pod_sandbox(&self, _: Option<v1::PodSandboxFilter>, _: Duration) -> Answer<'_, Vec<v1::PodSandbox>> {
        now(Ok(Vec::new()))
    }

    fn create_container(&self, _: v1::CreateContainerRequest, _: Duration) -> Answer<'_, String> {
        now(Err(CriError::new(Code::AlreadyExists, "CreateContainer", "the name is reserved")))
    }

    fn start_container(&self, container_id: &str, _: Duration) -> Answer<'_, ()> {
        assert_eq!(container_id, "hangs");
        Box::pin(async {
            let _abandon = Abandon(self.abandoned.clone());
            self.hanging.notify_one();
            std::future::pending().await
        })
    }

    fn stop_container(&self, container_id: &str, grace_seconds: u32, timeout: Duration) -> Answer<'_, ()> {
        self.note(format!("stop {container_id} {grace_seconds}"), timeout);
        now(Ok(()))
    }

    fn remove_container(&self, _: &str, _: Duration) -> Answer<'_, ()> {
        now(Ok(()))
    }

    fn list_containers(&self, filter: Option<v1::ContainerFilter>, _: Duration) -> Answer<'_, Vec<v1::Container>> {
        let count = filter.and_then(|f| f.id.parse().ok()).unwrap_or(0);
        let annotations = [("padding".to_owned(), "x".repeat(1024))];
        let container =
            |n| v1::Container { id: format!("c{n}"), annotations: annotations.clone().into(), ..Default::default() };
        now(Ok((0..count).map(container).collect()))
    }

    fn container_status(&self, container_id: &str, _: bool, _: Duration) -> Answer<'_, v1::ContainerStatusResponse> {
        let status = v1::ContainerStatus { id: container_id.into(), ..Default::default() };
        now(match container_id {
            "empty" => Ok(v1::ContainerStatusResponse::default()),
            "nameless" => Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }),
            _ => Err(CriError::new(Code::NotFound, "ContainerStatus", format!("no container {container_id}"))),
        })
    }

    fn reopen_container_log(&self, _: &str, _: Duration) -> Answer<'_, ()> {
        now(Ok(()))
    }

    fn exec_sync(&self, _: v1::ExecSyncRequest, _: Duration) -> Answer<'_, v1::ExecSyncResponse> {
        now(Ok(v1::ExecSyncResponse::default()))
    }

    fn container_events(&self) -> EventStream {
        let (subscriber, events) = mpsc::channel(8);
        self.subscribers.lock().expect("no panic").push(subscriber);
        let next = |mut events: mpsc::Receiver<_>| async { events.recv().await.map(|event| (Ok(event), events)) };
        futures::stream::unfold(events, next).boxed()
    }
}

impl ImageService for Fake {
    fn list_images(&self, _: Option<v1::ImageFilter>, _: Duration) -> Answer<'_, Vec<v1::Image>> {
        now(Ok(Vec::new()))
    }

    fn image_status(&self, image: v1::ImageSpec, _: bool, _: Duration) -> Answer<'_, v1::ImageStatusResponse> {
        let image = v1::Image { id: image.image, ..Default::default() };
        now(Ok(v1::ImageStatusResponse { image: Some(image), ..Default::default() }))
    }

    fn pull_image(&self, request: v1::PullImageRequest, _: Duration) -> Answer<'_, String> {
        now(Ok(format!("sha256:{}", request.image.unwrap_or_default().image)))
    }

    fn remove_image(&self, _: v1::ImageSpec, _: Duration) -> Answer<'_, ()> {
        now(Ok(()))
    }

    fn image_fs_info(&self, _: Duration) -> Answer<'_, v1::ImageFsInfoResponse> {
        now(Ok(v1::ImageFsInfoResponse::default()))
    }
}
