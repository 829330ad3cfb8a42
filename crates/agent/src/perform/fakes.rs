//! A container runtime for tests: records its calls, answers from tables, and fails or hangs where a test wants it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_cri::service::CriFuture;
use podwright_cri::{Code, CriError, EventStream, ImageService, RuntimeService, v1};
use tokio::sync::Notify;

/// The behaviour of the next call of a method.
#[derive(Clone)]
pub(crate) enum Step {
    /// Fails with this error.
    Fail(CriError),
    /// Never answers: the time limit of the caller passes.
    Hang,
    /// Waits for the notification, then continues.
    Until(Arc<Notify>),
}

/// The content of the runtime, and its recorded calls.
#[derive(Default)]
pub(crate) struct FakeRuntime {
    /// The file system of images; `None`: one that does not exist.
    pub(crate) image_fs: Mutex<Option<String>>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) steps: Mutex<BTreeMap<&'static str, VecDeque<Step>>>,
    pub(crate) sandboxes: Mutex<Vec<v1::PodSandbox>>,
    pub(crate) sandbox_statuses: Mutex<BTreeMap<String, v1::PodSandboxStatus>>,
    pub(crate) containers: Mutex<Vec<v1::Container>>,
    pub(crate) statuses: Mutex<BTreeMap<String, v1::ContainerStatusResponse>>,
    pub(crate) exec: Mutex<VecDeque<v1::ExecSyncResponse>>,
    pub(crate) images: Mutex<BTreeMap<String, v1::Image>>,
    pub(crate) status: Mutex<v1::StatusResponse>,
    pub(crate) config: Mutex<Option<v1::RuntimeConfigResponse>>,
    pub(crate) streams: Mutex<VecDeque<EventStream>>,
    pub(crate) run_requests: Mutex<Vec<v1::RunPodSandboxRequest>>,
    pub(crate) create_requests: Mutex<Vec<v1::CreateContainerRequest>>,
    pub(crate) pull_requests: Mutex<Vec<v1::PullImageRequest>>,
    /// Calls under way now, and the maximum so far, by method.
    pub(crate) under_way: Mutex<BTreeMap<&'static str, (usize, usize)>>,
}

