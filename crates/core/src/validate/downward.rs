//! References from environment variables and files to the pod's own fields and resources.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector};

use super::volume::Volumes;
use super::{FieldErrors, names, quoted};
use crate::quantity::Amount;

pub(super) fn check_env_source(from: &EnvVarSource, volumes: &Volumes<'_>, at: &str, errors: &mut FieldErrors) {
    let given = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    if given.iter().filter(|given| **given).count() != 1 {
        errors.add(
            at,
            "must have exactly one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef and fileKeyRef",
        );
    }
    if let Some(field) = &from.field_ref {
        check_field(field, &ENV_FIELDS, &format!("{at}.fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        check_resource(resource, &format!("{at}.resourceFieldRef"), errors);
    }
    if let Some(file) = &from.file_key_ref {
        let at = format!("{at}.fileKeyRef");
        names::environment(&file.key, format!("{at}.key"), errors);
        names::label(&file.volume_name, format!("{at}.volumeName"), errors);
        match volumes.get(file.volume_name.as_str()) {
            None => errors.add(
                format!("{at}.volumeName"),
                format!("{} is not a volume of the pod: add it to spec.volumes", quoted(&file.volume_name)),
            ),
            Some(volume) if volume.empty_dir.is_none() => {
                errors.add(format!("{at}.volumeName"), "must be a volume of kind emptyDir");
            }
            Some(_) => {}
        }
        if file.path.is_empty() {
            errors.add(format!("{at}.path"), "must be given");
        }
        errors.no_parent_components(&file.path, &format!("{at}.path"));
    }
    let map = from.config_map_key_ref.as_ref().map(|r| (&r.name, &r.key, "configMapKeyRef"));
    let secret = from.secret_key_ref.as_ref().map(|r| (&r.name, &r.key, "secretKeyRef"));
    for (name, key, field) in map.into_iter().chain(secret) {
        names::subdomain(name, format!("{at}.{field}.name"), errors);
        names::config_key(key, format!("{at}.{field}.key"), errors);
    }
}

pub(super) fn check_file(file: &DownwardAPIVolumeFile, at: &str, errors: &mut FieldErrors) {
    check_file_path(&file.path, at, errors);
    errors.mode(file.mode, format!("{at}.mode"));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), None) => check_field(field, &FILE_FIELDS, &format!("{at}.fieldRef"), errors),
        (None, Some(resource)) => {
            if resource.container_name.as_deref().unwrap_or_default().is_empty() {
                errors.add(format!("{at}.resourceFieldRef.containerName"), "must be given");
            }
            check_resource(resource, &format!("{at}.resourceFieldRef"), errors);
        }
        _ => errors.add(at, "must have exactly one of fieldRef and resourceFieldRef"),
    }
}

/// The path of a file in its volume.
pub(super) fn check_file_path(path: &str, at: &str, errors: &mut FieldErrors) {
    let at = format!("{at}.path");
    if path.is_empty() {
        errors.add(&at, "must be given");
    }
    errors.relative_path(path, &at);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        errors.add(&at, format!("{} must not begin with '..'", quoted(path)));
    }
}

fn check_field(field: &ObjectFieldSelector, known: &[&str], at: &str, errors: &mut FieldErrors) {
    let at = format!("{at}.fieldPath");
    let path = field.field_path.as_str();
    if field.api_version.as_deref().is_some_and(|version| !matches!(version, "" | "v1")) {
        errors.add(&at, "needs apiVersion v1");
    }
    let subscript = |prefix: &str| path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']");
    let key = subscript("metadata.labels")
        .map(str::to_owned)
        .or_else(|| subscript("metadata.annotations").map(str::to_lowercase));
    match key {
        Some(key) => names::qualified(&key, at, errors),
        None if known.contains(&path) => {}
        None => errors.add(
            at,
            format!(
                "{} must be one of {}, metadata.labels['KEY'], metadata.annotations['KEY']",
                quoted(path),
                known.join(", ")
            ),
        ),
    }
}

fn check_resource(resource: &ResourceFieldSelector, at: &str, errors: &mut FieldErrors) {
    let name = resource.resource.as_str();
    let of = name.strip_prefix("limits.").or_else(|| name.strip_prefix("requests.")).unwrap_or_default();
    if !matches!(of, "cpu" | "memory" | "ephemeral-storage") && !of.starts_with("hugepages-") {
        errors.add(
            format!("{at}.resource"),
            format!("{} must be limits. or requests. of cpu, memory, ephemeral-storage or hugepages", quoted(name)),
        );
    }
    if let Some(divisor) = &resource.divisor {
        let allowed: &[&str] = match of {
            "cpu" => &["0", "1m", "1"],
            _ => &["0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"],
        };
        match Amount::try_from(divisor) {
            Ok(amount) if allowed.contains(&amount.to_string().as_str()) => {}
            _ => errors.add(
                format!("{at}.divisor"),
                format!("{} must be one of {}", quoted(&divisor.0), allowed[1..].join(", ")),
            ),
        }
    }
}

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const FILE_FIELDS: [&str; 5] =
    ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
