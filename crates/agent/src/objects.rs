//! API objects that pods refer to: contents of volumes, environment, registry credentials, claims.
//!
//! The first request of a pod for an object registers it: from then on the implementation watches the object for that pod and sends
//! [`podwright_core::model::Event::ObjectsChanged`] to the event loop when it changes, until [`ObjectClient::release`]. Core
//! never sees the objects, only that something changed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service,
};
use podwright_core::model::{Pod, PodUid};
use podwright_cri::BoxFuture;

/// A request for an object, under way.
pub type ObjectFuture<'a, T> = BoxFuture<'a, Result<T, GetObjectError>>;

/// Reads API objects for pods.
pub trait ObjectClient: Send + Sync + 'static {
    /// A ConfigMap. If the server answers, it is no older than this pod's first request for it.
    fn config_map<'a>(
        &'a self,
        uid: &'a PodUid,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, Redacted<ConfigMap>>;

    /// A Secret, as fresh as [`ObjectClient::config_map`].
    fn secret<'a>(&'a self, uid: &'a PodUid, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>>;

    /// A token of the pod's service account, bound to the pod. It is never about to expire.
    fn token<'a>(&'a self, pod: &'a Pod, spec: TokenSpec) -> ObjectFuture<'a, Redacted<String>>;

    /// The runtime handler that a RuntimeClass names.
    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String>;

    /// A PersistentVolumeClaim and the volume it is bound to.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume>;

    /// The services whose addresses go into the pod's environment: that of the API server, and with `enableServiceLinks` those
    /// of the pod's namespace. Static pods get those known at the moment: they do not wait for a server.
    fn services<'a>(&'a self, pod: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>>;

    /// The certificates of the trust bundles that this projection selects, as PEM.
    fn trust_bundle<'a>(
        &'a self,
        uid: &'a PodUid,
        selection: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>>;

    /// Drops all registrations of the pod.
    fn release(&self, uid: &PodUid);
}

impl fmt::Debug for dyn ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectClient")
    }
}

/// A shared object that may contain secrets: its `Debug` output shows none of its content.
pub struct Redacted<T>(Arc<T>);

impl<T> Redacted<T> {
    /// Wraps the object.
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

/// Parameters of a service account token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpec {
    /// The audience; empty: the API server itself.
    pub audience: String,
    /// Requested lifetime.
    pub expiration_seconds: i64,
}

/// A claim, with its volume once it is bound.
#[derive(Clone, Debug)]
pub struct ClaimWithVolume {
    /// The PersistentVolumeClaim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// `None`: the claim is not bound.
    pub volume: Option<Arc<PersistentVolume>>,
}

/// Why an object could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetObjectError {
    /// The server has no object of this name.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `configmap`, `secret`, …
        kind: &'static str,
        /// Name, without namespace.
        name: String,
    },
    /// No API server is configured.
    #[error("couldn't get {what}: no API server is configured on this node")]
    NoServer {
        /// Kind, namespace and name.
        what: String,
    },
    /// The server did not answer, or not with the object.
    #[error("couldn't get {what}: {why}")]
    Unavailable {
        /// Kind, namespace and name.
        what: String,
        /// The server's error.
        why: String,
    },
}

impl GetObjectError {
    /// There is no such object; references marked optional are then left out.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// `None` if the object does not exist and the pod's reference is optional.
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

/// The client of a node without an API server: every read fails, apart from [`ObjectClient::services`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApiServer;

fn no_server<'a, T: Send + 'a>(what: String) -> ObjectFuture<'a, T> {
    Box::pin(async move { Err(GetObjectError::NoServer { what }) })
}

impl ObjectClient for NoApiServer {
    fn config_map<'a>(
        &'a self,
        _: &'a PodUid,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, Redacted<ConfigMap>> {
        no_server(format!("configMap {namespace}/{name}"))
    }

    fn secret<'a>(&'a self, _: &'a PodUid, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>> {
        no_server(format!("secret {namespace}/{name}"))
    }

    fn token<'a>(&'a self, pod: &'a Pod, _: TokenSpec) -> ObjectFuture<'a, Redacted<String>> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
        no_server(format!("serviceAccountToken of {account:?}"))
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String> {
        no_server(format!("RuntimeClass {class:?}"))
    }

    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume> {
        no_server(format!("persistentVolumeClaim {namespace}/{name}"))
    }

    /// Without an API server there are no services; pods run all the same.
    fn services<'a>(&'a self, _: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn trust_bundle<'a>(
        &'a self,
        _: &'a PodUid,
        _: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>> {
        no_server("clusterTrustBundle".into())
    }

    fn release(&self, _: &PodUid) {}
}

#[cfg(test)]
pub(crate) mod fake;
