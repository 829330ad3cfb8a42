//! The API server's defaults for pods.
//!
//! Pods of an API server have them already; manifests from files and URLs get them here, so that all later code sees one form.
//! Applying them twice changes nothing. An empty string counts as unset, as it does for the API server.

mod resources;
mod volumes;

use k8s_openapi::api::core::v1::{
    EnvVar, HTTPGetAction, Lifecycle, ObjectFieldSelector, PodSecurityContext, PodSpec, Probe, ResourceFieldSelector,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::model::{Container, Pod};

/// A macro, because containers and ephemeral containers have the same fields but different types.
macro_rules! default_any_container {
    ($container:expr) => {{
        let container = $container;
        let policy = $crate::defaults::pull_policy(container.image.as_deref().unwrap_or_default());
        $crate::defaults::fill(&mut container.image_pull_policy, policy);
        $crate::defaults::fill(&mut container.termination_message_path, "/dev/termination-log");
        $crate::defaults::fill(&mut container.termination_message_policy, "File");
        for port in container.ports.iter_mut().flatten() {
            $crate::defaults::fill(&mut port.protocol, "TCP");
        }
        for variable in container.env.iter_mut().flatten() {
            $crate::defaults::default_env(variable);
        }
        let resources = container.resources.get_or_insert_with(ResourceRequirements::default);
        $crate::defaults::resources::canonical_requirements(resources);
        for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
            if let Some(probe) = probe {
                $crate::defaults::default_probe(probe);
            }
        }
        if let Some(lifecycle) = &mut container.lifecycle {
            $crate::defaults::default_lifecycle(lifecycle);
        }
    }};
}

/// Fills in the API server's defaults.
pub fn default_pod(pod: &mut Pod) {
    resources::default_requests(pod);
    let spec = pod.spec.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            // With hostNetwork every container port is a host port.
            for port in container.ports.iter_mut().flatten() {
                fill_number(&mut port.host_port, port.container_port);
            }
        }
    }
    default_spec(spec);
    for volume in spec.volumes.iter_mut().flatten() {
        volumes::default_volume(volume);
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        default_container(container);
    }
    for ephemeral in spec.ephemeral_containers.iter_mut().flatten() {
        default_any_container!(ephemeral);
    }
    resources::canonical(spec.overhead.as_mut());
    if let Some(whole) = &mut spec.resources {
        resources::canonical_requirements(whole);
    }
}

/// Fills in the defaults of one container.
pub(crate) fn default_container(container: &mut Container) {
    default_any_container!(container);
}

fn default_spec(spec: &mut PodSpec) {
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    spec.termination_grace_period_seconds.get_or_insert(30);
    // serviceAccount is the deprecated name of serviceAccountName; both are kept equal.
    if spec.service_account_name.as_deref().unwrap_or_default().is_empty() {
        spec.service_account_name = spec.service_account.clone();
    }
    spec.service_account = spec.service_account_name.clone();
}

fn default_env(variable: &mut EnvVar) {
    let Some(from) = &mut variable.value_from else { return };
    if let Some(field) = &mut from.field_ref {
        default_field_ref(field);
    }
    if let Some(resource) = &mut from.resource_field_ref {
        default_resource_ref(resource);
    }
    if let Some(file) = &mut from.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn default_field_ref(field: &mut ObjectFieldSelector) {
    fill(&mut field.api_version, "v1");
}

/// An unset divisor is stored as 0 and means 1.
fn default_resource_ref(resource: &mut ResourceFieldSelector) {
    let divisor = resource.divisor.get_or_insert_with(|| Quantity("0".into()));
    resources::canonical_one(divisor);
}

fn default_probe(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    if let Some(http) = &mut probe.http_get {
        default_http(http);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_lifecycle(lifecycle: &mut Lifecycle) {
    for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
        if let Some(http) = &mut handler.http_get {
            default_http(http);
        }
    }
}

fn default_http(http: &mut HTTPGetAction) {
    fill(&mut http.path, "/");
    fill(&mut http.scheme, "HTTP");
}

/// `Always` for the tag `latest`, explicit or implied; any other tag or a digest does not change.
fn pull_policy(image: &str) -> &'static str {
    if image_tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// The tag of an image reference; `latest` if it has neither tag nor digest, `None` if it is invalid.
fn image_tag(image: &str) -> Option<&str> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    let first_is_host =
        repository.split_once('/').is_some_and(|(host, _)| host.contains(['.', ':']) || host == "localhost");
    let path = if first_is_host { repository.split_once('/').map_or("", |(_, path)| path) } else { repository };
    let good_path = path.split('/').all(|part| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(part.chars().next())
            && edge(part.chars().last())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-'))
    });
    let good_tag = tag.is_none_or(|tag| {
        !tag.is_empty()
            && tag.len() <= 128
            && !tag.starts_with(['.', '-'])
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    });
    match (good_path && good_tag, tag, digest) {
        (false, _, _) => None,
        (true, Some(tag), _) => Some(tag),
        (true, None, Some(_)) => None,
        (true, None, None) => Some("latest"),
    }
}

fn fill(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.into());
    }
}

fn fill_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

#[cfg(test)]
mod tests;
