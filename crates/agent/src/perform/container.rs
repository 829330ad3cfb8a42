//! CreateContainer, StartContainer, StopContainer, UpdateContainerResources, RemoveContainer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use podwright_core::model::{
    Answer, CallError, Container, ContainerId, ImageFacts, Name, Pod, PodUid, SandboxId, find_container,
};
use podwright_cri::labels::{self, containers_of_pod};
use podwright_cri::v1::{ContainerState, ContainerStateValue, CreateContainerRequest, UpdateContainerResourcesRequest};
use tokio::time::{Instant, timeout};

use super::{CallContext, CallExecutor, busy_if, create_failure, failure, logs, read_failure, remaining};
use crate::pod_spec::effective_run_as_user;
use crate::translate::{
    ContainerRequest, References, TranslateError, container_config, container_resources, sandbox_config,
};

/// The fields of `RuntimeCall::CreateContainer`.
#[derive(Clone)]
pub(super) struct CreateCall {
    pub(super) sandbox: SandboxId,
    pub(super) sandbox_attempt: u32,
    pub(super) name: Name,
    pub(super) attempt: u32,
    pub(super) image_id: String,
    pub(super) ips: Vec<String>,
}

impl CallExecutor {
    pub(super) async fn create_container(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        call: CreateCall,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let deadline = Instant::now() + context.limit;
        let request = context.or_cancelled(self.create_request(uid, pod, &call, deadline)).await?;
        context.check_not_cancelled()?;
        let id = match self.runtime.create_container(request, remaining(deadline)).await {
            Ok(id) => id,
            Err(error) => {
                return Err(create_failure("CreateContainerError", &error).map_message(|_| error.message.clone()));
            }
        };
        self.host.link_log(pod, call.name.as_str(), call.attempt, &id).await;
        Ok(Answer::Container(id.into()))
    }

    /// Everything that is read before the container is created: a failure here has no side effects.
    async fn create_request(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        call: &CreateCall,
        deadline: Instant,
    ) -> Result<CreateContainerRequest, CallError> {
        let found = find_container(pod, call.name.as_str())
            .ok_or_else(|| TranslateError::NoContainer(call.name.to_string()))?;
        let mut image = ImageFacts { id: call.image_id.clone(), ..ImageFacts::default() };
        // The user of the image matters only if the pod sets no runAsUser.
        if effective_run_as_user(pod, &found.container).is_none()
            && let Some(known) = self.images.facts_of_id(&call.image_id, CONFIG_REASON, remaining(deadline)).await?
        {
            image = ImageFacts { id: call.image_id.clone(), ..known };
        }
        let target = match found.target {
            Some(name) => Some(self.running_instance(uid, name, remaining(deadline)).await?),
            None => None,
        };
        let situation = self.situation(uid, pod, remaining(deadline)).await?;
        let references = timeout(remaining(deadline), References::fetch(&*self.objects, pod, call.name.as_str())).await;
        let references = references.map_err(|_| {
            CallError::with_reason(CONFIG_REASON, "timed out reading the objects that the environment refers to")
        })?;
        let is_large = is_large(pod, &found.container);
        let (pod, settings, host) = (Arc::clone(pod), Arc::clone(&self.settings), Arc::clone(&self.host));
        let (call, id) = (call.clone(), call.sandbox.as_str().to_owned());
        let translate = move || {
            let request = ContainerRequest {
                name: call.name.as_str(),
                attempt: call.attempt,
                image: &image,
                ips: &call.ips,
                target: target.as_ref(),
                references: &references,
            };
            let config = container_config(&pod, &request, &settings, &situation, &*host)?;
            let sandbox_config = sandbox_config(&pod, call.sandbox_attempt, &settings, &situation)?;
            Ok::<_, TranslateError>((config, sandbox_config))
        };
        let (config, sandbox_config) = if is_large {
            let translated = self.pool.run(&format!("translation of pod {uid}"), remaining(deadline), translate).await;
            translated.map_err(|error| CallError::with_reason(CONFIG_REASON, error.to_string()))??
        } else {
            translate()?
        };
        Ok(CreateContainerRequest { pod_sandbox_id: id, config: Some(config), sandbox_config: Some(sandbox_config) })
    }

