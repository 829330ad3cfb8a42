//! Containers: names, images, ports, environment, mounts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerPort, PodSpec, VolumeMount};

use super::volume::Volumes;
use super::{FieldErrors, devices, downward, handler, names, quoted, resources, security};
use crate::expansion::{EXPANDED_BYTES_MAX, oversized_field};
use crate::model::{Container, is_sidecar};

pub(super) fn check_all(spec: &PodSpec, volumes: &Volumes<'_>, errors: &mut FieldErrors) {
    if spec.containers.is_empty() {
        errors.add("spec.containers", "must have at least one container");
    }
    let mut seen = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        let at = format!("spec.containers[{i}]");
        check(container, spec, volumes, &at, errors);
        restart(container, &at, errors);
        handlers(container, spec, &at, errors);
        host_port_conflicts(container, &mut host_ports, &at, errors);
        unique(&container.name, &mut seen, &at, errors);
    }
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        let at = format!("spec.initContainers[{i}]");
        check(container, spec, volumes, &at, errors);
        restart(container, &at, errors);
        if is_sidecar(container) {
            handlers(container, spec, &at, errors);
        } else {
            no_handlers(container, &at, errors);
        }
        // Init containers run one after the other.
        host_port_conflicts(container, &mut BTreeSet::new(), &at, errors);
        unique(&container.name, &mut seen, &at, errors);
    }
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let at = format!("spec.ephemeralContainers[{i}]");
        names::label(&container.name, format!("{at}.name"), errors);
        image(container.image.as_deref().unwrap_or_default(), &at, errors);
        unique(&container.name, &mut seen, &at, errors);
    }
}

fn check(container: &Container, spec: &PodSpec, volumes: &Volumes<'_>, at: &str, errors: &mut FieldErrors) {
    names::label(&container.name, format!("{at}.name"), errors);
    image(container.image.as_deref().unwrap_or_default(), at, errors);
    let policies = ["Always", "IfNotPresent", "Never"];
    errors.one_of(container.image_pull_policy.as_deref(), &policies, format!("{at}.imagePullPolicy"));
    let policies = ["File", "FallbackToLogsOnError"];
    errors.one_of(container.termination_message_policy.as_deref(), &policies, format!("{at}.terminationMessagePolicy"));
    ports(container.ports.as_deref().unwrap_or_default(), spec.host_network == Some(true), at, errors);
    environment(container, volumes, at, errors);
    if let Some(field) = oversized_field(container) {
        let message = format!("the expanded values up to this one have more than {EXPANDED_BYTES_MAX} bytes");
        errors.add(format!("{at}.{field}"), message);
    }
    resize(container, at, errors);
    mounts(container, volumes, at, errors);
    devices::check(container, spec, volumes, at, errors);
    if let Some(given) = &container.resources {
        resources::check(given, &format!("{at}.resources"), resources::is_container_resource, errors);
    }
    if let Some(context) = &container.security_context {
        let host_users = spec.host_users != Some(false);
        security::check_container(context, host_users, &format!("{at}.securityContext"), errors);
    }
}

fn image(image: &str, at: &str, errors: &mut FieldErrors) {
    let at = format!("{at}.image");
    if image.is_empty() {
        errors.add(at, "must be given, such as docker.io/library/nginx:1");
    } else if image.trim() != image {
        errors.add(at, format!("{} must not begin or end with white space", quoted(image)));
    }
}

fn unique<'a>(name: &'a str, seen: &mut BTreeSet<&'a str>, at: &str, errors: &mut FieldErrors) {
    if !name.is_empty() && !seen.insert(name) {
        errors.add(format!("{at}.name"), format!("{} is taken by another container of the pod", quoted(name)));
    }
}

fn ports(ports: &[ContainerPort], host_network: bool, at: &str, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = format!("{at}.ports[{i}]");
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            names::port_name(name, format!("{at}.name"), errors);
            if !seen.insert(name) {
                errors.add(format!("{at}.name"), format!("{} is taken by another port of the container", quoted(name)));
            }
        }
        names::port_number(port.container_port, format!("{at}.containerPort"), errors);
        let host_port = port.host_port.filter(|port| *port != 0);
        if let Some(number) = host_port {
            names::port_number(number, format!("{at}.hostPort"), errors);
        }
        if host_network && host_port.is_some_and(|number| number != port.container_port) {
            errors.add(format!("{at}.hostPort"), "must equal containerPort when hostNetwork is true");
        }
        errors.one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], format!("{at}.protocol"));
        // Stricter than the API server, because the value is passed to the host's packet filter.
        if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            errors.ip(ip, format!("{at}.hostIP"));
        }
    }
}

/// Number, address and protocol.
type HostPortKey<'a> = (i32, &'a str, &'a str);

fn host_port_conflicts<'a>(
    container: &'a Container,
    seen: &mut BTreeSet<HostPortKey<'a>>,
    at: &str,
    errors: &mut FieldErrors,
) {
    for (i, port) in container.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        let key = (number, port.host_ip.as_deref().unwrap_or_default(), port.protocol.as_deref().unwrap_or("TCP"));
        if !seen.insert(key) {
            errors.add(format!("{at}.ports[{i}].hostPort"), format!("{number} is taken by another port of the pod"));
        }
    }
}

