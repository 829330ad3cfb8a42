//! Services whose addresses pods are told: that of the API server to all, those of its namespace to a pod that wants links.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use podwright_core::model::PodUid;

use crate::error::ApiError;
use crate::objects::{WatchCache, WatchContext};

/// The services of namespaces that pods here want links to.
pub struct Services {
    cache: WatchCache<Service>,
}

impl Services {
    pub(crate) fn new(line: WatchContext) -> Self {
        Self { cache: WatchCache::new(line) }
    }

    /// The services a pod is told of. `links`: those of its namespace too.
    pub async fn of_pod(&self, uid: &PodUid, namespace: &str, links: bool) -> Result<Vec<Arc<Service>>, ApiError> {
        let (master, own) = tokio::join!(self.cache.all(uid, MASTER_NAMESPACE, Some(MASTER)), async {
            match links {
                true => self.cache.all(uid, namespace, None).await,
                false => Ok(Default::default()),
            }
        });
        Ok(merged(master?.into_values(), own?.into_values()))
    }

    /// As far as they are known at this moment.
    pub fn known_to_pod(&self, uid: &PodUid, namespace: &str, links: bool) -> Vec<Arc<Service>> {
        let master = self.cache.known(uid, MASTER_NAMESPACE, Some(MASTER));
        let own = if links { self.cache.known(uid, namespace, None) } else { Default::default() };
        merged(master.into_values(), own.into_values())
    }

    pub(crate) fn release(&self, uid: &PodUid) {
        self.cache.release(uid);
    }
}

/// A pod's own service of the master's name stands before the master (Kubernetes: getServiceEnvVarMap).
fn merged(master: impl Iterator<Item = Arc<Service>>, own: impl Iterator<Item = Arc<Service>>) -> Vec<Arc<Service>> {
    let mut all: Vec<Arc<Service>> = own.collect();
    let missing = master.filter(|m| !all.iter().any(|s| s.metadata.name == m.metadata.name)).collect::<Vec<_>>();
    all.extend(missing);
    all
}

/// Kubernetes: the service in front of the API server itself.
const MASTER: &str = "kubernetes";
const MASTER_NAMESPACE: &str = "default";
