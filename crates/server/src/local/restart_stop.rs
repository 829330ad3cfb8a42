//! Operations that Kubernetes does not have: restarting containers, and stopping pods whose objects stay.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use podwright_agent::feed::PodView;
use podwright_core::model::{Event, FullName, Name, Source};
use serde_json::json;

use super::router::{LocalState, object};
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

pub(super) async fn restart(
    state: &LocalState,
    of: &FullName,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let container = params.text("container");
    params.finish()?;
    let view = state.pod(of)?;
    if let Some(container) = container.as_deref().filter(|name| !has_container(&view, name)) {
        return Err(StatusError::bad_request(format!("container {container} is not valid for pod {}", of.name)));
    }
    if view.metadata().deletion_timestamp.is_some() {
        return Err(StatusError::conflict(&of.name, "the pod is terminating and can't be restarted"));
    }
    match view.source {
        // A pod in a terminal phase never runs again: a new object replaces it.
        Source::Local if view.has_ended() => _ = state.api.store.recreate(of.clone()).await?,
        Source::Api if view.has_ended() => {
            let why = "the pod is in a terminal phase: delete it in the cluster and create it again";
            return Err(StatusError::conflict(&of.name, why));
        }
        // The pod of a manifest that still exists may be started as a new instance.
        _ => {
            let container = container.map(|name| Name::from(name.as_str()));
            state.api.agent.send(Event::Restart { uid: view.uid(), container }).await;
        }
    }
    Ok(object(&Status { status: Some("Success".into()), code: Some(200), ..Status::default() }))
}

pub(super) async fn stop(state: &LocalState, mut params: QueryParams) -> Result<HttpResponse, StatusError> {
    let (pod, all) = (params.text("pod"), params.flag("all")?);
    let grace = params.number::<u64>("gracePeriodSeconds")?.map(|secs| Duration::from_secs(secs.min(GRACE_MAX)));
    params.finish()?;
    let views = match (pod, all) {
        (Some(pod), false) => {
            let (namespace, name) = pod.split_once('/').unwrap_or(("default", &pod));
            vec![state.pod(&FullName { namespace: namespace.into(), name: name.into() })?]
        }
        (None, true) => state.api.feed.list().1,
        _ => return Err(StatusError::bad_request("name a pod: ?pod=NAMESPACE/NAME, or ?all=true")),
    };
    let mut stopped = Vec::new();
    for view in views.iter().filter(|view| !view.has_ended()) {
        let kill = Event::Kill { uid: view.uid(), grace, evicted: None };
        state.api.agent.send(kill).await;
        stopped.push(format!("{}/{}", view.namespace(), view.name()));
    }
    Ok(object(&json!({"pods": stopped})))
}

fn has_container(view: &PodView, name: &str) -> bool {
    let spec = view.object.spec.as_ref();
    let mut all = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    all.any(|container| container.name == name)
}

/// One year in seconds: large enough for any use, and an addition to a timestamp can't overflow.
const GRACE_MAX: u64 = 366 * 86_400;