fn environment(container: &Container, volumes: &Volumes<'_>, at: &str, errors: &mut FieldErrors) {
    for (i, source) in container.env_from.iter().flatten().enumerate() {
        let at = format!("{at}.envFrom[{i}]");
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            names::environment(prefix, format!("{at}.prefix"), errors);
        }
        let map = source.config_map_ref.as_ref().map(|map| map.name.as_str());
        let secret = source.secret_ref.as_ref().map(|secret| secret.name.as_str());
        match (map, secret) {
            (Some(name), None) | (None, Some(name)) => names::subdomain(name, format!("{at}.name"), errors),
            _ => errors.add(at, "must have exactly one of configMapRef and secretRef"),
        }
    }
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let at = format!("{at}.env[{i}]");
        names::environment(&variable.name, format!("{at}.name"), errors);
        if let Some(from) = &variable.value_from {
            if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
                errors.add(format!("{at}.valueFrom"), "must not be set together with value");
            }
            downward::check_env_source(from, volumes, &format!("{at}.valueFrom"), errors);
        }
    }
}

fn mounts(container: &Container, volumes: &Volumes<'_>, at: &str, errors: &mut FieldErrors) {
    let privileged = container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    let mut paths = BTreeSet::new();
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = format!("{at}.volumeMounts[{i}]");
        if !volumes.contains_key(mount.name.as_str()) {
            errors.add(
                format!("{at}.name"),
                format!("{} is not a volume of the pod: add it to spec.volumes", quoted(&mount.name)),
            );
        }
        if mount.mount_path.is_empty() {
            errors.add(format!("{at}.mountPath"), "must be given");
        } else if !paths.insert(mount.mount_path.as_str()) {
            errors.add(format!("{at}.mountPath"), format!("{} is used by another mount", quoted(&mount.mount_path)));
        }
        if mount.mount_path.contains('\0') {
            errors.add(format!("{at}.mountPath"), "must not contain a zero byte");
        }
        check_mount(mount, privileged, &at, errors);
    }
}

/// `resizePolicy`.
fn resize(container: &Container, at: &str, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, policy) in container.resize_policy.iter().flatten().enumerate() {
        let at = format!("{at}.resizePolicy[{i}]");
        errors.set_one_of(Some(&policy.resource_name), &["cpu", "memory"], format!("{at}.resourceName"));
        let known = ["NotRequired", "RestartContainer"];
        errors.set_one_of(Some(&policy.restart_policy), &known, format!("{at}.restartPolicy"));
        if !seen.insert(&policy.resource_name) {
            errors.add(at, format!("{} is there twice", quoted(&policy.resource_name)));
        }
    }
}

fn check_mount(mount: &VolumeMount, privileged: bool, at: &str, errors: &mut FieldErrors) {
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    errors.relative_path(sub_path, &format!("{at}.subPath"));
    errors.relative_path(expression, &format!("{at}.subPathExpr"));
    if !sub_path.is_empty() && !expression.is_empty() {
        errors.add(format!("{at}.subPathExpr"), "must not be set together with subPath");
    }
    let propagation = mount.mount_propagation.as_deref();
    let known = ["None", "HostToContainer", "Bidirectional"];
    errors.set_one_of(propagation, &known, format!("{at}.mountPropagation"));
    if propagation == Some("Bidirectional") && !privileged {
        errors.add(format!("{at}.mountPropagation"), "Bidirectional is for privileged containers only");
    }
    let recursive = mount.recursive_read_only.as_deref();
    let known = ["Disabled", "IfPossible", "Enabled"];
    errors.set_one_of(recursive, &known, format!("{at}.recursiveReadOnly"));
    if matches!(recursive, Some("IfPossible" | "Enabled")) {
        let here = format!("{at}.recursiveReadOnly");
        if mount.read_only != Some(true) {
            errors.add(&here, "needs readOnly: true");
        }
        if propagation.is_some_and(|propagation| propagation != "None") {
            errors.add(&here, "needs mountPropagation: None, or no mountPropagation");
        }
    }
}

fn restart(container: &Container, at: &str, errors: &mut FieldErrors) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    match container.restart_policy.as_deref() {
        None if !rules.is_empty() => errors.add(format!("{at}.restartPolicy"), "is required with restartPolicyRules"),
        policy => errors.set_one_of(policy, &["Always", "OnFailure", "Never"], format!("{at}.restartPolicy")),
    }
    if rules.len() > 20 {
        errors.add(format!("{at}.restartPolicyRules"), "must not have more than 20 rules");
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = format!("{at}.restartPolicyRules[{i}]");
        match rule.action.as_str() {
            "" => errors.add(format!("{at}.action"), "must be given: Restart"),
            action => errors.one_of(Some(action), &["Restart", "RestartAllContainers"], format!("{at}.action")),
        }
        match &rule.exit_codes {
            None => errors.add(format!("{at}.exitCodes"), "must be given"),
            Some(codes) => {
                if !matches!(codes.operator.as_str(), "In" | "NotIn") {
                    errors.add(format!("{at}.exitCodes.operator"), "must be In or NotIn");
                }
                if codes.values.as_ref().map_or(0, Vec::len) > 255 {
                    errors.add(format!("{at}.exitCodes.values"), "must not have more than 255 values");
                }
            }
        }
    }
}

fn handlers(container: &Container, spec: &PodSpec, at: &str, errors: &mut FieldErrors) {
    if let Some(lifecycle) = &container.lifecycle {
        handler::check_lifecycle(lifecycle, spec, &format!("{at}.lifecycle"), errors);
    }
    for (probe, kind) in [
        (&container.liveness_probe, "livenessProbe"),
        (&container.readiness_probe, "readinessProbe"),
        (&container.startup_probe, "startupProbe"),
    ] {
        if let Some(probe) = probe {
            handler::check_probe(probe, kind == "readinessProbe", &format!("{at}.{kind}"), errors);
        }
    }
}

fn no_handlers(container: &Container, at: &str, errors: &mut FieldErrors) {
    for (given, field) in [
        (container.lifecycle.is_some(), "lifecycle"),
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe"),
        (container.startup_probe.is_some(), "startupProbe"),
    ] {
        if given {
            errors.add(format!("{at}.{field}"), "is only for init containers with restartPolicy: Always");
        }
    }
}
