//! What only podwright has: restarting containers, and ending pods whose objects stay.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use podwright_agent::feed::PodView;
use podwright_core::model::{Event, FullName, Name, Source};
use serde_json::json;

use super::answer::{Room, object};
use super::failure::Failure;
use super::params::Params;
use crate::serve::Answer;

pub(super) async fn restart(room: &Room, of: &FullName, mut params: Params) -> Result<Answer, Failure> {
    let container = params.text("container");
    params.finish()?;
    let view = room.named(of)?;
    if let Some(container) = container.as_deref().filter(|name| !has_container(&view, name)) {
        return Err(Failure::bad_request(format!("container {container} is not valid for pod {}", of.name)));
    }
    if view.metadata().deletion_timestamp.is_some() {
        return Err(Failure::conflict(&of.name, "the pod is ending: it can't be restarted"));
    }
    match view.source {
        // An object whose phase is terminal never runs again: another one takes its place.
        Source::Local if view.has_ended() => _ = room.local.store.revive(of.clone()).await?,
        Source::Api if view.has_ended() => {
            let why = "the pod has ended for good: delete it in the cluster and create it anew";
            return Err(Failure::conflict(&of.name, why));
        }
        // A file that is still there may get its pod a new life.
        _ => {
            let container = container.map(|name| Name::from(name.as_str()));
            room.local.views.tell(Event::Restart { uid: view.uid(), container }).await;
        }
    }
    Ok(object(&Status { status: Some("Success".into()), code: Some(200), ..Status::default() }))
}

pub(super) async fn stop(room: &Room, mut params: Params) -> Result<Answer, Failure> {
    let (pod, all) = (params.text("pod"), params.flag("all")?);
    let grace = params.number::<u64>("gracePeriodSeconds")?.map(|secs| Duration::from_secs(secs.min(GRACE_MAX)));
    params.finish()?;
    let views = match (pod, all) {
        (Some(pod), false) => {
            let (namespace, name) = pod.split_once('/').unwrap_or(("default", &pod));
            vec![room.named(&FullName { namespace: namespace.into(), name: name.into() })?]
        }
        (None, true) => room.local.feed.list().1,
        _ => return Err(Failure::bad_request("which pod? ?pod=NAMESPACE/NAME, or ?all=true")),
    };
    let mut stopped = Vec::new();
    for view in views.iter().filter(|view| !view.has_ended()) {
        let kill = Event::Kill { uid: view.uid(), grace, evicted: None, waiter: None };
        room.local.views.tell(kill).await;
        stopped.push(format!("{}/{}", view.namespace(), view.name()));
    }
    Ok(object(&json!({"pods": stopped})))
}

fn has_container(view: &PodView, name: &str) -> bool {
    let spec = view.object.spec.as_ref();
    let mut all = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    all.any(|container| container.name == name)
}

/// A year: a time that can still be added to any other.
const GRACE_MAX: u64 = 366 * 86_400;
