//! The API objects that pods refer to, in the types of `podwright_agent`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ClusterTrustBundleProjection, ConfigMap, Secret, Service};
use podwright_agent::objects::{
    ClaimWithVolume, GetObjectError, NoApiServer, ObjectClient, ObjectFuture, Redacted, TokenSpec,
};
use podwright_api::token::TokenKey;
use podwright_api::{ApiClient, ApiError};
use podwright_core::model::{Event, Pod, PodUid};
use podwright_tasks::Tasks;
use tokio::sync::mpsc;

/// The objects that pods refer to. Their changes go to `events`.
pub(crate) fn objects(
    cluster: Option<&ApiClient>,
    events: mpsc::Sender<Event>,
    tasks: &Tasks,
) -> Arc<dyn ObjectClient> {
    match cluster {
        Some(cluster) => Arc::new(ApiObjects(podwright_api::ReferencedObjects::new(cluster, events, tasks))),
        None => Arc::new(NoApiServer),
    }
}

struct ApiObjects(podwright_api::ReferencedObjects);

impl ObjectClient for ApiObjects {
    fn config_map<'a>(
        &'a self,
        uid: &'a PodUid,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, Redacted<ConfigMap>> {
        Box::pin(async move {
            let found = self.0.config_map(uid, namespace, name).await;
            found.map(Redacted::new).map_err(|error| object_error(&error, "configmap", &format!("{namespace}/{name}")))
        })
    }

    fn secret<'a>(&'a self, uid: &'a PodUid, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>> {
        Box::pin(async move {
            let found = self.0.secret(uid, namespace, name).await;
            found.map(Redacted::new).map_err(|error| object_error(&error, "secret", &format!("{namespace}/{name}")))
        })
    }

    fn token<'a>(&'a self, pod: &'a Pod, ask: TokenSpec) -> ObjectFuture<'a, Redacted<String>> {
        Box::pin(async move {
            let key = TokenKey {
                uid: uid(pod),
                pod: pod.metadata.name.clone().unwrap_or_default(),
                namespace: namespace(pod).to_owned(),
                account: pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default(),
                audience: ask.audience,
                expiration_seconds: ask.expiration_seconds,
            };
            let found = self.0.tokens().get(&key).await;
            found.map(Redacted::new).map_err(|error| GetObjectError::Unavailable {
                what: format!("serviceAccountToken of {}/{}", key.namespace, key.account),
                why: error.to_string(),
            })
        })
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String> {
        Box::pin(async move {
            let found = self.0.runtime_handler(class).await;
            found.map_err(|error| object_error(&error, "RuntimeClass", class))
        })
    }

    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume> {
        Box::pin(async move {
            let found = self.0.claim(namespace, name).await;
            let (claim, volume) =
                found.map_err(|error| object_error(&error, "persistentvolumeclaim", &format!("{namespace}/{name}")))?;
            Ok(ClaimWithVolume { claim: Arc::new(claim), volume: volume.map(Arc::new) })
        })
    }

    fn services<'a>(&'a self, pod: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>> {
        Box::pin(async move {
            let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
            if !is_from_api_server(pod) {
                return Ok(self.0.services().known_to_pod(&uid(pod), namespace(pod), links));
            }
            let found = self.0.services().of_pod(&uid(pod), namespace(pod), links).await;
            found.map_err(|error| GetObjectError::Unavailable {
                what: format!("services of {}", namespace(pod)),
                why: error.to_string(),
            })
        })
    }

    fn trust_bundle<'a>(
        &'a self,
        uid: &'a PodUid,
        selection: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>> {
        Box::pin(async move {
            let (found, name) = match (&selection.name, &selection.signer_name) {
                (Some(name), _) => (self.0.trust_bundle(uid, name).await, name.as_str()),
                (None, Some(signer)) => {
                    let labels = selection.label_selector.as_ref();
                    (self.0.trust_bundles_of(uid, signer, labels).await, signer.as_str())
                }
                (None, None) => {
                    let why = "the projection names neither a bundle nor a signer".into();
                    return Err(GetObjectError::Unavailable { what: "clusterTrustBundle".into(), why });
                }
            };
            found.map(Redacted::new).map_err(|error| object_error(&error, "clustertrustbundle", name))
        })
    }

    fn release(&self, uid: &PodUid) {
        self.0.release(uid);
    }
}

/// `path` is the name, after the namespace and a slash for namespaced objects.
fn object_error(error: &ApiError, kind: &'static str, path: &str) -> GetObjectError {
    if error.is_not_found() {
        let name = path.rsplit('/').next().unwrap_or(path);
        return GetObjectError::NotFound { kind, name: name.to_owned() };
    }
    GetObjectError::Unavailable { what: format!("{kind} {path}"), why: error.to_string() }
}

/// Whether the pod came from the API server: then its services must be known before it starts.
fn is_from_api_server(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|all| all.get("kubernetes.io/config.source"));
    source.is_none_or(|source| source == "api")
}

fn uid(pod: &Pod) -> PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_objects_have_the_kubelets_error_messages() {
        let error = |code| ApiError::Status { code, reason: "R".into(), message: "why".into(), retry_after: None };
        assert_eq!(object_error(&error(404), "configmap", "n/c").to_string(), "configmap \"c\" not found");
        assert_eq!(object_error(&error(403), "secret", "n/s").to_string(), "couldn't get secret n/s: 403 R: why");
    }
}
