//! The objects that a container's environment refers to, fetched before the translation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use podwright_core::model::{Container, Pod, find_container};

use crate::objects::{GetObjectError, ObjectClient, Redacted};
use crate::pod_spec::{pod_namespace, pod_uid};

/// The result of fetching each object, by name. An error matters only where the object is required.
#[derive(Debug, Default)]
pub struct References {
    config_maps: BTreeMap<String, Result<Redacted<ConfigMap>, GetObjectError>>,
    secrets: BTreeMap<String, Result<Redacted<Secret>, GetObjectError>>,
    services: Option<Result<Vec<Arc<Service>>, GetObjectError>>,
}

impl References {
    /// Fetches everything that the container's environment refers to, concurrently.
    pub(crate) async fn fetch(objects: &dyn ObjectClient, pod: &Pod, container: &str) -> Self {
        let Some(found) = find_container(pod, container) else { return Self::default() };
        let (uid, namespace) = (pod_uid(pod).into(), pod_namespace(pod));
        let config_maps = config_maps(&found.container);
        let config_maps = join_all(config_maps.into_iter().map(async |name| {
            let object = objects.config_map(&uid, namespace, name).await;
            (name.to_owned(), object)
        }));
        let secrets = secrets(&found.container);
        let secrets = join_all(secrets.into_iter().map(async |name| {
            let object = objects.secret(&uid, namespace, name).await;
            (name.to_owned(), object)
        }));
        let (config_maps, secrets, services) = tokio::join!(config_maps, secrets, objects.services(pod));
        Self {
            config_maps: config_maps.into_iter().collect(),
            secrets: secrets.into_iter().collect(),
            services: Some(services),
        }
    }

    pub(super) fn config_map(&self, name: &str) -> Result<Redacted<ConfigMap>, GetObjectError> {
        self.config_maps.get(name).cloned().unwrap_or_else(|| Err(not_fetched("configMap", name)))
    }

    pub(super) fn secret(&self, name: &str) -> Result<Redacted<Secret>, GetObjectError> {
        self.secrets.get(name).cloned().unwrap_or_else(|| Err(not_fetched("secret", name)))
    }

    pub(super) fn services(&self) -> Result<&[Arc<Service>], GetObjectError> {
        match &self.services {
            None => Ok(&[]),
            Some(Ok(services)) => Ok(services),
            Some(Err(error)) => Err(error.clone()),
        }
    }
}

fn not_fetched(kind: &str, name: &str) -> GetObjectError {
    GetObjectError::Unavailable { what: format!("{kind} {name}"), why: "it was not fetched".into() }
}

fn config_maps(container: &Container) -> BTreeSet<&str> {
    let whole = container.env_from.iter().flatten().filter_map(|source| source.config_map_ref.as_ref());
    let keys = sources(container).filter_map(|source| source.config_map_key_ref.as_ref());
    whole.map(|r| r.name.as_str()).chain(keys.map(|r| r.name.as_str())).collect()
}

fn secrets(container: &Container) -> BTreeSet<&str> {
    let whole = container.env_from.iter().flatten().filter_map(|source| source.secret_ref.as_ref());
    let keys = sources(container).filter_map(|source| source.secret_key_ref.as_ref());
    whole.map(|r| r.name.as_str()).chain(keys.map(|r| r.name.as_str())).collect()
}

fn sources(container: &Container) -> impl Iterator<Item = &k8s_openapi::api::core::v1::EnvVarSource> {
    container.env.iter().flatten().filter_map(|var| var.value_from.as_ref())
}
