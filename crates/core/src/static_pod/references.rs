//! References to API objects, which static pods may not have (the Go kubelet's `HasAPIObjectReference`).

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Volume, VolumeProjection};

use crate::model::Pod;

/// The first reference to an API object: path of the field and kind of the object.
pub fn api_reference(pod: &Pod) -> Option<(String, &'static str)> {
    let spec = pod.spec.as_ref()?;
    let is_named = |name: &Option<String>| name.as_deref().is_some_and(|name| !name.is_empty());
    if is_named(&spec.service_account_name) {
        return Some(("spec.serviceAccountName".into(), "serviceaccounts"));
    }
    if is_named(&spec.service_account) {
        return Some(("spec.serviceAccount".into(), "serviceaccounts"));
    }
    if spec.image_pull_secrets.iter().flatten().any(|secret| !secret.name.is_empty()) {
        return Some(("spec.imagePullSecrets".into(), "secrets"));
    }
    let init = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| ("initContainers", i, c));
    for (list, i, container) in init.chain(spec.containers.iter().enumerate().map(|(i, c)| ("containers", i, c))) {
        if let Some((field, what)) = in_environment(container.env_from.as_deref(), container.env.as_deref()) {
            return Some((format!("spec.{list}[{i}].{field}"), what));
        }
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some(("spec.resourceClaims".into(), "resourceclaims"));
    }
    spec.volumes
        .iter()
        .flatten()
        .enumerate()
        .find_map(|(i, volume)| in_volume(volume).map(|(field, what)| (format!("spec.volumes[{i}].{field}"), what)))
}

fn in_environment(from: Option<&[EnvFromSource]>, env: Option<&[EnvVar]>) -> Option<(String, &'static str)> {
    for (i, source) in from.into_iter().flatten().enumerate() {
        if source.secret_ref.is_some() {
            return Some((format!("envFrom[{i}].secretRef"), "secrets"));
        }
        if source.config_map_ref.is_some() {
            return Some((format!("envFrom[{i}].configMapRef"), "configmaps"));
        }
    }
    for (i, variable) in env.into_iter().flatten().enumerate() {
        let Some(from) = &variable.value_from else { continue };
        if from.secret_key_ref.is_some() {
            return Some((format!("env[{i}].valueFrom.secretKeyRef"), "secrets"));
        }
        if from.config_map_key_ref.is_some() {
            return Some((format!("env[{i}].valueFrom.configMapKeyRef"), "configmaps"));
        }
    }
    None
}

fn in_volume(volume: &Volume) -> Option<(String, &'static str)> {
    let plain = [
        (volume.config_map.is_some(), "configMap", "configmaps"),
        (volume.secret.is_some(), "secret", "secrets"),
        (volume.csi.is_some(), "csi", "csidrivers"),
        (volume.glusterfs.is_some(), "glusterfs", "endpoints"),
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim", "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "ephemeral", "persistentvolumeclaims"),
        (volume.azure_file.is_some(), "azureFile", "secrets"),
    ];
    if let Some((_, field, what)) = plain.into_iter().find(|(given, ..)| *given) {
        return Some((field.into(), what));
    }
    if let Some(field) = secret_of_driver(volume) {
        return Some((field.into(), "secrets"));
    }
    let sources = volume.projected.as_ref()?.sources.iter().flatten().enumerate();
    sources.into_iter().find_map(|(i, source)| {
        in_projection(source).map(|(field, what)| (format!("projected.sources[{i}].{field}"), what))
    })
}

fn in_projection(source: &VolumeProjection) -> Option<(&'static str, &'static str)> {
    [
        (source.config_map.is_some(), "configMap", "configmaps"),
        (source.secret.is_some(), "secret", "secrets"),
        (source.service_account_token.is_some(), "serviceAccountToken", "serviceaccounts"),
        (source.cluster_trust_bundle.is_some(), "clusterTrustBundle", "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podCertificate", "podcertificates"),
    ]
    .into_iter()
    .find_map(|(given, field, what)| given.then_some((field, what)))
}

/// Volumes whose credentials are in a Secret.
fn secret_of_driver(volume: &Volume) -> Option<&'static str> {
    let named = |secret: Option<&LocalObjectReference>| secret.is_some_and(|secret| !secret.name.is_empty());
    [
        (named(volume.cephfs.as_ref().and_then(|v| v.secret_ref.as_ref())), "cephfs.secretRef"),
        (named(volume.cinder.as_ref().and_then(|v| v.secret_ref.as_ref())), "cinder.secretRef"),
        (named(volume.flex_volume.as_ref().and_then(|v| v.secret_ref.as_ref())), "flexVolume.secretRef"),
        (named(volume.rbd.as_ref().and_then(|v| v.secret_ref.as_ref())), "rbd.secretRef"),
        (named(volume.scale_io.as_ref().map(|v| &v.secret_ref)), "scaleIO.secretRef"),
        (named(volume.iscsi.as_ref().and_then(|v| v.secret_ref.as_ref())), "iscsi.secretRef"),
        (named(volume.storageos.as_ref().and_then(|v| v.secret_ref.as_ref())), "storageos.secretRef"),
    ]
    .into_iter()
    .find_map(|(given, field)| given.then_some(field))
}
