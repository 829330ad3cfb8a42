//! The kinds of objects that can be cached, and how each is decoded: only the fields that are used.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::trimmed::ObjectIdentity;

/// A kind of object that a `WatchCache` can hold.
pub(crate) trait Cacheable: Sized + Send + Sync + 'static {
    /// The resource name in API paths, e.g. `configmaps`.
    const RESOURCE: &'static str;
    /// Whether pods are notified of every change, or only when an object exists that was missing before.
    const NOTIFY_CHANGES: bool;

    /// Decodes the server's JSON.
    fn read(json: &[u8]) -> Result<Self, serde_json::Error>;
    /// Name, namespace, UID and version; other fields are not decoded.
    fn metadata(&self) -> &ObjectMeta;
    /// Whether the content is equal, whatever the version.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether the content can never change (`immutable: true`).
    fn is_immutable(&self) -> bool;
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trimmed<D> {
    metadata: ObjectIdentity,
    data: Option<BTreeMap<String, D>>,
    binary_data: Option<BTreeMap<String, ByteString>>,
    immutable: Option<bool>,
    #[serde(rename = "type")]
    type_: Option<String>,
}

/// The decoded part of an object's metadata.
pub(crate) fn metadata(identity: ObjectIdentity) -> ObjectMeta {
    ObjectMeta {
        name: Some(identity.name),
        namespace: Some(identity.namespace),
        uid: Some(identity.uid),
        resource_version: Some(identity.resource_version),
        ..ObjectMeta::default()
    }
}

impl Cacheable for ConfigMap {
    const RESOURCE: &'static str = "configmaps";
    const NOTIFY_CHANGES: bool = true;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        let read: Trimmed<String> = serde_json::from_slice(json)?;
        let Trimmed { data, binary_data, immutable, .. } = read;
        Ok(Self { metadata: metadata(read.metadata), data, binary_data, immutable })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_same(&self, other: &Self) -> bool {
        self.data == other.data && self.binary_data == other.binary_data
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Cacheable for Secret {
    const RESOURCE: &'static str = "secrets";
    const NOTIFY_CHANGES: bool = true;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        let read: Trimmed<ByteString> = serde_json::from_slice(json)?;
        let Trimmed { data, immutable, type_, .. } = read;
        Ok(Self { metadata: metadata(read.metadata), data, immutable, type_, string_data: None })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_same(&self, other: &Self) -> bool {
        self.data == other.data && self.type_ == other.type_
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Cacheable for Service {
    const RESOURCE: &'static str = "services";
    /// A container keeps the environment that it was started with.
    const NOTIFY_CHANGES: bool = false;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Trimmed {
            metadata: ObjectIdentity,
            spec: Option<ServiceSpec>,
        }
        let Trimmed { metadata: identity, spec } = serde_json::from_slice(json)?;
        let used =
            |spec: ServiceSpec| ServiceSpec { cluster_ip: spec.cluster_ip, ports: spec.ports, ..Default::default() };
        Ok(Self { metadata: metadata(identity), spec: spec.map(used), status: None })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_same(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn is_immutable(&self) -> bool {
        false
    }
}
