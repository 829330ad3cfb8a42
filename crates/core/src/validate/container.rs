//! Containers: names, images, ports, environment, mounts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerPort, PodSpec, VolumeMount};

use super::{Findings, devices, downward, handler, names, resources, security, shown};
use crate::model::{Container, is_sidecar};

pub(super) fn check_all(spec: &PodSpec, volumes: &BTreeSet<&str>, findings: &mut Findings) {
    if spec.containers.is_empty() {
        findings.add("spec.containers", "must have at least one container");
    }
    let mut seen = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        let at = format!("spec.containers[{i}]");
        check(container, spec, volumes, &at, findings);
        restart(container, &at, findings);
        handlers(container, spec, &at, findings);
        host_port_conflicts(container, &mut host_ports, &at, findings);
        unique(&container.name, &mut seen, &at, findings);
    }
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        let at = format!("spec.initContainers[{i}]");
        check(container, spec, volumes, &at, findings);
        restart(container, &at, findings);
        if is_sidecar(container) {
            handlers(container, spec, &at, findings);
        } else {
            no_handlers(container, &at, findings);
        }
        // Init containers run one after the other.
        host_port_conflicts(container, &mut BTreeSet::new(), &at, findings);
        unique(&container.name, &mut seen, &at, findings);
    }
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let at = format!("spec.ephemeralContainers[{i}]");
        names::label(&container.name, format!("{at}.name"), findings);
        image(container.image.as_deref().unwrap_or_default(), &at, findings);
        unique(&container.name, &mut seen, &at, findings);
    }
}

fn check(container: &Container, spec: &PodSpec, volumes: &BTreeSet<&str>, at: &str, findings: &mut Findings) {
    names::label(&container.name, format!("{at}.name"), findings);
    image(container.image.as_deref().unwrap_or_default(), at, findings);
    let policies = ["Always", "IfNotPresent", "Never"];
    findings.one_of(container.image_pull_policy.as_deref(), &policies, format!("{at}.imagePullPolicy"));
    let policies = ["File", "FallbackToLogsOnError"];
    findings.one_of(
        container.termination_message_policy.as_deref(),
        &policies,
        format!("{at}.terminationMessagePolicy"),
    );
    ports(container.ports.as_deref().unwrap_or_default(), spec.host_network == Some(true), at, findings);
    environment(container, spec, at, findings);
    resize(container, at, findings);
    mounts(container, volumes, at, findings);
    devices::check(container, spec, at, findings);
    if let Some(given) = &container.resources {
        resources::check(given, &format!("{at}.resources"), resources::is_container_resource, findings);
    }
    if let Some(context) = &container.security_context {
        let host_users = spec.host_users != Some(false);
        security::check_container(context, host_users, &format!("{at}.securityContext"), findings);
    }
}

fn image(image: &str, at: &str, findings: &mut Findings) {
    let at = format!("{at}.image");
    if image.is_empty() {
        findings.add(at, "must be given, such as docker.io/library/nginx:1");
    } else if image.trim() != image {
        findings.add(at, format!("{} must not begin or end with white space", shown(image)));
    }
}

fn unique<'a>(name: &'a str, seen: &mut BTreeSet<&'a str>, at: &str, findings: &mut Findings) {
    if !name.is_empty() && !seen.insert(name) {
        findings.add(format!("{at}.name"), format!("{} is taken by another container of the pod", shown(name)));
    }
}

fn ports(ports: &[ContainerPort], host_network: bool, at: &str, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = format!("{at}.ports[{i}]");
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            names::port_name(name, format!("{at}.name"), findings);
            if !seen.insert(name) {
                findings
                    .add(format!("{at}.name"), format!("{} is taken by another port of the container", shown(name)));
            }
        }
        names::port_number(port.container_port, format!("{at}.containerPort"), findings);
        let host_port = port.host_port.filter(|port| *port != 0);
        if let Some(number) = host_port {
            names::port_number(number, format!("{at}.hostPort"), findings);
        }
        if host_network && host_port.is_some_and(|number| number != port.container_port) {
            findings.add(format!("{at}.hostPort"), "must equal containerPort when hostNetwork is true");
        }
        findings.one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], format!("{at}.protocol"));
        // Stricter than the API server: what follows would hand it to the host's packet filter.
        if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            findings.ip(ip, format!("{at}.hostIP"));
        }
    }
}

type HostPort<'a> = (i32, &'a str, &'a str);

fn host_port_conflicts<'a>(
    container: &'a Container,
    seen: &mut BTreeSet<HostPort<'a>>,
    at: &str,
    findings: &mut Findings,
) {
    for (i, port) in container.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        let key = (number, port.host_ip.as_deref().unwrap_or_default(), port.protocol.as_deref().unwrap_or("TCP"));
        if !seen.insert(key) {
            findings.add(format!("{at}.ports[{i}].hostPort"), format!("{number} is taken by another port of the pod"));
        }
    }
}

fn environment(container: &Container, spec: &PodSpec, at: &str, findings: &mut Findings) {
    for (i, source) in container.env_from.iter().flatten().enumerate() {
        let at = format!("{at}.envFrom[{i}]");
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            names::environment(prefix, format!("{at}.prefix"), findings);
        }
        let map = source.config_map_ref.as_ref().map(|map| map.name.as_str());
        let secret = source.secret_ref.as_ref().map(|secret| secret.name.as_str());
        match (map, secret) {
            (Some(name), None) | (None, Some(name)) => names::subdomain(name, format!("{at}.name"), findings),
            _ => findings.add(at, "must have exactly one of configMapRef and secretRef"),
        }
    }
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let at = format!("{at}.env[{i}]");
        names::environment(&variable.name, format!("{at}.name"), findings);
        if let Some(from) = &variable.value_from {
            if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
                findings.add(format!("{at}.valueFrom"), "must not be given beside value");
            }
            downward::check_env_source(from, spec, &format!("{at}.valueFrom"), findings);
        }
    }
}