impl FakeRuntime {
    pub(crate) fn next(&self, call: &'static str, step: Step) {
        self.steps.lock().unwrap().entry(call).or_default().push_back(step);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn max_under_way(&self, call: &str) -> usize {
        self.under_way.lock().unwrap().get(call).map_or(0, |(_, most)| *most)
    }

    pub(crate) fn now_under_way(&self, call: &str) -> usize {
        self.under_way.lock().unwrap().get(call).map_or(0, |(now, _)| *now)
    }

    async fn gate(&self, call: &'static str, subject: &str, timeout: Duration) -> Result<(), CriError> {
        self.calls.lock().unwrap().push(format!("{call} {subject}").trim_end().to_owned());
        let _guard = UnderWay::begin(self, call);
        let step = self.steps.lock().unwrap().get_mut(call).and_then(VecDeque::pop_front);
        let wait = async {
            match step {
                None => Ok(()),
                Some(Step::Fail(error)) => Err(error),
                Some(Step::Hang) => std::future::pending().await,
                Some(Step::Until(released)) => {
                    released.notified().await;
                    Ok(())
                }
            }
        };
        let late = CriError::new(Code::DeadlineExceeded, call, "the deadline passed");
        tokio::time::timeout(timeout, wait).await.unwrap_or(Err(late))
    }
}

/// Counts a call until it is answered or dropped.
struct UnderWay<'a>(&'a FakeRuntime, &'static str);

impl<'a> UnderWay<'a> {
    fn begin(fake: &'a FakeRuntime, call: &'static str) -> Self {
        let mut all = fake.under_way.lock().unwrap();
        let (now, most) = all.entry(call).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Self(fake, call)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().unwrap().get_mut(self.1).unwrap().0 -= 1;
    }
}

fn labels_match(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl RuntimeService for FakeRuntime {
    fn version(&self, timeout: Duration) -> CriFuture<'_, v1::VersionResponse> {
        Box::pin(async move {
            self.gate("Version", "", timeout).await?;
            Ok(v1::VersionResponse { runtime_name: "fake".into(), ..Default::default() })
        })
    }

    fn status(&self, _: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse> {
        Box::pin(async move {
            self.gate("Status", "", timeout).await?;
            Ok(self.status.lock().unwrap().clone())
        })
    }

    fn runtime_config(&self, timeout: Duration) -> CriFuture<'_, v1::RuntimeConfigResponse> {
        Box::pin(async move {
            self.gate("RuntimeConfig", "", timeout).await?;
            self.config.lock().unwrap().ok_or_else(|| CriError::unimplemented("RuntimeConfig"))
        })
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let name = request.config.as_ref().and_then(|c| c.metadata.as_ref()).map(|m| m.name.clone());
            self.run_requests.lock().unwrap().push(request);
            self.gate("RunPodSandbox", &name.unwrap_or_default(), timeout).await?;
            Ok("s-new".into())
        })
    }

    fn stop_pod_sandbox(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move { self.gate("StopPodSandbox", &id, timeout).await })
    }

    fn remove_pod_sandbox(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move { self.gate("RemovePodSandbox", &id, timeout).await })
    }

    fn pod_sandbox_status(&self, id: &str, _: bool, timeout: Duration) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        let id = id.to_owned();
        Box::pin(async move {
            self.gate("PodSandboxStatus", &id, timeout).await?;
            let status = self.sandbox_statuses.lock().unwrap().get(&id).cloned();
            let status = status.ok_or_else(|| CriError::new(Code::NotFound, "PodSandboxStatus", id))?;
            Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
        })
    }

    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        Box::pin(async move {
            self.gate("ListPodSandbox", "", timeout).await?;
            let labels = filter.unwrap_or_default().label_selector;
            let all = self.sandboxes.lock().unwrap();
            Ok(all.iter().filter(|s| labels_match(&labels, &s.labels)).cloned().collect())
        })
    }

    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let name = request.config.as_ref().and_then(|c| c.metadata.as_ref()).map(|m| m.name.clone());
            self.create_requests.lock().unwrap().push(request);
            self.gate("CreateContainer", &name.unwrap_or_default(), timeout).await?;
            Ok("c-new".into())
        })
    }

    fn start_container(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move { self.gate("StartContainer", &id, timeout).await })
    }

    fn stop_container(&self, id: &str, grace: u32, timeout: Duration) -> CriFuture<'_, ()> {
        let subject = format!("{id} {grace}");
        Box::pin(async move { self.gate("StopContainer", &subject, timeout).await })
    }

    fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        let linux = request.linux.unwrap_or_default();
        let limits = (linux.cpu_shares, linux.cpu_quota, linux.memory_limit_in_bytes);
        let subject = format!("{} {limits:?}", request.container_id);
        Box::pin(async move { self.gate("UpdateContainerResources", &subject, timeout).await })
    }

    fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
        timeout: Duration,
    ) -> CriFuture<'_, ()> {
        let limits = |linux: Option<v1::LinuxContainerResources>| {
            let linux = linux.unwrap_or_default();
            (linux.cpu_shares, linux.cpu_quota, linux.memory_limit_in_bytes)
        };
        let (resources, overhead) = (limits(request.resources), limits(request.overhead));
        let subject = format!("{} {resources:?} {overhead:?}", request.pod_sandbox_id);
        Box::pin(async move { self.gate("UpdatePodSandboxResources", &subject, timeout).await })
    }

    fn remove_container(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move { self.gate("RemoveContainer", &id, timeout).await })
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>> {
        Box::pin(async move {
            self.gate("ListContainers", "", timeout).await?;
            let filter = filter.unwrap_or_default();
            let state = filter.state.map(|state| state.state);
            let all = self.containers.lock().unwrap();
            let wanted = |c: &&v1::Container| {
                labels_match(&filter.label_selector, &c.labels) && state.is_none_or(|state| state == c.state)
            };
            Ok(all.iter().filter(wanted).cloned().collect())
        })
    }

    fn container_status(
        &self,
        id: &str,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ContainerStatusResponse> {
        let id = id.to_owned();
        Box::pin(async move {
            self.gate("ContainerStatus", &id, timeout).await?;
            let found = self.statuses.lock().unwrap().get(&id).cloned();
            let mut answer = found.ok_or_else(|| CriError::new(Code::NotFound, "ContainerStatus", id))?;
            if !verbose {
                answer.info.clear();
            }
            Ok(answer)
        })
    }

    fn reopen_container_log(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move { self.gate("ReopenContainerLog", &id, timeout).await })
    }

    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        Box::pin(async move {
            let subject = format!("{} {} {}", request.container_id, request.cmd.join(" "), request.timeout);
            self.gate("ExecSync", &subject, timeout).await?;
            Ok(self.exec.lock().unwrap().pop_front().unwrap_or_default())
        })
    }

    fn container_events(&self) -> EventStream {
        let next = self.streams.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Box::pin(futures::stream::iter([Err(CriError::unimplemented("GetContainerEvents"))])))
    }
}

impl ImageService for FakeRuntime {
    fn list_images(&self, _: Option<v1::ImageFilter>, timeout: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        Box::pin(async move {
            self.gate("ListImages", "", timeout).await?;
            Ok(self.images.lock().unwrap().values().cloned().collect())
        })
    }

    fn image_status(&self, image: v1::ImageSpec, _: bool, timeout: Duration) -> CriFuture<'_, v1::ImageStatusResponse> {
        Box::pin(async move {
            self.gate("ImageStatus", &image.image, timeout).await?;
            let image = self.images.lock().unwrap().get(&image.image).cloned();
            Ok(v1::ImageStatusResponse { image, ..Default::default() })
        })
    }

    fn pull_image(&self, request: v1::PullImageRequest, timeout: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let image = request.image.clone().unwrap_or_default().image;
            self.pull_requests.lock().unwrap().push(request);
            self.gate("PullImage", &image, timeout).await?;
            Ok(format!("id-of-{image}"))
        })
    }

    fn remove_image(&self, image: v1::ImageSpec, timeout: Duration) -> CriFuture<'_, ()> {
        Box::pin(async move { self.gate("RemoveImage", &image.image, timeout).await })
    }

    fn image_fs_info(&self, timeout: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        Box::pin(async move {
            self.gate("ImageFsInfo", "", timeout).await?;
            let mountpoint = self.image_fs.lock().unwrap().clone().unwrap_or("/images".into());
            let fs_id = Some(v1::FilesystemIdentifier { mountpoint });
            let image_filesystems = vec![v1::FilesystemUsage { fs_id, ..Default::default() }];
            Ok(v1::ImageFsInfoResponse { image_filesystems, ..Default::default() })
        })
    }
}
