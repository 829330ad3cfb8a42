//! The discovery documents that clients read first: versions, groups, resources.

use serde_json::{Value, json};

use super::metrics::METRICS_VERSION;
use super::openapi;
use super::route::Discovery;
use super::router::object;
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

pub(super) fn respond(document: Discovery, params: QueryParams) -> Result<HttpResponse, StatusError> {
    params.finish()?;
    Ok(object(&match document {
        Discovery::Version => version(),
        Discovery::Versions => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        Discovery::Groups => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [metrics_group()]}),
        Discovery::MetricsGroup => {
            let mut group = metrics_group();
            (group["kind"], group["apiVersion"]) = ("APIGroup".into(), "v1".into());
            group
        }
        Discovery::OpenApi => openapi::root(),
        Discovery::OpenApiCore => openapi::core_v1(),
        Discovery::MetricsResources => {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": METRICS_VERSION, "resources": metrics_resources()})
        }
        Discovery::Resources => {
            json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources()})
        }
    }))
}

/// Clients compare this version with their own: it is the version of the API types.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": API_MINOR,
        "gitVersion": format!("v1.{API_MINOR}.0+podwright-{}", env!("CARGO_PKG_VERSION")),
        "platform": format!("linux/{}", std::env::consts::ARCH),
    })
}

fn metrics_group() -> Value {
    let version = json!({"groupVersion": METRICS_VERSION, "version": "v1beta1"});
    json!({"name": "metrics.k8s.io", "versions": [version], "preferredVersion": version})
}

fn metrics_resources() -> Vec<Value> {
    let verbs = ["get", "list"];
    vec![
        json!({"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": verbs}),
        json!({"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": verbs}),
    ]
}

fn resources() -> Vec<Value> {
    let resource = |name: &str, kind: &str, verbs: &[&str]| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs});
    let mut pods = resource("pods", "Pod", &["create", "delete", "get", "list", "patch", "update", "watch"]);
    (pods["singularName"], pods["shortNames"], pods["categories"]) = ("pod".into(), json!(["po"]), json!(["all"]));
    let mut events = resource("events", "Event", &["get", "list", "watch"]);
    (events["singularName"], events["shortNames"]) = ("event".into(), json!(["ev"]));
    let mut nodes = resource("nodes", "Node", &["get", "list"]);
    (nodes["singularName"], nodes["shortNames"], nodes["namespaced"]) = ("node".into(), json!(["no"]), false.into());
    vec![
        events,
        nodes,
        pods,
        resource("pods/attach", "PodAttachOptions", &["create", "get"]),
        resource("pods/exec", "PodExecOptions", &["create", "get"]),
        resource("pods/log", "Pod", &["get"]),
        resource("pods/portforward", "PodPortForwardOptions", &["create", "get"]),
        resource("pods/restart", "Pod", &["create"]),
    ]
}

/// The minor version of the Kubernetes types in `k8s-openapi`.
const API_MINOR: &str = "37";
