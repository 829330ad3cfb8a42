//! What the API server keeps for pods: ConfigMaps, Secrets, trust bundles, services, tokens, claims, runtime classes.
//!
//! ```text
//!  a pod's first ask ─▶ registered ─▶ read (no older than the ask) ─▶ watched, shared by all pods that need it
//!                                                                        │ changed, gone, or there at last
//!  a pod's end ─▶ released: the last one ends the watch                  ▼
//!                                                              Event::ObjectsChanged per pod
//! ```
//! The node may only read single named objects that its pods refer to, so each is listed and watched by its name. Watches have
//! connections of their own, so that many of them never stand in the way of a status. No value is ever logged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use podwright_core::model::{Event, PodUid};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::services::Services;
use crate::token::Tokens;

mod cacheable;
mod trust;
mod watch_cache;
mod watch_connections;
mod watched;

pub(crate) use watch_cache::{WatchCache, WatchContext};

use trust::TrustBundle;

/// The objects that the pods of this node refer to. Clones share them.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: Cluster,
    config_maps: WatchCache<ConfigMap>,
    secrets: WatchCache<Secret>,
    trust_bundles: WatchCache<TrustBundle>,
    services: Services,
    tokens: Tokens,
    /// Handlers as last read: they never change, and a server that is away must not stop a sandbox.
    handlers: Mutex<BTreeMap<String, String>>,
}

impl Objects {
    /// Nothing is asked for before a pod needs it. Changes go to `events`.
    pub fn new(cluster: &Cluster, events: mpsc::Sender<Event>) -> Self {
        let line = WatchContext::new(cluster, events.clone());
        let inner = Inner {
            config_maps: WatchCache::new(line.clone()),
            secrets: WatchCache::new(line.clone()),
            trust_bundles: WatchCache::new(line.clone()),
            services: Services::new(line),
            tokens: Tokens::new(cluster.clone(), events),
            handlers: Mutex::default(),
            cluster: cluster.clone(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A ConfigMap, no older than this pod's first ask, if the server answers; else what is known.
    pub async fn config_map(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ApiError> {
        self.inner.config_maps.single(uid, namespace, name).await
    }

    /// A Secret, as fresh.
    pub async fn secret(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<Secret>, ApiError> {
        self.inner.secrets.single(uid, namespace, name).await
    }

    /// Tokens of service accounts.
    pub fn tokens(&self) -> &Tokens {
        &self.inner.tokens
    }

    /// Services that pods are told of.
    pub fn services(&self) -> &Services {
        &self.inner.services
    }

    /// The handler of a RuntimeClass.
    pub async fn runtime_handler(&self, class: &str) -> Result<String, ApiError> {
        let read: Result<RuntimeClass, _> = self.read(&["/apis/node.k8s.io/v1/runtimeclasses", class]).await;
        let known = || self.inner.handlers.lock().expect("nobody panics with it").get(class).cloned();
        match read {
            Ok(found) => {
                let mut handlers = self.inner.handlers.lock().expect("nobody panics with it");
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

    /// A claim, and the volume it is bound to if it is.
    pub async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<(PersistentVolumeClaim, Option<PersistentVolume>), ApiError> {
        let base = format!("/api/v1/namespaces/{}/persistentvolumeclaims", checked(namespace)?);
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

    /// The pod needs nothing any more.
    pub fn release(&self, uid: &PodUid) {
        self.inner.config_maps.release(uid);
        self.inner.secrets.release(uid);
        self.inner.trust_bundles.release(uid);
        self.inner.services.release(uid);
        self.inner.tokens.release(uid);
    }

    /// One object that is read when it is needed, and not watched.
    async fn read<T: DeserializeOwned>(&self, path: &[&str; 2]) -> Result<T, ApiError> {
        let path = format!("{}/{}", path[0], checked(path[1])?);
        patiently(|| self.inner.cluster.call(request(Method::GET, &path, None), READ_MAX))
            .await
            .and_then(|body| serde_json::from_slice(&body).map_err(|error| ApiError::Garbage(where_in(&error))))
    }
}

/// A pod is seen here a moment before the server's Node authorizer knows that it is ours: a refusal may be over at once.
pub(crate) async fn patiently<T, F>(mut ask: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    for _ in 0..REFUSALS_MAX {
        match ask().await {
            Err(error) if error.code() == Some(403) => tokio::time::sleep(REFUSAL_WAIT).await,
            result => return result,
        }
    }
    ask().await
}

/// Names come from pods; one that is no name must not become another path.
pub(crate) fn checked(name: &str) -> Result<&str, ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':' | b'_');
    let fine = !name.is_empty() && name.len() <= 253 && name.bytes().all(plain) && name != "." && name != "..";
    fine.then_some(name).ok_or_else(|| ApiError::Garbage(format!("{name:?} is no name of an object")))
}

/// Where an answer could not be read. What it said there may be a secret.
pub(crate) fn where_in(error: &serde_json::Error) -> String {
    format!("it can't be read at line {}, column {}", error.line(), error.column())
}

/// An answer is there in milliseconds, or the server is away.
pub(crate) const READ_MAX: Duration = Duration::from_secs(10);
const REFUSALS_MAX: u32 = 10;
const REFUSAL_WAIT: Duration = Duration::from_millis(100);
const HANDLERS_MAX: usize = 256;

#[cfg(test)]
pub(crate) mod tests;
