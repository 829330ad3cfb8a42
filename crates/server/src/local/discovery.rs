//! What there is, for clients that ask before they speak.

use serde_json::{Value, json};

use super::answer::object;
use super::failure::Failure;
use super::params::Params;
use super::request::Discovery;
use crate::serve::Answer;

pub(super) fn answer(what: Discovery, params: Params) -> Result<Answer, Failure> {
    params.finish()?;
    Ok(object(&match what {
        Discovery::Version => version(),
        Discovery::Versions => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        Discovery::Groups => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        Discovery::Resources => {
            json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources()})
        }
    }))
}

/// Clients compare the version with theirs: the one of the API whose types are spoken here.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": API_MINOR,
        "gitVersion": format!("v1.{API_MINOR}.0+podwright-{}", env!("CARGO_PKG_VERSION")),
        "platform": format!("linux/{}", std::env::consts::ARCH),
    })
}

fn resources() -> Vec<Value> {
    let resource = |name: &str, kind: &str, verbs: &[&str]| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs});
    let mut pods = resource("pods", "Pod", &["create", "delete", "get", "list", "update", "watch"]);
    (pods["singularName"], pods["shortNames"], pods["categories"]) = ("pod".into(), json!(["po"]), json!(["all"]));
    let mut events = resource("events", "Event", &["get", "list", "watch"]);
    (events["singularName"], events["shortNames"]) = ("event".into(), json!(["ev"]));
    vec![
        events,
        pods,
        resource("pods/attach", "PodAttachOptions", &["create", "get"]),
        resource("pods/exec", "PodExecOptions", &["create", "get"]),
        resource("pods/log", "Pod", &["get"]),
        resource("pods/restart", "Pod", &["create"]),
    ]
}

/// Of the Kubernetes types this is built with.
const API_MINOR: &str = "37";
