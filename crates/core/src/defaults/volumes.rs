//! Defaults of volumes.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Volume};

use super::{default_field_ref, default_resource_ref, fill, pull_policy, resources};

/// Default mode of files in secret, configMap, downwardAPI and projected volumes.
const MODE: i32 = 0o644;

pub(super) fn default_volume(volume: &mut Volume) {
    if (Volume { name: volume.name.clone(), ..Volume::default() }) == *volume {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(limit) = volume.empty_dir.as_mut().and_then(|empty| empty.size_limit.as_mut()) {
        resources::canonical_one(limit);
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        fill(&mut image.pull_policy, policy);
    }
    if let Some(host) = &mut volume.host_path {
        host.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(MODE);
    }
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(MODE);
        default_files(&mut downward.items);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(downward) = &mut source.downward_api {
                default_files(&mut downward.items);
            }
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
    default_network_volume(volume);
}

fn default_files(items: &mut Option<Vec<DownwardAPIVolumeFile>>) {
    for item in items.iter_mut().flatten() {
        if let Some(field) = &mut item.field_ref {
            default_field_ref(field);
        }
        if let Some(resource) = &mut item.resource_field_ref {
            default_resource_ref(resource);
        }
    }
}

fn default_network_volume(volume: &mut Volume) {
    if let Some(iscsi) = &mut volume.iscsi {
        fill(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        fill(&mut rbd.pool, "rbd");
        fill(&mut rbd.user, "admin");
        fill(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(azure) = &mut volume.azure_disk {
        azure.caching_mode.get_or_insert_with(|| "ReadWrite".into());
        azure.fs_type.get_or_insert_with(|| "ext4".into());
        azure.read_only.get_or_insert(false);
        azure.kind.get_or_insert_with(|| "Shared".into());
    }
    if let Some(scale_io) = &mut volume.scale_io {
        fill(&mut scale_io.storage_mode, "ThinProvisioned");
        fill(&mut scale_io.fs_type, "xfs");
    }
    if let Some(claim) = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut()) {
        claim.metadata.get_or_insert_default();
        claim.spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
        let wanted = claim.spec.resources.get_or_insert_default();
        resources::canonical(wanted.limits.as_mut());
        resources::canonical(wanted.requests.as_mut());
    }
}
