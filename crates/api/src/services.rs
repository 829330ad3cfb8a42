//! Services that become environment variables: the API server's for every pod, those of its namespace for a pod with
//! `enableServiceLinks`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use podwright_core::model::PodUid;

use crate::error::ApiError;
use crate::watch_cache::{WatchCache, WatchContext};

/// Cache of the services that pods of this node get environment variables for.
pub struct Services {
    cache: WatchCache<Service>,
}

impl Services {
    pub(crate) fn new(context: WatchContext) -> Self {
        Self { cache: WatchCache::new(context) }
    }

    /// The services to describe in the pod's environment. `links` adds those of its namespace.
    pub async fn of_pod(&self, uid: &PodUid, namespace: &str, links: bool) -> Result<Vec<Arc<Service>>, ApiError> {
        let (master, own) = tokio::join!(self.cache.all(uid, MASTER_NAMESPACE, Some(MASTER)), async {
            match links {
                true => self.cache.all(uid, namespace, None).await,
                false => Ok(Default::default()),
            }
        });
        Ok(merged(master?.into_values(), own?.into_values()))
    }

    /// Like `of_pod`, from the cache only, without waiting for a read.
    pub fn known_to_pod(&self, uid: &PodUid, namespace: &str, links: bool) -> Vec<Arc<Service>> {
        let master = self.cache.known(uid, MASTER_NAMESPACE, Some(MASTER));
        let own = if links { self.cache.known(uid, namespace, None) } else { Default::default() };
        merged(master.into_values(), own.into_values())
    }

    pub(crate) fn release(&self, uid: &PodUid) {
        self.cache.release(uid);
    }
}

/// A service of the pod's namespace takes precedence over a master service of the same name (Kubernetes: getServiceEnvVarMap).
fn merged(master: impl Iterator<Item = Arc<Service>>, own: impl Iterator<Item = Arc<Service>>) -> Vec<Arc<Service>> {
    let mut all: Vec<Arc<Service>> = own.collect();
    let missing = master.filter(|m| !all.iter().any(|s| s.metadata.name == m.metadata.name)).collect::<Vec<_>>();
    all.extend(missing);
    all
}

/// Kubernetes: the service in front of the API server itself.
const MASTER: &str = "kubernetes";
const MASTER_NAMESPACE: &str = "default";
