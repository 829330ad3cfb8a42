//! The CRI services of the fake runtime.

use std::time::Duration;

use podwright_cri::labels::POD_UID;
use podwright_cri::service::CriFuture;
use podwright_cri::v1::ContainerEventType as EventKind;
use podwright_cri::{Code, CriError, EventStream, ImageService, RuntimeService, v1};
use tokio::time::sleep;

use super::faults::Reaction;
use super::runtime::FakeRuntime;
use super::state::State;

impl FakeRuntime {
    fn uid_of(&self, id: &str) -> Option<String> {
        self.lock().uid_of(id)
    }
}

impl RuntimeService for FakeRuntime {
    fn version(&self, timeout: Duration) -> CriFuture<'_, v1::VersionResponse> {
        Box::pin(self.take("Version", None, String::new(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            Ok(v1::VersionResponse { runtime_name: "fake".into(), ..Default::default() })
        }))
    }

    fn status(&self, _: bool, timeout: Duration) -> CriFuture<'_, v1::StatusResponse> {
        Box::pin(self.take("Status", None, String::new(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            let ready = |kind: &str| v1::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
            let conditions = vec![ready("RuntimeReady"), ready("NetworkReady")];
            Ok(v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() })
        }))
    }

    fn run_pod_sandbox(&self, request: v1::RunPodSandboxRequest, timeout: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let config = request.config.unwrap_or_default();
            let m = config.metadata.clone().unwrap_or_default();
            let name = format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt);
            self.take("RunPodSandbox", Some(m.uid), name.clone(), timeout, |runtime, order| async move {
                let id = {
                    let mut state = runtime.lock();
                    let id = state.new_id();
                    state.reserve("RunPodSandbox", "sandbox", &name, &id)?;
                    id
                };
                if let Err(error) = order.pass(&runtime).await {
                    runtime.lock().names.remove(&name);
                    return Err(error);
                }
                if order.reaction == Reaction::Ignored {
                    runtime.lock().names.remove(&name);
                    return Ok(id);
                }
                runtime.lock().run_sandbox(&id, name, config);
                runtime.emit(&id, EventKind::ContainerCreatedEvent);
                runtime.emit(&id, EventKind::ContainerStartedEvent);
                Ok(id)
            })
            .await
        })
    }

    fn stop_pod_sandbox(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("StopPodSandbox", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                if order.reaction == Reaction::Ignored {
                    return Ok(());
                }
                let inside = runtime.lock().in_sandbox(&id);
                for container in inside {
                    runtime.crash(&container, 137);
                }
                let was_ready = {
                    let mut state = runtime.lock();
                    state.sandboxes.get_mut(&id).is_some_and(|s| std::mem::replace(&mut s.ready, false))
                };
                if was_ready {
                    runtime.emit(&id, EventKind::ContainerStoppedEvent);
                }
                Ok(())
            })
            .await
        })
    }

    fn remove_pod_sandbox(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("RemovePodSandbox", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                if order.reaction == Reaction::Ignored {
                    return Ok(());
                }
                runtime.emit(&id, EventKind::ContainerDeletedEvent);
                runtime.lock().remove_sandbox(&id);
                Ok(())
            })
            .await
        })
    }

    fn pod_sandbox_status(&self, id: &str, _: bool, timeout: Duration) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("PodSandboxStatus", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                let status = runtime.lock().sandbox_status(&id)?;
                Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
            })
            .await
        })
    }

    fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        let filter = filter.unwrap_or_default();
        let uid = filter.label_selector.get(POD_UID).cloned();
        Box::pin(self.take("ListPodSandbox", uid, String::new(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            Ok(runtime.lock().list_sandboxes(&filter))
        }))
    }

    fn create_container(&self, request: v1::CreateContainerRequest, timeout: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let c = request.config.clone().unwrap_or_default().metadata.unwrap_or_default();
            let s = request.sandbox_config.clone().unwrap_or_default().metadata.unwrap_or_default();
            let name = format!("{}_{}_{}_{}_{}", c.name, s.name, s.namespace, s.uid, c.attempt);
            self.take("CreateContainer", Some(s.uid), name.clone(), timeout, |runtime, order| async move {
                let id = {
                    let mut state = runtime.lock();
                    let id = state.new_id();
                    state.reserve("CreateContainer", "container", &name, &id)?;
                    id
                };
                let made = match order.pass(&runtime).await {
                    Ok(()) if order.reaction == Reaction::Ignored => {
                        runtime.lock().names.remove(&name);
                        return Ok(id);
                    }
                    Ok(()) => runtime.lock().create(&id, &name, request),
                    Err(error) => Err(error),
                };
                if let Err(error) = made {
                    runtime.lock().names.remove(&name);
                    return Err(error);
                }
                runtime.emit(&id, EventKind::ContainerCreatedEvent);
                Ok(id)
            })
            .await
        })
    }

    fn start_container(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("StartContainer", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                if order.reaction == Reaction::Ignored {
                    return Ok(());
                }
                let exits = runtime.lock().start(&id)?;
                runtime.emit(&id, EventKind::ContainerStartedEvent);
                if let Some((after, code)) = exits {
                    tokio::spawn(async move {
                        sleep(after).await;
                        runtime.crash(&id, code);
                    });
                }
                Ok(())
            })
            .await
        })
    }

    fn stop_container(&self, id: &str, grace: u32, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            let subject = format!("{id} {grace}");
            self.take("StopContainer", self.uid_of(&id), subject, timeout, |runtime, order| async move {
                runtime.stop(id, grace, order).await
            })
            .await
        })
    }

    fn remove_container(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("RemoveContainer", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                if order.reaction == Reaction::Ignored {
                    return Ok(());
                }
                runtime.emit(&id, EventKind::ContainerDeletedEvent);
                runtime.lock().remove_container(&id);
                Ok(())
            })
            .await
        })
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
        timeout: Duration,
    ) -> CriFuture<'_, Vec<v1::Container>> {
        let filter = filter.unwrap_or_default();
        let uid = filter.label_selector.get(POD_UID).cloned();
        Box::pin(self.take("ListContainers", uid, String::new(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            Ok(runtime.lock().list_containers(&filter))
        }))
    }

    fn container_status(&self, id: &str, _: bool, timeout: Duration) -> CriFuture<'_, v1::ContainerStatusResponse> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("ContainerStatus", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                let status = runtime.lock().container_status(&id)?;
                Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
            })
            .await
        })
    }

    fn reopen_container_log(&self, id: &str, timeout: Duration) -> CriFuture<'_, ()> {
        let id = id.to_owned();
        Box::pin(async move {
            self.take("ReopenContainerLog", self.uid_of(&id), id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await
            })
            .await
        })
    }

    fn exec_sync(&self, request: v1::ExecSyncRequest, timeout: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        Box::pin(async move {
            let (uid, id) = (self.uid_of(&request.container_id), request.container_id);
            self.take("ExecSync", uid, id.clone(), timeout, |runtime, order| async move {
                order.pass(&runtime).await?;
                let running = |s: &State| s.containers.get(&id).map(|c| c.state);
                match running(&runtime.lock()) {
                    Some(v1::ContainerState::ContainerRunning) => Ok(v1::ExecSyncResponse::default()),
                    _ => Err(CriError::new(Code::Other, "ExecSync", "the container does not run")),
                }
            })
            .await
        })
    }

    fn container_events(&self) -> EventStream {
        self.subscribe()
    }
}

