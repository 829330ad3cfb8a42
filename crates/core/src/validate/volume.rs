//! Volumes: unique names, exactly one type, safe paths.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{KeyToPath, PodSpec, ProjectedVolumeSource, Volume};
use serde_json::Value;

use super::{FieldErrors, downward, names, quoted};
use crate::quantity::Amount;

/// Volumes by name; of several with one name, the first.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

/// Checks the volumes; returns those that mounts may use.
pub(super) fn check<'a>(spec: &'a PodSpec, errors: &mut FieldErrors) -> Volumes<'a> {
    let mut seen = Volumes::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = format!("spec.volumes[{i}]");
        names::label(&volume.name, format!("{at}.name"), errors);
        match seen.entry(volume.name.as_str()) {
            Entry::Vacant(free) => drop(free.insert(volume)),
            Entry::Occupied(_) => {
                errors.add(format!("{at}.name"), format!("{} is taken by another volume", quoted(&volume.name)));
            }
        }
        match kinds(volume) {
            1 => {}
            0 => errors.add(&at, "must have a kind, such as emptyDir: {}"),
            _ => errors.add(&at, "must have only one kind: split it into several volumes"),
        }
        check_kind(volume, &at, errors);
    }
    seen
}

/// Number of volume types that are set: all fields except the name.
fn kinds(volume: &Volume) -> usize {
    match serde_json::to_value(volume) {
        Ok(Value::Object(fields)) => fields.keys().filter(|field| *field != "name").count(),
        _ => 0,
    }
}

fn check_kind(volume: &Volume, at: &str, errors: &mut FieldErrors) {
    if let Some(limit) = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref()) {
        let at = format!("{at}.emptyDir.sizeLimit");
        match Amount::try_from(limit) {
            Err(error) => errors.add(at, error.to_string()),
            Ok(amount) if amount.is_negative() => errors.add(at, format!("{amount} must not be negative")),
            Ok(_) => {}
        }
    }
    if let Some(host) = &volume.host_path {
        let path = format!("{at}.hostPath.path");
        if host.path.is_empty() {
            errors.add(&path, "must be given");
        }
        errors.no_parent_components(&host.path, &path);
        let types = ["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
        errors.one_of(host.type_.as_deref(), &types, format!("{at}.hostPath.type"));
    }
    if let Some(downward) = &volume.downward_api {
        let at = format!("{at}.downwardAPI");
        errors.mode(downward.default_mode, format!("{at}.defaultMode"));
        for (i, file) in downward.items.iter().flatten().enumerate() {
            downward::check_file(file, &format!("{at}.items[{i}]"), errors);
        }
    }
    if let Some(map) = &volume.config_map {
        let at = format!("{at}.configMap");
        needed(&map.name, &format!("{at}.name"), errors);
        errors.mode(map.default_mode, format!("{at}.defaultMode"));
        check_items(map.items.as_deref(), &at, errors);
    }
    if let Some(secret) = &volume.secret {
        let at = format!("{at}.secret");
        needed(secret.secret_name.as_deref().unwrap_or_default(), &format!("{at}.secretName"), errors);
        errors.mode(secret.default_mode, format!("{at}.defaultMode"));
        check_items(secret.items.as_deref(), &at, errors);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        needed(&claim.claim_name, &format!("{at}.persistentVolumeClaim.claimName"), errors);
    }
    if let Some(image) = &volume.image {
        needed(image.reference.as_deref().unwrap_or_default(), &format!("{at}.image.reference"), errors);
        let policies = ["Always", "IfNotPresent", "Never"];
        errors.one_of(image.pull_policy.as_deref(), &policies, format!("{at}.image.pullPolicy"));
    }
    if let Some(projected) = &volume.projected {
        check_projected(projected, &format!("{at}.projected"), errors);
    }
}

fn check_projected(projected: &ProjectedVolumeSource, at: &str, errors: &mut FieldErrors) {
    errors.mode(projected.default_mode, format!("{at}.defaultMode"));
    let mut paths = BTreeSet::new();
    for (i, source) in projected.sources.iter().flatten().enumerate() {
        let at = format!("{at}.sources[{i}]");
        let given = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            errors.add(&at, "must have only one kind: split it into several sources");
        }
        let mut placed: Vec<&str> = Vec::new();
        if let Some(downward) = &source.downward_api {
            for (j, file) in downward.items.iter().flatten().enumerate() {
                downward::check_file(file, &format!("{at}.downwardAPI.items[{j}]"), errors);
                placed.push(&file.path);
            }
        }
        if let Some(secret) = &source.secret {
            needed(&secret.name, &format!("{at}.secret.name"), errors);
            check_items(secret.items.as_deref(), &format!("{at}.secret"), errors);
            placed.extend(secret.items.iter().flatten().map(|item| item.path.as_str()));
        }
        if let Some(map) = &source.config_map {
            needed(&map.name, &format!("{at}.configMap.name"), errors);
            check_items(map.items.as_deref(), &format!("{at}.configMap"), errors);
            placed.extend(map.items.iter().flatten().map(|item| item.path.as_str()));
        }
        if let Some(token) = &source.service_account_token {
            downward::check_file_path(&token.path, &format!("{at}.serviceAccountToken"), errors);
            let at = format!("{at}.serviceAccountToken.expirationSeconds");
            if token.expiration_seconds.is_some_and(|seconds| seconds > 1 << 32) {
                errors.add(&at, "must not be more than 2^32 seconds");
            }
            errors.at_least(token.expiration_seconds, 600, at);
        }
        for path in placed.into_iter().filter(|path| !path.is_empty()) {
            if !paths.insert(path) {
                errors.add(&at, format!("{} is written by another source", quoted(path)));
            }
        }
    }
}

fn check_items(items: Option<&[KeyToPath]>, at: &str, errors: &mut FieldErrors) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let at = format!("{at}.items[{i}]");
        needed(&item.key, &format!("{at}.key"), errors);
        downward::check_file_path(&item.path, &at, errors);
        errors.mode(item.mode, format!("{at}.mode"));
    }
}

fn needed(text: &str, at: &str, errors: &mut FieldErrors) {
    if text.is_empty() {
        errors.add(at, "must be given");
    }
}
