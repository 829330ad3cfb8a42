//! API objects that pods refer to, as the hands ask for them: contents of volumes, environment, logins, claims.
//!
//! The first ask for an object by a pod registers it: from then on whoever answers watches the object for that pod and tells
//! the loop when it has changed ([`podwright_core::model::Event::ObjectsChanged`]), until [`ObjectClient::release`]. Core never sees
//! any of this: only that something changed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service,
};
use podwright_core::model::{Pod, PodUid};
use podwright_cri::BoxFuture;

/// What came of asking for an object.
pub type ObjectFuture<'a, T> = BoxFuture<'a, Result<T, GetObjectError>>;

/// Whoever has API objects.
pub trait ObjectClient: Send + Sync + 'static {
    /// A ConfigMap, no older than this pod's first ask for it, if the server answers.
    fn config_map<'a>(
        &'a self,
        uid: &'a PodUid,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, Redacted<ConfigMap>>;

    /// A Secret, as fresh.
    fn secret<'a>(&'a self, uid: &'a PodUid, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>>;

    /// A token of the pod's service account, bound to the pod. Always one that is good for a while.
    fn token<'a>(&'a self, pod: &'a Pod, ask: TokenSpec) -> ObjectFuture<'a, Redacted<String>>;

    /// The handler of a RuntimeClass.
    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String>;

    /// A claim and the volume it is bound to, if it is.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume>;

    /// The services whose addresses the pod is told: that of the API server, and with `enableServiceLinks` those of its
    /// namespace. Static pods get those known at the moment: they don't wait for a server.
    fn services<'a>(&'a self, pod: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>>;

    /// The certificates of the trust bundles that this projection selects, as PEM.
    fn trust_bundle<'a>(
        &'a self,
        uid: &'a PodUid,
        selection: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>>;

    /// The pod needs nothing any more.
    fn release(&self, uid: &PodUid);
}

impl fmt::Debug for dyn ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectClient")
    }
}

/// A shared object that may hold secrets: it prints as nothing but its name.
pub struct Redacted<T>(Arc<T>);

impl<T> Redacted<T> {
    /// Holds it.
    pub fn new(object: impl Into<Arc<T>>) -> Self {
        Self(object.into())
    }
}

impl<T> Clone for Redacted<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Redacted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redacted(..)")
    }
}

/// Which token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpec {
    /// For whom it is meant; empty: the API server itself.
    pub audience: String,
    /// How long it should be good.
    pub expiration_seconds: i64,
}

/// A claim, and its volume once it is bound.
#[derive(Clone, Debug)]
pub struct ClaimWithVolume {
    /// The claim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// `None`: the claim is not bound.
    pub volume: Option<Arc<PersistentVolume>>,
}

/// Why an object can't be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetObjectError {
    /// The server has none of this name.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `configmap`, `secret`, …
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is nobody to ask.
    #[error("couldn't get {what}: no API server is configured on this node")]
    NoServer {
        /// Kind, namespace and name.
        what: String,
    },
    /// The server does not answer, or not with the object.
    #[error("couldn't get {what}: {why}")]
    Unavailable {
        /// Kind, namespace and name.
        what: String,
        /// What it said instead.
        why: String,
    },
}

impl GetObjectError {
    /// There is no such object: who can do without it does.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// An object that may be missing: `None` if it is and the pod says that it can do without.
pub(crate) fn unless_optional<T>(
    found: Result<T, GetObjectError>,
    optional: Option<bool>,
) -> Result<Option<T>, GetObjectError> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() && optional == Some(true) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A node without an API server: nothing can be had.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApiServer;

fn nobody<'a, T: Send + 'a>(what: String) -> ObjectFuture<'a, T> {
    Box::pin(async move { Err(GetObjectError::NoServer { what }) })
}

impl ObjectClient for NoApiServer {
    fn config_map<'a>(
        &'a self,
        _: &'a PodUid,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, Redacted<ConfigMap>> {
        nobody(format!("configMap {namespace}/{name}"))
    }

    fn secret<'a>(&'a self, _: &'a PodUid, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>> {
        nobody(format!("secret {namespace}/{name}"))
    }

    fn token<'a>(&'a self, pod: &'a Pod, _: TokenSpec) -> ObjectFuture<'a, Redacted<String>> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
        nobody(format!("serviceAccountToken of {account:?}"))
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String> {
        nobody(format!("RuntimeClass {class:?}"))
    }

    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume> {
        nobody(format!("persistentVolumeClaim {namespace}/{name}"))
    }

    /// Nobody has services here, and that is no reason not to run.
    fn services<'a>(&'a self, _: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn trust_bundle<'a>(
        &'a self,
        _: &'a PodUid,
        _: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>> {
        nobody("clusterTrustBundle".into())
    }

    fn release(&self, _: &PodUid) {}
}

#[cfg(test)]
pub(crate) mod fake;