    /// The running container that `targetContainerName` of an ephemeral container names.
    async fn running_instance(&self, uid: &PodUid, name: &str, limit: Duration) -> Result<ContainerId, CallError> {
        let mut filter = containers_of_pod(uid.as_str());
        filter.label_selector.extend(BTreeMap::from([(labels::CONTAINER_NAME.to_owned(), name.to_owned())]));
        filter.state = Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() });
        let found = self.runtime.list_containers(Some(filter), limit).await;
        let found = found.map_err(|error| read_failure(CONFIG_REASON, &error))?;
        let newest = found.into_iter().max_by_key(|container| container.created_at);
        newest.map(|container| container.id.into()).ok_or_else(|| {
            CallError::with_reason(
                CONFIG_REASON,
                format!("unable to find target container {name:?}: it is not running"),
            )
        })
    }

    pub(super) async fn start_container(&self, id: &ContainerId, context: &CallContext) -> Result<Answer, CallError> {
        context.check_not_cancelled()?;
        match self.runtime.start_container(id.as_str(), context.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) => {
                // An earlier start is still under way, mostly one of a former agent process; its result is not known yet.
                let failed = failure("RunContainerError", &error).map_message(|_| error.message.clone());
                Err(busy_if(error.start_is_under_way(), failed))
            }
        }
    }

    pub(super) async fn stop_container(
        &self,
        id: &ContainerId,
        timeout: Duration,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let grace = u32::try_from(seconds).unwrap_or(u32::MAX);
        match self.runtime.stop_container(id.as_str(), grace, context.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.is_not_found() => Ok(Answer::Done),
            Err(error) => Err(failure("KillContainerError", &error)),
        }
    }

    /// Gives a running container other resources.
    pub(super) async fn update_container(
        &self,
        pod: &Pod,
        name: &Name,
        id: &ContainerId,
        resources: ResourceRequirements,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        context.check_not_cancelled()?;
        let found = find_container(pod, name.as_str()).ok_or_else(|| TranslateError::NoContainer(name.to_string()))?;
        let container = Container { resources: Some(resources), ..found.container.into_owned() };
        let request = UpdateContainerResourcesRequest {
            container_id: id.as_str().to_owned(),
            linux: Some(container_resources(pod, &container, &self.settings)),
            ..Default::default()
        };
        match self.runtime.update_container_resources(request, context.limit).await {
            Ok(()) => Ok(Answer::Done),
            Err(error) => Err(failure(None, &error).map_message(|_| error.message.clone())),
        }
    }

    /// Removes the log too: the runtime only knows its path.
    pub(super) async fn remove_container(
        &self,
        pod: &Pod,
        name: &Name,
        id: &ContainerId,
        context: &CallContext,
    ) -> Result<Answer, CallError> {
        let deadline = Instant::now() + context.limit;
        let status = self.runtime.container_status(id.as_str(), false, remaining(deadline)).await;
        let log = status.ok().and_then(|answer| answer.status).map(|status| status.log_path);
        match self.runtime.remove_container(id.as_str(), remaining(deadline)).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(failure(None, &error)),
        }
        self.host.unlink_log(pod, name.as_str(), id.as_str()).await;
        if let Some(log) = log {
            logs::remove(&self.pool, &self.settings.paths.pod_logs_dir, log).await;
        }
        Ok(Answer::Done)
    }
}

/// Whether the translation may take more than a few milliseconds, too long for an async worker.
fn is_large(pod: &Pod, container: &Container) -> bool {
    let count = |list: Option<usize>| list.unwrap_or_default();
    let volumes = count(pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).map(Vec::len));
    let mounts = count(container.volume_mounts.as_ref().map(Vec::len));
    let variables =
        count(container.env.as_ref().map(Vec::len)) + 100 * count(container.env_from.as_ref().map(Vec::len));
    let arguments = count(container.command.as_ref().map(Vec::len)) + count(container.args.as_ref().map(Vec::len));
    variables + arguments + volumes * mounts > LARGE_MIN
}

/// Environment variables, arguments, and pairs of volume and mount: each takes about a microsecond.
const LARGE_MIN: usize = 2000;

/// Kubernetes: ErrCreateContainerConfig.
const CONFIG_REASON: &str = "CreateContainerConfigError";
