//! The objects that pods refer to: ConfigMaps, Secrets, trust bundles, services, tokens, claims, runtime classes.
//!
//! ```text
//!  a pod's first request ─▶ subscribed ─▶ read (no older than the request) ─▶ watched, shared by all pods that need it
//!                                                                               │ changed, deleted, or created at last
//!  a pod is released: after the last one the watch stops                        ▼
//!                                                                     Event::ObjectsChanged per pod
//! ```
//! The node is authorized only for single named objects that its pods refer to, so each is listed and watched by name. Watches use
//! separate connections, so that many of them never delay a status patch. No content is ever logged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use podwright_core::model::{Event, PodUid};
use podwright_tasks::Tasks;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::object_read::{READ_TIMEOUT, decode_error, path_segment, retry_forbidden};
use crate::services::Services;
use crate::token::Tokens;
use crate::watch_cache::{WatchCache, WatchContext};

mod trust_bundles;

use trust_bundles::TrustBundle;

/// The objects that the pods of this node refer to. Clones share the caches.
#[derive(Clone)]
pub struct ReferencedObjects {
    inner: Arc<Inner>,
}

struct Inner {
    client: ApiClient,
    config_maps: WatchCache<ConfigMap>,
    secrets: WatchCache<Secret>,
    trust_bundles: WatchCache<TrustBundle>,
    services: Services,
    tokens: Tokens,
    /// Runtime handlers as last read: they never change, and an unreachable server must not prevent a sandbox.
    handlers: Mutex<BTreeMap<String, String>>,
}

impl ReferencedObjects {
    /// Reads nothing before a pod requests it. Changes are sent to `events`.
    pub fn new(client: &ApiClient, events: mpsc::Sender<Event>, tasks: &Tasks) -> Self {
        let context = WatchContext::new(client, events.clone(), tasks.clone());
        let inner = Inner {
            config_maps: WatchCache::new(context.clone()),
            secrets: WatchCache::new(context.clone()),
            trust_bundles: WatchCache::new(context.clone()),
            services: Services::new(context),
            tokens: Tokens::new(client.clone(), events, tasks),
            handlers: Mutex::default(),
            client: client.clone(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A ConfigMap, no older than this pod's first request if the server responds, else as cached.
    pub async fn config_map(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ApiError> {
        self.inner.config_maps.single(uid, namespace, name).await
    }

    /// A Secret, as fresh as a ConfigMap.
    pub async fn secret(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<Secret>, ApiError> {
        self.inner.secrets.single(uid, namespace, name).await
    }

    /// The service account tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.inner.tokens
    }

    /// The services for pods' environment variables.
    pub fn services(&self) -> &Services {
        &self.inner.services
    }

    /// The handler of a RuntimeClass; the one read last if the server is unreachable.
    pub async fn runtime_handler(&self, class: &str) -> Result<String, ApiError> {
        let read: Result<RuntimeClass, _> = self.read(&["/apis/node.k8s.io/v1/runtimeclasses", class]).await;
        let known = || self.inner.handlers.lock().expect("no panic under this lock").get(class).cloned();
        match read {
            Ok(found) => {
                let mut handlers = self.inner.handlers.lock().expect("no panic under this lock");
                if handlers.len() >= HANDLERS_MAX {
                    handlers.clear();
                }
                handlers.insert(class.to_owned(), found.handler.clone());
                Ok(found.handler)
            }
            Err(error) if error.code().is_some() => Err(error),
            Err(error) => known().ok_or(error),
        }
    }

    /// A claim, and the volume that it is bound to; `None`: it is not bound.
    pub async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<(PersistentVolumeClaim, Option<PersistentVolume>), ApiError> {
        let base = format!("/api/v1/namespaces/{}/persistentvolumeclaims", path_segment(namespace)?);
        let claim: PersistentVolumeClaim = self.read(&[&base, name]).await?;
        let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
        match volume.filter(|_| is_bound) {
            Some(volume) => {
                let found = self.read(&["/api/v1/persistentvolumes", &volume]).await?;
                Ok((claim, Some(found)))
            }
            None => Ok((claim, None)),
        }
    }

    /// Drops all references of the pod.
    pub fn release(&self, uid: &PodUid) {
        self.inner.config_maps.release(uid);
        self.inner.secrets.release(uid);
        self.inner.trust_bundles.release(uid);
        self.inner.services.release(uid);
        self.inner.tokens.release(uid);
    }

    /// Reads one object that is not watched.
    async fn read<T: DeserializeOwned>(&self, path: &[&str; 2]) -> Result<T, ApiError> {
        let path = format!("{}/{}", path[0], path_segment(path[1])?);
        retry_forbidden(|| self.inner.client.call(request(Method::GET, &path, None), READ_TIMEOUT))
            .await
            .and_then(|body| serde_json::from_slice(&body).map_err(|error| decode_error(&error)))
    }
}

/// Bounds the cached runtime handlers.
const HANDLERS_MAX: usize = 256;

#[cfg(test)]
mod tests;