impl ImageService for FakeRuntime {
    fn list_images(&self, _: Option<v1::ImageFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        Box::pin(async move { Ok(self.lock().images.iter().map(|id| image(id)).collect()) })
    }

    fn image_status(&self, spec: v1::ImageSpec, _: bool, timeout: Duration) -> CriFuture<'_, v1::ImageStatusResponse> {
        Box::pin(self.take("ImageStatus", None, spec.image.clone(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            let image = runtime.lock().images.get(&spec.image).map(|id| image(id));
            Ok(v1::ImageStatusResponse { image, ..Default::default() })
        }))
    }

    fn pull_image(&self, request: v1::PullImageRequest, timeout: Duration) -> CriFuture<'_, String> {
        let name = request.image.unwrap_or_default().image;
        Box::pin(self.take("PullImage", None, name.clone(), timeout, |runtime, order| async move {
            order.pass(&runtime).await?;
            runtime.lock().images.insert(name.clone());
            Ok(name)
        }))
    }

    fn remove_image(&self, image: v1::ImageSpec, _: Duration) -> CriFuture<'_, ()> {
        Box::pin(async move {
            self.lock().images.remove(&image.image);
            Ok(())
        })
    }

    fn image_fs_info(&self, _: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        Box::pin(async { Ok(v1::ImageFsInfoResponse::default()) })
    }
}

fn image(id: &str) -> v1::Image {
    v1::Image { id: id.to_owned(), ..Default::default() }
}
