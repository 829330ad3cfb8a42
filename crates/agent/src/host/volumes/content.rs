//! The content of a volume, fetched and assembled before any file is written.

use k8s_openapi::api::core::v1::{ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeProjection};
use podwright_core::model::{Pod, PodUid};

use super::atomic::{Payload, VolumeFile};
use super::claim::{self, LocalVolume};
use super::keyed::{KeySelection, ObjectData};
use super::{PodVolumes, VolumeError, downward, files};
use crate::host::HostCause;
use crate::host::io::MOUNT_TABLE_KEY;
use crate::objects::{TokenSpec, unless_optional};
use crate::pod_spec::{
    VolumeKind, effective_run_as_user, pod_namespace, pod_uid, volume_claim, volume_host_path, volume_kind,
};

/// The content that a volume is set up with.
pub(super) enum Content {
    /// The pod's spec alone: emptyDir and hostPath.
    None,
    /// Files that the agent writes.
    Files { payload: Payload, in_memory: bool },
    /// A claim whose volume is mounted already.
    Mounted,
    /// A claim's volume on this node.
    Local(LocalVolume),
}

/// The name of an object with data by key.
enum DataObject<'a> {
    ConfigMap(&'a str),
    Secret(&'a str),
}

impl PodVolumes {
    /// Fetches the content of the volume.
    pub(super) async fn content(&self, pod: &Pod, volume: &Volume) -> Result<Content, HostCause> {
        let mut payload = Payload::new();
        let in_memory = match volume_kind(volume)? {
            VolumeKind::EmptyDir | VolumeKind::HostPath => return Ok(Content::None),
            VolumeKind::Claim => return self.claim_content(pod, volume).await,
            VolumeKind::DownwardApi => {
                let source = volume.downward_api.clone().unwrap_or_default();
                let items = source.items.as_deref().unwrap_or_default();
                downward::collect(&self.io.config, pod, items, source.default_mode, &mut payload)?;
                false
            }
            VolumeKind::ConfigMap => {
                let source = volume.config_map.clone().unwrap_or_default();
                let selection = selection(source.items.as_deref(), source.default_mode, source.optional);
                self.add_object(pod, DataObject::ConfigMap(&source.name), &selection, &mut payload).await?;
                false
            }
            VolumeKind::Secret => {
                let source = volume.secret.clone().unwrap_or_default();
                let name = source.secret_name.as_deref().unwrap_or_default();
                let selection = selection(source.items.as_deref(), source.default_mode, source.optional);
                self.add_object(pod, DataObject::Secret(name), &selection, &mut payload).await?;
                true
            }
            VolumeKind::Projected => {
                let source = volume.projected.clone().unwrap_or_default();
                self.add_projected(pod, &source, &mut payload).await?;
                source.sources.iter().flatten().any(|part| part.downward_api.is_none() && part.config_map.is_none())
            }
        };
        Ok(Content::Files { payload, in_memory })
    }

    async fn claim_content(&self, pod: &Pod, volume: &Volume) -> Result<Content, HostCause> {
        let target = volume_host_path(self.io.paths(), pod, &volume.name)?;
        let is_set_up = move |_: &_| Ok(claim::is_set_up(&target)?);
        if self.io.run(MOUNT_TABLE_KEY, CHECK_LIMIT, is_set_up).await? {
            return Ok(Content::Mounted);
        }
        let Some(claim) = volume_claim(pod, volume) else { return Ok(Content::None) };
        let claimed = self.objects.claim(pod_namespace(pod), &claim.name).await.map_err(VolumeError::Object)?;
        let config = &self.io.config;
        let names = claim::NodeNames { node: &config.node_name, hostname: config.hostname_label.as_deref() };
        Ok(Content::Local(claim::local_volume(pod, &claim, &claimed, names)?))
    }

    /// Adds the selected files of a ConfigMap or Secret.
    async fn add_object(
        &self,
        pod: &Pod,
        object: DataObject<'_>,
        selection: &KeySelection<'_>,
        payload: &mut Payload,
    ) -> Result<(), VolumeError> {
        let (uid, namespace, optional) = (uid(pod), pod_namespace(pod), Some(selection.optional));
        match object {
            DataObject::ConfigMap(name) => {
                let found = unless_optional(self.objects.config_map(&uid, namespace, name).await, optional);
                ObjectData::of_config_map(found?.as_deref()).collect(selection, payload)
            }
            DataObject::Secret(name) => {
                let found = unless_optional(self.objects.secret(&uid, namespace, name).await, optional);
                ObjectData::of_secret(found?.as_deref()).collect(selection, payload)
            }
        }
    }

    async fn add_projected(
        &self,
        pod: &Pod,
        source: &ProjectedVolumeSource,
        payload: &mut Payload,
    ) -> Result<(), VolumeError> {
        for part in source.sources.iter().flatten() {
            let mode = source.default_mode;
            if let Some(items) = &part.downward_api {
                let items = items.items.as_deref().unwrap_or_default();
                downward::collect(&self.io.config, pod, items, mode, payload)?;
            } else if let Some(part) = &part.config_map {
                let selection = selection(part.items.as_deref(), mode, part.optional);
                self.add_object(pod, DataObject::ConfigMap(&part.name), &selection, payload).await?;
            } else if let Some(part) = &part.secret {
                let selection = selection(part.items.as_deref(), mode, part.optional);
                self.add_object(pod, DataObject::Secret(&part.name), &selection, payload).await?;
            } else if let Some(part) = &part.service_account_token {
                let token = self.token(pod, part).await?;
                add_private(pod, &part.path, token, mode, payload)?;
            } else if let Some(part) = &part.cluster_trust_bundle {
                let found = self.objects.trust_bundle(&uid(pod), part).await;
                let found = unless_optional(found, part.optional)?;
                let pem = found.map(|pem| pem.as_bytes().to_vec()).unwrap_or_default();
                add_private(pod, &part.path, pem, mode, payload)?;
            } else {
                return Err(VolumeError::UnsupportedProjection(projection_name(part)));
            }
        }
        Ok(())
    }

    async fn token(&self, pod: &Pod, part: &ServiceAccountTokenProjection) -> Result<Vec<u8>, VolumeError> {
        let ask = TokenSpec {
            audience: part.audience.clone().unwrap_or_default(),
            expiration_seconds: part.expiration_seconds.unwrap_or(TOKEN_SECONDS),
        };
        let token = self.objects.token(pod, ask).await?;
        Ok(token.as_bytes().to_vec())
    }
}

/// Adds a file that only the pod may read, if all its containers share a user or a group (Go kubelet: `collectData`).
fn add_private(
    pod: &Pod,
    path: &str,
    content: Vec<u8>,
    default_mode: Option<i32>,
    payload: &mut Payload,
) -> Result<(), VolumeError> {
    let failed = VolumeError::file(path);
    let owner = common_user(pod);
    let is_private = owner.is_some() || super::fs_group(pod)?.is_some();
    let mode = if is_private { 0o600 } else { files::mode(None, default_mode).map_err(&failed)? };
    payload.insert(files::clean(path).map_err(&failed)?, VolumeFile { content, mode, owner });
    Ok(())
}

/// The `runAsUser` of all containers, if it is set and the same for all (Go kubelet: `FsUserFrom`).
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let mut users =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| effective_run_as_user(pod, c));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

fn selection(
    items: Option<&[k8s_openapi::api::core::v1::KeyToPath]>,
    default_mode: Option<i32>,
    optional: Option<bool>,
) -> KeySelection<'_> {
    KeySelection { items, default_mode, optional: optional.unwrap_or_default() }
}

fn uid(pod: &Pod) -> PodUid {
    pod_uid(pod).into()
}

fn projection_name(part: &VolumeProjection) -> String {
    let fields = serde_json::to_value(part).unwrap_or_default();
    fields.as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default()
}

/// Kubernetes: the default of `expirationSeconds`.
const TOKEN_SECONDS: i64 = 3600;
/// For reading the mount table.
const CHECK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
