//! What can be followed, and how it is read: into what is used and nothing else.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::trimmed::Who;

/// An object that is kept while pods need it.
pub(crate) trait Cacheable: Sized + Send + Sync + 'static {
    /// Its name in paths.
    const RESOURCE: &'static str;
    /// Pods hear of every change, not only of it being there at last.
    const TOLD: bool;

    /// From the server's JSON.
    fn read(json: &[u8]) -> Result<Self, serde_json::Error>;
    /// Who it is, and its version.
    fn metadata(&self) -> &ObjectMeta;
    /// It shows the same, whatever its version.
    fn is_same(&self, other: &Self) -> bool;
    /// It can't change any more.
    fn is_immutable(&self) -> bool;
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trimmed<D> {
    metadata: Who,
    data: Option<BTreeMap<String, D>>,
    binary_data: Option<BTreeMap<String, ByteString>>,
    immutable: Option<bool>,
    #[serde(rename = "type")]
    type_: Option<String>,
}

pub(super) fn metadata(who: Who) -> ObjectMeta {
    ObjectMeta {
        name: Some(who.name),
        namespace: Some(who.namespace),
        uid: Some(who.uid),
        resource_version: Some(who.resource_version),
        ..ObjectMeta::default()
    }
}

impl Cacheable for ConfigMap {
    const RESOURCE: &'static str = "configmaps";
    const TOLD: bool = true;

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
    const TOLD: bool = true;

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
    /// A container keeps the environment it was started with.
    const TOLD: bool = false;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Trimmed {
            metadata: Who,
            spec: Option<ServiceSpec>,
        }
        let Trimmed { metadata: who, spec } = serde_json::from_slice(json)?;
        let used =
            |spec: ServiceSpec| ServiceSpec { cluster_ip: spec.cluster_ip, ports: spec.ports, ..Default::default() };
        Ok(Self { metadata: metadata(who), spec: spec.map(used), status: None })
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
