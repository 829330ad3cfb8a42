//! ContainerStats, ListContainerStats, PodSandboxStats and ListPodSandboxStats.

use std::time::Duration;

use podwright_cri::{CriError, v1};
use podwright_linux::cgroup::CgroupPath;

use super::{VerbContext, find_container, has_labels, known_sandbox, not_found};
use crate::context::EngineContext;
use crate::machine::{ContainerId, SandboxId};
use crate::objects::Objects;
use crate::stats::{MeasuredContainer, MeasuredPod};
use crate::{pod_network, spec, views};

pub(crate) async fn container_stats(
    calls: VerbContext<'_>,
    text: String,
    limit: Duration,
) -> Result<v1::ContainerStats, CriError> {
    let found = {
        let objects = calls.context.objects();
        let id = find_container(&objects, "ContainerStats", &text)?;
        id.and_then(|id| container(calls.context, &objects, &id))
    };
    let (attributes, measured) = found.ok_or_else(|| not_found("ContainerStats", "container", &text))?;
    calls.context.stats.container(attributes, &measured, limit).await
}

pub(crate) async fn list_container_stats(
    calls: VerbContext<'_>,
    filter: Option<v1::ContainerStatsFilter>,
    limit: Duration,
) -> Result<Vec<v1::ContainerStats>, CriError> {
    let filter = filter.unwrap_or_default();
    let all = {
        let objects = calls.context.objects();
        let matches = |id: &ContainerId| {
            let entry = objects.containers.get(id)?;
            let fits = id.0.starts_with(&filter.id)
                && entry.record.sandbox_id.starts_with(&filter.pod_sandbox_id)
                && has_labels(&entry.record.config.labels, &filter.label_selector);
            container(calls.context, &objects, id).filter(|_| fits)
        };
        objects.containers.keys().filter_map(matches).collect::<Vec<_>>()
    };
    measure(calls.context, all, limit).await
}

pub(crate) async fn pod_sandbox_stats(
    calls: VerbContext<'_>,
    text: String,
    limit: Duration,
) -> Result<v1::PodSandboxStats, CriError> {
    let id = known_sandbox(&calls.context.objects(), "PodSandboxStats", &text)?;
    let pod = one_pod(calls.context, &id, limit).await?;
    pod.ok_or_else(|| not_found("PodSandboxStats", "sandbox", &text))
}

pub(crate) async fn list_pod_sandbox_stats(
    calls: VerbContext<'_>,
    filter: Option<v1::PodSandboxStatsFilter>,
    limit: Duration,
) -> Result<Vec<v1::PodSandboxStats>, CriError> {
    let filter = filter.unwrap_or_default();
    let ids: Vec<SandboxId> = {
        let objects = calls.context.objects();
        let shown = objects.sandboxes.keys().filter_map(|id| views::listed_sandbox(&objects, id));
        let ready = shown.filter(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady);
        let matches = ready.filter(|sandbox| {
            sandbox.id.starts_with(&filter.id) && has_labels(&sandbox.labels, &filter.label_selector)
        });
        matches.map(|sandbox| SandboxId(sandbox.id)).collect()
    };
    let mut all = vec![];
    for id in ids {
        all.extend(one_pod(calls.context, &id, limit).await?);
    }
    Ok(all)
}

/// `None`: the sandbox is gone meanwhile.
async fn one_pod(
    context: &EngineContext,
    id: &SandboxId,
    limit: Duration,
) -> Result<Option<v1::PodSandboxStats>, CriError> {
    let found = {
        let objects = context.objects();
        let Some(listed) = views::listed_sandbox(&objects, id) else { return Ok(None) };
        let Some(entry) = objects.sandboxes.get(id) else { return Ok(None) };
        let cgroup = spec::pod_cgroup(&entry.record.config).ok();
        let pod = MeasuredPod {
            cgroup: cgroup.and_then(|path| CgroupPath::parse(&path).ok()),
            netns: pod_network::has_own(&entry.record.config).then(|| context.pins.path(&id.0)),
        };
        let containers = objects.containers_of(id);
        let containers: Vec<_> = containers.iter().filter_map(|id| container(context, &objects, id)).collect();
        let v1::PodSandbox { id, metadata, labels, annotations, .. } = listed;
        (v1::PodSandboxAttributes { id, metadata, labels, annotations }, pod, containers)
    };
    let (attributes, pod, containers) = found;
    let containers = measure(context, containers, limit).await?;
    context.stats.pod(attributes, &pod, containers, limit).await.map(Some)
}

async fn measure(
    context: &EngineContext,
    containers: Vec<(v1::ContainerAttributes, MeasuredContainer)>,
    limit: Duration,
) -> Result<Vec<v1::ContainerStats>, CriError> {
    let mut all = vec![];
    for (attributes, measured) in containers {
        all.push(context.stats.container(attributes, &measured, limit).await?);
    }
    Ok(all)
}

/// A container and where its usage is measured; `None`: it is not shown.
fn container(
    context: &EngineContext,
    objects: &Objects,
    id: &ContainerId,
) -> Option<(v1::ContainerAttributes, MeasuredContainer)> {
    let v1::Container { id: text, metadata, labels, annotations, .. } = views::listed_container(objects, id)?;
    let attributes = v1::ContainerAttributes { id: text, metadata, labels, annotations };
    Some((attributes, context.measured(objects, id)?))
}
