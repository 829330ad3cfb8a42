//! The body of `/pods`: built once per change of the pods, off the async workers; for readers that are not authorized without values
//! of environment variables.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use podwright_agent::feed::{PodFeed, PodView};
use podwright_agent::host::{Pool, PoolError};
use serde::{Serialize, Serializer};
use tokio::sync::Mutex;

use crate::serve::RESPONSE_TIMEOUT;

/// The list of all pods. All readers share one body.
pub struct PodListCache {
    feed: Arc<PodFeed>,
    pool: Pool,
    /// Values of environment variables are shown.
    complete: bool,
    /// The resourceVersion of the list and its body. Held during a build, so that concurrent readers wait for one build.
    built: Mutex<Option<(u64, Bytes)>>,
}

impl PodListCache {
    /// For readers that are not trusted. Nothing is built before the first request.
    pub fn new(feed: Arc<PodFeed>, pool: Pool) -> Self {
        Self { feed, pool, complete: false, built: Mutex::default() }
    }

    /// For authorized readers: with values of environment variables.
    pub fn complete(feed: Arc<PodFeed>, pool: Pool) -> Self {
        Self { complete: true, ..Self::new(feed, pool) }
    }

    /// The JSON of a v1 PodList. If it cannot be built, an older one; an error if there is none.
    pub async fn body(&self) -> Result<Bytes, PoolError> {
        let mut built = self.built.lock().await;
        match &*built {
            Some((version, body)) if *version == self.feed.version() => return Ok(body.clone()),
            _ => {}
        }
        let (version, pods) = self.feed.list();
        let (key, complete) = (if self.complete { COMPLETE_KEY } else { POOL_KEY }, self.complete);
        match self.pool.run(key, RESPONSE_TIMEOUT, move || pod_list(version, &pods, complete)).await {
            Ok(body) => Ok(built.insert((version, body)).1.clone()),
            Err(error) => {
                tracing::warn!(%error, "list of pods not built");
                // An older list is better than none.
                built.as_ref().map(|(_, body)| body.clone()).ok_or(error)
            }
        }
    }
}

fn pod_list(version: u64, views: &[Arc<PodView>], complete: bool) -> Bytes {
    let metadata = ListMeta { resource_version: version.to_string() };
    let list = PodList { kind: "PodList", api_version: "v1", metadata, items: ListItems { views, complete } };
    Bytes::from(serde_json::to_vec(&list).expect("pods have string keys"))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: ListMeta,
    items: ListItems<'a>,
}

/// Pods of which one is copied at a time: a pod may take megabytes.
struct ListItems<'a> {
    views: &'a [Arc<PodView>],
    complete: bool,
}

impl Serialize for ListItems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = |pod| if self.complete { with_status(pod) } else { redacted(pod) };
        serializer.collect_seq(self.views.iter().map(|view| shown(view.pod())))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// The pod without values of environment variables, which are often credentials.
fn redacted(mut pod: Pod) -> Pod {
    if let Some(spec) = &mut pod.spec {
        let containers = spec.containers.iter_mut().map(|container| &mut container.env);
        let init = spec.init_containers.iter_mut().flatten().map(|container| &mut container.env);
        let ephemeral = spec.ephemeral_containers.iter_mut().flatten().map(|container| &mut container.env);
        for variable in containers.chain(init).chain(ephemeral).flatten().flatten() {
            redact(variable);
        }
    }
    // `kubectl apply` stores the whole manifest in it.
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    with_status(pod)
}

fn with_status(mut pod: Pod) -> Pod {
    pod.status.get_or_insert_default();
    pod
}

/// An empty value stays: it hides nothing.
fn redact(variable: &mut EnvVar) {
    if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        variable.value = Some(REDACTED.into());
    }
}

const REDACTED: &str = "<redacted>";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// One list is built at a time.
const POOL_KEY: &str = "list of pods";
const COMPLETE_KEY: &str = "complete list of pods";

#[cfg(test)]
mod tests {
    use podwright_agent::host::PoolLimits;
    use podwright_core::model::Source;
    use serde_json::json;

    use super::*;

    fn feed() -> Arc<PodFeed> {
        let feed = Arc::new(PodFeed::default());
        add(&feed, "one");
        feed
    }

    fn add(feed: &PodFeed, name: &str) {
        let env = json!([
            {"name": "PASSWORD", "value": "hunter2"},
            {"name": "EMPTY", "value": ""},
            {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
        ]);
        let container =
            |kind: &str| json!([{"name": kind, "image": "i", "command": ["serve", "$(PASSWORD)"], "env": env}]);
        let manifest = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": {
                LAST_APPLIED: "{\"env\": \"hunter2\"}", "other": "stays"}},
            "spec": {"containers": container("main"), "initContainers": container("init"),
                "ephemeralContainers": container("debug")}
        });
        let pod = serde_json::from_value(manifest).unwrap();
        feed.put_object(Arc::new(pod), Source::File, None);
    }

    #[tokio::test]
    async fn no_value_of_an_environment_variable_is_shown_to_local_users() {
        let body = PodListCache::new(feed(), Pool::default()).body().await.unwrap();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        let list: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let pod = &list["items"][0];
        assert_eq!(pod["metadata"]["annotations"], json!({"other": "stays"}));
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            let container = &pod["spec"][list][0];
            assert_eq!(container["command"], json!(["serve", "$(PASSWORD)"]), "{list}");
            assert_eq!(
                container["env"],
                json!([{"name": "PASSWORD", "value": "<redacted>"}, {"name": "EMPTY", "value": ""},
                    {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
                "{list}"
            );
        }
    }

    #[tokio::test]
    async fn a_list_that_cannot_be_built_is_an_error_and_not_empty() {
        let refusing = Pool::new(PoolLimits { stuck: 0, ..PoolLimits::default() });
        assert!(PodListCache::new(feed(), refusing).body().await.is_err());
    }

    #[tokio::test]
    async fn the_list_is_built_once_per_change() {
        let feed = feed();
        let cache = PodListCache::new(feed.clone(), Pool::default());
        let (first, second) = tokio::join!(cache.body(), cache.body());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr(), "readers share one body");
        assert_eq!(cache.body().await.unwrap().as_ptr(), first.as_ptr());
        add(&feed, "two");
        let changed = cache.body().await.unwrap();
        assert!(changed.len() > first.len());
        assert_eq!(cache.body().await.unwrap().as_ptr(), changed.as_ptr());
    }
}
