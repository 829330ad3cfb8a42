//! What a volume shows, fetched and put together before any file is touched.

use k8s_openapi::api::core::v1::{ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeProjection};
use podwright_core::model::{Pod, PodUid};

use super::atomic::{File, Payload};
use super::claim::{self, Place};
use super::keyed::{Entries, Selection};
use super::{Kind, downward, failed, files, kind};
use crate::host::{Host, HostError, paths};
use crate::objects::{GetObjectError, TokenSpec, unless_optional};
use crate::translate::effective_run_as_user;

/// What is needed to set a volume up.
pub(super) enum Content {
    /// Nothing but the pod.
    None,
    /// These files.
    Files { payload: Payload, in_memory: bool },
    /// A claim that is there already.
    Standing,
    /// A claim's volume.
    Place(Place),
}

/// An object with contents by key, by its name.
enum Keyed<'a> {
    ConfigMap(&'a str),
    Secret(&'a str),
}

impl Host {
    /// Fetches what the volume shows.
    pub(super) async fn content(&self, pod: &Pod, volume: &Volume) -> Result<Content, HostError> {
        let mut payload = Payload::new();
        let in_memory = match kind(volume)? {
            Kind::EmptyDir | Kind::HostPath => return Ok(Content::None),
            Kind::Claim => return self.claimed(pod, volume).await,
            Kind::DownwardApi => {
                let source = volume.downward_api.clone().unwrap_or_default();
                let items = source.items.as_deref().unwrap_or_default();
                downward::collect(&self.config, pod, items, source.default_mode, &mut payload)?;
                false
            }
            Kind::ConfigMap => {
                let source = volume.config_map.clone().unwrap_or_default();
                let selection = selection(source.items.as_deref(), source.default_mode, source.optional);
                self.keyed(pod, Keyed::ConfigMap(&source.name), &selection, &mut payload).await?;
                false
            }
            Kind::Secret => {
                let source = volume.secret.clone().unwrap_or_default();
                let name = source.secret_name.as_deref().unwrap_or_default();
                let selection = selection(source.items.as_deref(), source.default_mode, source.optional);
                self.keyed(pod, Keyed::Secret(name), &selection, &mut payload).await?;
                true
            }
            Kind::Projected => {
                let source = volume.projected.clone().unwrap_or_default();
                self.projected(pod, volume, &source, &mut payload).await?;
                source.sources.iter().flatten().any(|part| part.downward_api.is_none() && part.config_map.is_none())
            }
        };
        Ok(Content::Files { payload, in_memory })
    }

    async fn claimed(&self, pod: &Pod, volume: &Volume) -> Result<Content, HostError> {
        let target = super::volume_host_path(self.paths(), pod, &volume.name)?;
        let standing = self.run("mountinfo", CHECK_LIMIT, super::FAILED, move |_| claim::is_set_up(&target)).await?;
        if standing {
            return Ok(Content::Standing);
        }
        let claim = claim::of(pod, volume).ok_or_else(|| failed("the volume claims nothing"))?;
        let claimed = self.objects().claim(paths::namespace(pod), &claim.name).await.map_err(told)?;
        let here = claim::Here { node: &self.config.node_name, hostname: self.config.hostname_label.as_deref() };
        claim::place(pod, &claim, &claimed, here).map(Content::Place)
    }

    /// Adds the selected files of a ConfigMap or Secret.
    async fn keyed(
        &self,
        pod: &Pod,
        object: Keyed<'_>,
        selection: &Selection<'_>,
        payload: &mut Payload,
    ) -> Result<(), HostError> {
        let (uid, namespace, optional) = (uid(pod), paths::namespace(pod), Some(selection.optional));
        match object {
            Keyed::ConfigMap(name) => {
                let found = unless_optional(self.objects().config_map(&uid, namespace, name).await, optional);
                Entries::of_config_map(found.map_err(told)?.as_deref()).collect(selection, payload)
            }
            Keyed::Secret(name) => {
                let found = unless_optional(self.objects().secret(&uid, namespace, name).await, optional);
                Entries::of_secret(found.map_err(told)?.as_deref()).collect(selection, payload)
            }
        }
    }

    async fn projected(
        &self,
        pod: &Pod,
        volume: &Volume,
        source: &ProjectedVolumeSource,
        payload: &mut Payload,
    ) -> Result<(), HostError> {
        for part in source.sources.iter().flatten() {
            let mode = source.default_mode;
            if let Some(items) = &part.downward_api {
                let items = items.items.as_deref().unwrap_or_default();
                downward::collect(&self.config, pod, items, mode, payload)?;
            } else if let Some(part) = &part.config_map {
                let selection = selection(part.items.as_deref(), mode, part.optional);
                self.keyed(pod, Keyed::ConfigMap(&part.name), &selection, payload).await?;
            } else if let Some(part) = &part.secret {
                let selection = selection(part.items.as_deref(), mode, part.optional);
                self.keyed(pod, Keyed::Secret(&part.name), &selection, payload).await?;
            } else if let Some(part) = &part.service_account_token {
                let token = self.token(pod, part).await?;
                add_own(pod, &part.path, token, mode, payload)?;
            } else if let Some(part) = &part.cluster_trust_bundle {
                let found = self.objects().trust_bundle(&uid(pod), part).await;
                let found = unless_optional(found, part.optional).map_err(told)?;
                let pem = found.map(|pem| pem.as_bytes().to_vec()).unwrap_or_default();
                add_own(pod, &part.path, pem, mode, payload)?;
            } else {
                let kind = projection_name(part);
                return Err(failed(format!("volume {:?}: projected source {kind:?} is not supported", volume.name)));
            }
        }
        Ok(())
    }

    async fn token(&self, pod: &Pod, part: &ServiceAccountTokenProjection) -> Result<Vec<u8>, HostError> {
        let ask = TokenSpec {
            audience: part.audience.clone().unwrap_or_default(),
            expiration_seconds: part.expiration_seconds.unwrap_or(TOKEN_SECONDS),
        };
        let token = self.objects().token(pod, ask).await.map_err(told)?;
        Ok(token.as_bytes().to_vec())
    }
}

/// Adds a file that is the pod's own: with one user or a group that all its containers share, nobody else may read it (Go
/// kubelet: collectData).
fn add_own(
    pod: &Pod,
    path: &str,
    content: Vec<u8>,
    default_mode: Option<i32>,
    payload: &mut Payload,
) -> Result<(), HostError> {
    let told = |e: String| failed(format!("file {path:?}: {e}"));
    let owner = only_user(pod);
    let is_private = owner.is_some() || super::fs_group(pod)?.is_some();
    let mode = if is_private { 0o600 } else { files::mode(None, default_mode).map_err(told)? };
    payload.insert(files::clean(path).map_err(told)?, File { content, mode, owner });
    Ok(())
}

/// The user that all containers run as, if they say so and agree (Go kubelet: FsUserFrom).
fn only_user(pod: &Pod) -> Option<u32> {
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
) -> Selection<'_> {
    Selection { items, default_mode, optional: optional.unwrap_or_default() }
}

fn uid(pod: &Pod) -> PodUid {
    paths::uid(pod).into()
}

fn told(error: GetObjectError) -> HostError {
    failed(error.to_string())
}

fn projection_name(part: &VolumeProjection) -> String {
    let fields = serde_json::to_value(part).unwrap_or_default();
    fields.as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default()
}

/// The API's default.
const TOKEN_SECONDS: i64 = 3600;
/// The kernel's own list is read in no time.
const CHECK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
