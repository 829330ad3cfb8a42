//! Finds the pods that a command names.

use k8s_openapi::api::core::v1::Pod;

use super::{Client, ClientError, List, encode, is_named, path, with_query};
use crate::cli::PodSelection;

/// The pods of a selection. All names are looked up before the caller does anything: one that does not exist fails the command.
pub(super) async fn select(client: &Client, selection: &PodSelection) -> Result<Vec<Pod>, ClientError> {
    let Selected { pods, missing } = lookup(client, selection).await?;
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    match missing.is_empty() {
        true => Ok(pods),
        false => Err(ClientError::no_pods(&missing, selection.scope.namespace())),
    }
}

/// The pods of a selection, and the names that no pod has.
pub(super) struct Selected {
    /// Each pod once.
    pub(super) pods: Vec<Pod>,
    pub(super) missing: Vec<String>,
}

/// The pods of a selection, each once.
pub(super) async fn lookup(client: &Client, selection: &PodSelection) -> Result<Selected, ClientError> {
    let names = selection.names()?;
    let namespace = selection.scope.namespace();
    let list = match &selection.selector {
        Some(selector) => with_query(&path("pods", namespace), &format!("labelSelector={}", encode(selector))),
        None => path("pods", namespace),
    };
    let pods = client.get::<List<Pod>>(&list).await?.items;
    if names.is_empty() {
        return Ok(Selected { pods, missing: vec![] });
    }
    let mut selected = Selected { pods: vec![], missing: vec![] };
    for name in names {
        match newest(&pods, name) {
            Some(pod) if selected.pods.iter().any(|known| known.metadata.uid == pod.metadata.uid) => {}
            Some(pod) => selected.pods.push(pod.clone()),
            None => selected.missing.push(name.to_owned()),
        }
    }
    Ok(selected)
}

/// The message if no pod was selected.
pub(super) fn none_selected(selection: &PodSelection) -> String {
    match selection.scope.namespace() {
        Some(namespace) => format!("No pods found in {namespace} namespace."),
        None => "No pods found".into(),
    }
}

/// Finds the newest pod of this name. Without a namespace, all namespaces are searched.
pub(super) async fn find<'a>(
    client: &Client,
    namespace: impl Into<Option<&'a str>>,
    name: &str,
) -> Result<Pod, ClientError> {
    let namespace = namespace.into();
    let pods = client.get::<List<Pod>>(&path("pods", namespace)).await?.items;
    newest(&pods, name).cloned().ok_or_else(|| ClientError::no_pods(&[name], namespace))
}

/// The newest pod of this name; if there is none, the newest static pod whose name is this and the name of the node.
fn newest<'a>(pods: &'a [Pod], name: &str) -> Option<&'a Pod> {
    let created = |pod: &&Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let exact = pods.iter().filter(|pod| pod.metadata.name.as_deref() == Some(name)).max_by_key(created);
    exact.or_else(|| pods.iter().filter(|pod| is_shortened(pod, name)).max_by_key(created))
}

/// The pod is static, and `name` is its name without the name of the node.
pub(super) fn is_shortened(pod: &Pod, name: &str) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let source = pod.metadata.annotations.as_ref().and_then(|all| all.get(podwright_core::static_pod::CONFIG_SOURCE));
    let is_static = source.is_some_and(|source| source == "file" || source == "http");
    is_static && pod.metadata.name.as_deref().is_some_and(|full| is_named(full, name, node))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, source: &Value) -> Pod {
        let annotations = json!({"kubernetes.io/config.source": source});
        let annotations = if source.is_null() { json!({}) } else { annotations };
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"nodeName": "n", "containers": []}}))
            .unwrap()
    }

    #[test]
    fn an_exact_name_is_preferred_and_only_static_pods_may_be_shortened() {
        let pods = [pod("web-n", &json!("file")), pod("web", &Value::Null), pod("db-n", &Value::Null)];
        assert_eq!(newest(&pods, "web").and_then(|pod| pod.metadata.name.as_deref()), Some("web"));
        assert_eq!(newest(&pods[..1], "web").and_then(|pod| pod.metadata.name.as_deref()), Some("web-n"));
        assert_eq!(newest(&pods, "db"), None);
    }
}