fn mounts(container: &Container, volumes: &BTreeSet<&str>, at: &str, findings: &mut Findings) {
    let privileged = container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    let mut paths = BTreeSet::new();
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = format!("{at}.volumeMounts[{i}]");
        if !volumes.contains(mount.name.as_str()) {
            findings.add(
                format!("{at}.name"),
                format!("{} is no volume of the pod: add it to spec.volumes", shown(&mount.name)),
            );
        }
        if mount.mount_path.is_empty() {
            findings.add(format!("{at}.mountPath"), "must be given");
        } else if !paths.insert(mount.mount_path.as_str()) {
            findings.add(format!("{at}.mountPath"), format!("{} is used by another mount", shown(&mount.mount_path)));
        }
        if mount.mount_path.contains('\0') {
            findings.add(format!("{at}.mountPath"), "must not contain a zero byte");
        }
        check_mount(mount, privileged, &at, findings);
    }
}

/// Which resources may change without a restart.
fn resize(container: &Container, at: &str, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (i, policy) in container.resize_policy.iter().flatten().enumerate() {
        let at = format!("{at}.resizePolicy[{i}]");
        findings.given_one_of(Some(&policy.resource_name), &["cpu", "memory"], format!("{at}.resourceName"));
        let known = ["NotRequired", "RestartContainer"];
        findings.given_one_of(Some(&policy.restart_policy), &known, format!("{at}.restartPolicy"));
        if !seen.insert(&policy.resource_name) {
            findings.add(at, format!("{} is there twice", shown(&policy.resource_name)));
        }
    }
}

fn check_mount(mount: &VolumeMount, privileged: bool, at: &str, findings: &mut Findings) {
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    findings.descending(sub_path, &format!("{at}.subPath"));
    findings.descending(expression, &format!("{at}.subPathExpr"));
    if !sub_path.is_empty() && !expression.is_empty() {
        findings.add(format!("{at}.subPathExpr"), "must not be given beside subPath");
    }
    let propagation = mount.mount_propagation.as_deref();
    let known = ["None", "HostToContainer", "Bidirectional"];
    findings.given_one_of(propagation, &known, format!("{at}.mountPropagation"));
    if propagation == Some("Bidirectional") && !privileged {
        findings.add(format!("{at}.mountPropagation"), "Bidirectional is for privileged containers only");
    }
    let recursive = mount.recursive_read_only.as_deref();
    let known = ["Disabled", "IfPossible", "Enabled"];
    findings.given_one_of(recursive, &known, format!("{at}.recursiveReadOnly"));
    if matches!(recursive, Some("IfPossible" | "Enabled")) {
        let here = format!("{at}.recursiveReadOnly");
        if mount.read_only != Some(true) {
            findings.add(&here, "needs readOnly: true");
        }
        if propagation.is_some_and(|propagation| propagation != "None") {
            findings.add(&here, "needs mountPropagation None, or none given");
        }
    }
}

fn restart(container: &Container, at: &str, findings: &mut Findings) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    match container.restart_policy.as_deref() {
        None if !rules.is_empty() => {
            findings.add(format!("{at}.restartPolicy"), "must be given beside restartPolicyRules")
        }
        policy => findings.given_one_of(policy, &["Always", "OnFailure", "Never"], format!("{at}.restartPolicy")),
    }
    if rules.len() > 20 {
        findings.add(format!("{at}.restartPolicyRules"), "must not have more than 20 rules");
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = format!("{at}.restartPolicyRules[{i}]");
        match rule.action.as_str() {
            "" => findings.add(format!("{at}.action"), "must be given: Restart"),
            action => findings.one_of(Some(action), &["Restart", "RestartAllContainers"], format!("{at}.action")),
        }
        match &rule.exit_codes {
            None => findings.add(format!("{at}.exitCodes"), "must be given"),
            Some(codes) => {
                if !matches!(codes.operator.as_str(), "In" | "NotIn") {
                    findings.add(format!("{at}.exitCodes.operator"), "must be In or NotIn");
                }
                if codes.values.as_ref().map_or(0, Vec::len) > 255 {
                    findings.add(format!("{at}.exitCodes.values"), "must not have more than 255 values");
                }
            }
        }
    }
}

fn handlers(container: &Container, spec: &PodSpec, at: &str, findings: &mut Findings) {
    if let Some(lifecycle) = &container.lifecycle {
        handler::check_lifecycle(lifecycle, spec, &format!("{at}.lifecycle"), findings);
    }
    for (probe, kind) in [
        (&container.liveness_probe, "livenessProbe"),
        (&container.readiness_probe, "readinessProbe"),
        (&container.startup_probe, "startupProbe"),
    ] {
        if let Some(probe) = probe {
            handler::check_probe(probe, kind == "readinessProbe", &format!("{at}.{kind}"), findings);
        }
    }
}

fn no_handlers(container: &Container, at: &str, findings: &mut Findings) {
    for (given, field) in [
        (container.lifecycle.is_some(), "lifecycle"),
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe"),
        (container.startup_probe.is_some(), "startupProbe"),
    ] {
        if given {
            findings.add(format!("{at}.{field}"), "is only for init containers with restartPolicy: Always");
        }
    }
}
