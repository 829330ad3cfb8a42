//! Volumes: named, of exactly one kind, and unable to reach where they should not.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{KeyToPath, PodSpec, ProjectedVolumeSource, Volume};
use serde_json::Value;

use super::{Findings, downward, names, shown};
use crate::quantity::Amount;

/// Checks the volumes; gives back the names mounts may use.
pub(super) fn check<'a>(spec: &'a PodSpec, findings: &mut Findings) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = format!("spec.volumes[{i}]");
        names::label(&volume.name, format!("{at}.name"), findings);
        if !seen.insert(volume.name.as_str()) {
            findings.add(format!("{at}.name"), format!("{} is taken by another volume", shown(&volume.name)));
        }
        match kinds(volume) {
            1 => {}
            0 => findings.add(&at, "must have a kind, such as emptyDir: {}"),
            _ => findings.add(&at, "must have only one kind: split it into several volumes"),
        }
        check_kind(volume, &at, findings);
    }
    seen
}

/// How many kinds of volume it says it is: all fields but the name are kinds.
fn kinds(volume: &Volume) -> usize {
    match serde_json::to_value(volume) {
        Ok(Value::Object(fields)) => fields.keys().filter(|field| *field != "name").count(),
        _ => 0,
    }
}

fn check_kind(volume: &Volume, at: &str, findings: &mut Findings) {
    if let Some(limit) = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref()) {
        let at = format!("{at}.emptyDir.sizeLimit");
        match Amount::try_from(limit) {
            Err(error) => findings.add(at, error.to_string()),
            Ok(amount) if amount.is_negative() => findings.add(at, format!("{amount} must not be negative")),
            Ok(_) => {}
        }
    }
    if let Some(host) = &volume.host_path {
        let path = format!("{at}.hostPath.path");
        if host.path.is_empty() {
            findings.add(&path, "must be given");
        }
        findings.no_backsteps(&host.path, &path);
        let types = ["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
        findings.one_of(host.type_.as_deref(), &types, format!("{at}.hostPath.type"));
    }
    if let Some(downward) = &volume.downward_api {
        let at = format!("{at}.downwardAPI");
        findings.mode(downward.default_mode, format!("{at}.defaultMode"));
        for (i, file) in downward.items.iter().flatten().enumerate() {
            downward::check_file(file, &format!("{at}.items[{i}]"), findings);
        }
    }
    if let Some(map) = &volume.config_map {
        let at = format!("{at}.configMap");
        needed(&map.name, &format!("{at}.name"), findings);
        findings.mode(map.default_mode, format!("{at}.defaultMode"));
        check_items(map.items.as_deref(), &at, findings);
    }
    if let Some(secret) = &volume.secret {
        let at = format!("{at}.secret");
        needed(secret.secret_name.as_deref().unwrap_or_default(), &format!("{at}.secretName"), findings);
        findings.mode(secret.default_mode, format!("{at}.defaultMode"));
        check_items(secret.items.as_deref(), &at, findings);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        needed(&claim.claim_name, &format!("{at}.persistentVolumeClaim.claimName"), findings);
    }
    if let Some(image) = &volume.image {
        needed(image.reference.as_deref().unwrap_or_default(), &format!("{at}.image.reference"), findings);
        let policies = ["Always", "IfNotPresent", "Never"];
        findings.one_of(image.pull_policy.as_deref(), &policies, format!("{at}.image.pullPolicy"));
    }
    if let Some(projected) = &volume.projected {
        check_projected(projected, &format!("{at}.projected"), findings);
    }
}

fn check_projected(projected: &ProjectedVolumeSource, at: &str, findings: &mut Findings) {
    findings.mode(projected.default_mode, format!("{at}.defaultMode"));
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
            findings.add(&at, "must have only one kind: split it into several sources");
        }
        let mut placed: Vec<&str> = Vec::new();
        if let Some(downward) = &source.downward_api {
            for (j, file) in downward.items.iter().flatten().enumerate() {
                downward::check_file(file, &format!("{at}.downwardAPI.items[{j}]"), findings);
                placed.push(&file.path);
            }
        }
        if let Some(secret) = &source.secret {
            needed(&secret.name, &format!("{at}.secret.name"), findings);
            check_items(secret.items.as_deref(), &format!("{at}.secret"), findings);
            placed.extend(secret.items.iter().flatten().map(|item| item.path.as_str()));
        }
        if let Some(map) = &source.config_map {
            needed(&map.name, &format!("{at}.configMap.name"), findings);
            check_items(map.items.as_deref(), &format!("{at}.configMap"), findings);
            placed.extend(map.items.iter().flatten().map(|item| item.path.as_str()));
        }
        if let Some(token) = &source.service_account_token {
            downward::check_file_path(&token.path, &format!("{at}.serviceAccountToken"), findings);
            let at = format!("{at}.serviceAccountToken.expirationSeconds");
            if token.expiration_seconds.is_some_and(|seconds| seconds > 1 << 32) {
                findings.add(&at, "must not be more than 2^32 seconds");
            }
            findings.at_least(token.expiration_seconds, 600, at);
        }
        for path in placed.into_iter().filter(|path| !path.is_empty()) {
            if !paths.insert(path) {
                findings.add(&at, format!("{} is written by another source", shown(path)));
            }
        }
    }
}

fn check_items(items: Option<&[KeyToPath]>, at: &str, findings: &mut Findings) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let at = format!("{at}.items[{i}]");
        needed(&item.key, &format!("{at}.key"), findings);
        downward::check_file_path(&item.path, &at, findings);
        findings.mode(item.mode, format!("{at}.mode"));
    }
}

fn needed(text: &str, at: &str, findings: &mut Findings) {
    if text.is_empty() {
        findings.add(at, "must be given");
    }
}
