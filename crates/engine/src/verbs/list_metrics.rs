//! ListMetricDescriptors and ListPodSandboxMetrics.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::{CriError, v1};

use super::VerbContext;
use crate::context::EngineContext;
use crate::machine::SandboxId;
use crate::metrics::{self, MetricSubject};
use crate::objects::Objects;
use crate::stats::MeasuredContainer;
use crate::{pod_network, views};

pub(crate) fn list_metric_descriptors() -> Vec<v1::MetricDescriptor> {
    metrics::descriptors()
}

pub(crate) async fn list_pod_sandbox_metrics(
    calls: VerbContext<'_>,
    limit: Duration,
) -> Result<Vec<v1::PodSandboxMetrics>, CriError> {
    let pods: Vec<PodToMeasure> = {
        let objects = calls.context.objects();
        objects.sandboxes.keys().filter_map(|id| pod(calls.context, &objects, id)).collect()
    };
    let stats = Arc::clone(&calls.context.stats);
    let measure = move || {
        let disk = stats.layer_file_system();
        let measured = |pod: PodToMeasure| {
            let sample = |(subject, container, started_at_ns): (MetricSubject, MeasuredContainer, i64)| {
                let sample = stats.sample(&container, started_at_ns, disk.clone())?;
                let metrics = metrics::of_container(&sample, &subject);
                Some(v1::ContainerMetrics { container_id: container.id, metrics })
            };
            let interfaces = stats.interfaces(&pod.subject.id, pod.netns.as_deref());
            v1::PodSandboxMetrics {
                metrics: metrics::of_pod(&interfaces.unwrap_or_default(), &pod.subject),
                pod_sandbox_id: pod.subject.id,
                container_metrics: pod.containers.into_iter().filter_map(sample).collect(),
            }
        };
        pods.into_iter().map(measured).collect()
    };
    calls.context.stats.blocking("ListPodSandboxMetrics", limit, measure).await
}

struct PodToMeasure {
    subject: MetricSubject,
    /// `None`: it uses the network of the host, whose traffic is not its own.
    netns: Option<PathBuf>,
    /// With the times of their starts, in nanoseconds since 1970.
    containers: Vec<(MetricSubject, MeasuredContainer, i64)>,
}

/// `None`: it is not ready.
fn pod(context: &EngineContext, objects: &Objects, id: &SandboxId) -> Option<PodToMeasure> {
    let listed = views::listed_sandbox(objects, id)?;
    if listed.state() != v1::PodSandboxState::SandboxReady {
        return None;
    }
    let metadata = listed.metadata.unwrap_or_default();
    let subject =
        MetricSubject { pod: metadata.name, namespace: metadata.namespace, id: listed.id, ..MetricSubject::default() };
    let containers = objects.containers_of(id).into_iter().filter_map(|id| {
        let status = views::container_status(objects, &id)?;
        let image = status.image.unwrap_or_default();
        let subject = MetricSubject {
            container: status.metadata.unwrap_or_default().name,
            id: status.id,
            // Only a kubelet gives the name in the pod.
            image: if image.user_specified_image.is_empty() { image.image } else { image.user_specified_image },
            ..subject.clone()
        };
        Some((subject, context.measured(objects, &id)?, status.started_at))
    });
    let containers = containers.collect();
    let config = &objects.sandboxes.get(id)?.record.config;
    let netns = pod_network::has_own(config).then(|| context.pins.path(&id.0));
    Some(PodToMeasure { subject, netns, containers })
}
