//! The resource metrics API (`metrics.k8s.io/v1beta1`) and the Node that it is about: CPU and memory at this moment.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use podwright_agent::feed::PodView;
use podwright_agent::stats::{CpuAndMemory, PodResourceUsage, ResourceUsage, SampleError, Sampler};
use podwright_core::model::FullName;
use podwright_cri::BoxFuture;
use serde_json::{Value, json};

use super::router::{LocalState, object, shutting_down};
use super::selector::Selector;
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

/// The group and version of the resource metrics API.
pub(super) const METRICS_VERSION: &str = "metrics.k8s.io/v1beta1";

/// Measures what the node, its pods and containers use.
pub trait UsageSource: Send + Sync + 'static {
    /// The usage at this moment.
    fn usage(&self) -> BoxFuture<'_, Result<ResourceUsage, SampleError>>;
}

impl UsageSource for Sampler {
    fn usage(&self) -> BoxFuture<'_, Result<ResourceUsage, SampleError>> {
        Box::pin(Sampler::usage(self))
    }
}

/// Amounts of a node: what it has, or what pods can request.
#[derive(Clone, Copy, Debug)]
pub struct NodeCapacity {
    /// Thousandths of a core.
    pub cpu_millis: i64,
    /// Bytes.
    pub memory: i64,
}

/// The metrics of one pod.
pub(super) async fn pod(state: &LocalState, of: &FullName, params: QueryParams) -> Result<HttpResponse, StatusError> {
    params.finish()?;
    let view = state.pod(of)?;
    let usage = usage(state).await?;
    let own = usage.pods.iter().find(|pod| pod.namespace == *of.namespace && pod.name == *of.name);
    let own = own.ok_or_else(|| StatusError::not_found("pods.metrics.k8s.io", &of.name))?;
    Ok(object(&pod_metrics(own, Some(&view), &usage)))
}

/// The metrics of the pods of one namespace, or of all.
pub(super) async fn pods(
    state: &LocalState,
    namespace: Option<String>,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let (labels, fields) = (params.text("labelSelector"), params.text("fieldSelector"));
    let selector = Selector::parse(labels.as_deref(), fields.as_deref(), &FIELDS)?;
    params.text("resourceVersion");
    params.finish()?;
    let usage = usage(state).await?;
    let mut items = vec![];
    for pod in &usage.pods {
        let view = state.api.feed.by_name(&pod.namespace, &pod.name);
        let labels = view.as_ref().and_then(|view| view.object.metadata.labels.as_ref());
        let field = |name: &str| match name {
            "metadata.name" => Some(pod.name.as_str()),
            "metadata.namespace" => Some(pod.namespace.as_str()),
            _ => None,
        };
        let here = namespace.as_ref().is_none_or(|namespace| *namespace == pod.namespace);
        if here && selector.matches(labels, field) {
            items.push(pod_metrics(pod, view.as_deref(), &usage));
        }
    }
    Ok(object(&json!({"kind": "PodMetricsList", "apiVersion": METRICS_VERSION, "metadata": {}, "items": items})))
}

/// The metrics of this node: one object if it is named, else a list.
pub(super) async fn nodes(
    state: &LocalState,
    named: Option<&str>,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let selected = selects_node(state, &mut params)?;
    params.finish()?;
    check_name(state, named, "nodes.metrics.k8s.io")?;
    let usage = usage(state).await?;
    let metrics = |used: &CpuAndMemory| {
        json!({"kind": "NodeMetrics", "apiVersion": METRICS_VERSION, "metadata": {"name": state.api.node, "labels": labels(state)},
               "timestamp": second(usage.at), "window": window(usage.window), "usage": quantities(used)})
    };
    let own = usage.node.as_ref().map(metrics).filter(|_| selected);
    match named {
        Some(name) => own
            .map(|own| object(&own))
            .ok_or_else(|| StatusError::unavailable(&format!("the usage of node {name} is not known"))),
        None => {
            let items: Vec<Value> = own.into_iter().collect();
            Ok(object(
                &json!({"kind": "NodeMetricsList", "apiVersion": METRICS_VERSION, "metadata": {}, "items": items}),
            ))
        }
    }
}

/// The Node object: its name, what it has, and whether the runtime responds. One object if it is named, else a list.
pub(super) async fn node_objects(
    state: &LocalState,
    named: Option<&str>,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let selected = selects_node(state, &mut params)?;
    params.text("resourceVersion");
    params.finish()?;
    check_name(state, named, "nodes")?;
    let ready = state.api.agent.runtime_up().await.ok_or_else(shutting_down)?;
    let amounts =
        |of: NodeCapacity| json!({"cpu": format!("{}m", of.cpu_millis), "memory": format!("{}Ki", of.memory >> 10)});
    let (capacity, allocatable) = (amounts(state.api.capacity), amounts(state.api.allocatable));
    let (status, reason) = if ready { ("True", "KubeletReady") } else { ("False", "KubeletNotReady") };
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": state.api.node, "uid": state.api.node, "labels": labels(state)},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": allocatable,
                   "conditions": [{"type": "Ready", "status": status, "reason": reason}],
                   "nodeInfo": {"kubeletVersion": format!("podwright {}", env!("CARGO_PKG_VERSION"))}},
    });
    Ok(match named {
        Some(_) => object(&node),
        None => {
            let items: Vec<Value> = [node].into_iter().filter(|_| selected).collect();
            object(
                &json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
            )
        }
    })
}

fn selects_node(state: &LocalState, params: &mut QueryParams) -> Result<bool, StatusError> {
    let (by_label, by_field) = (params.text("labelSelector"), params.text("fieldSelector"));
    let selector = Selector::parse(by_label.as_deref(), by_field.as_deref(), &["metadata.name"])?;
    Ok(selector.matches(Some(&labels(state)), |_| Some(&state.api.node)))
}

fn check_name(state: &LocalState, named: Option<&str>, kind: &str) -> Result<(), StatusError> {
    match named {
        Some(name) if name != state.api.node => Err(StatusError::not_found(kind, name)),
        _ => Ok(()),
    }
}

fn labels(state: &LocalState) -> BTreeMap<String, String> {
    [("kubernetes.io/hostname".to_owned(), state.api.node.clone())].into()
}

async fn usage(state: &LocalState) -> Result<ResourceUsage, StatusError> {
    state.api.usage.usage().await.map_err(|error| StatusError::internal(error.to_string()))
}

fn pod_metrics(pod: &PodResourceUsage, view: Option<&PodView>, usage: &ResourceUsage) -> Value {
    let labels = view.and_then(|view| view.object.metadata.labels.as_ref());
    let container = |(name, used): &(String, CpuAndMemory)| json!({"name": name, "usage": quantities(used)});
    let containers: Vec<Value> = pod.containers.iter().map(container).collect();
    json!({"kind": "PodMetrics", "apiVersion": METRICS_VERSION,
           "metadata": {"name": pod.name, "namespace": pod.namespace, "labels": labels},
           "timestamp": second(usage.at), "window": window(usage.window), "containers": containers})
}

/// In the units of metrics-server.
fn quantities(used: &CpuAndMemory) -> Value {
    json!({"cpu": format!("{}n", used.cpu_nano_cores), "memory": format!("{}Ki", used.memory >> 10)})
}

fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// A duration of Go; zero if the usage has no rates.
fn window(window: Duration) -> String {
    format!("{}.{:03}s", window.as_secs(), window.subsec_millis())
}

const FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];
