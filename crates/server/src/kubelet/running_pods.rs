//! `/runningpods/`: the pods that the container runtime runs, as a v1 PodList with names and images only.

use std::collections::BTreeMap;

use http::StatusCode;
use podwright_cri::labels::Owner;
use podwright_cri::v1;
use serde_json::{Value, json};

use crate::serve::{HttpResponse, json as json_response, text};
use crate::streaming_proxy::StreamingRuntime;

pub(super) async fn respond(runtime: &dyn StreamingRuntime) -> HttpResponse {
    match runtime.running().await {
        Ok((sandboxes, containers)) => json_response(StatusCode::OK, pod_list(&sandboxes, &containers).to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Sandboxes and containers without the labels of a kubelet belong to another client of the runtime.
fn pod_list(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Value {
    let mut pods: BTreeMap<&str, (Owner<'_>, Vec<Value>)> = BTreeMap::new();
    for owner in sandboxes.iter().filter_map(|sandbox| Owner::of(&sandbox.labels)) {
        pods.entry(owner.uid).or_insert((owner, vec![]));
    }
    for container in containers {
        let Some((owner, name)) = Owner::of(&container.labels).and_then(|owner| Some((owner, owner.container?))) else {
            continue;
        };
        let image = container.image.as_ref().map(|image| match image.user_specified_image.as_str() {
            "" => image.image.as_str(),
            given => given,
        });
        let entry = json!({"name": name, "image": image.unwrap_or_default(), "resources": {}});
        pods.entry(owner.uid).or_insert((owner, vec![])).1.push(entry);
    }
    let pod = |(owner, containers): (Owner<'_>, Vec<Value>)| {
        json!({
            "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid, "creationTimestamp": null},
            "spec": {"containers": containers},
            "status": {},
        })
    };
    let items: Vec<Value> = pods.into_values().map(pod).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_listed_with_names_and_images() {
        let labels = |uid: &str, container: Option<&str>| {
            Owner { name: "web", namespace: "default", uid, container }.to_labels()
        };
        let sandbox = |uid: &str| v1::PodSandbox { labels: labels(uid, None), ..Default::default() };
        let image = v1::ImageSpec { image: "busybox:1".into(), ..Default::default() };
        let container = v1::Container { labels: labels("1", Some("c")), image: Some(image), ..Default::default() };
        let foreign = v1::Container::default();
        let list = pod_list(&[sandbox("1"), sandbox("2")], &[container, foreign]);
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
        assert_eq!(
            list["items"][0]["spec"]["containers"],
            json!([{"name": "c", "image": "busybox:1", "resources": {}}])
        );
        assert_eq!(list["items"][0]["metadata"]["uid"], "1");
        assert_eq!(list["items"][1]["spec"]["containers"], json!([]));
    }
}
