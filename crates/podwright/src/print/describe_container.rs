//! One container in the output of `podwright describe`.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, EnvVar, Probe, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::describe::timestamp;
use super::plain;

pub(super) fn container(container: &Container, status: Option<&ContainerStatus>, out: &mut String) {
    let _ = writeln!(out, "  {}:", container.name);
    field(out, "Container ID", status.and_then(|s| s.container_id.as_deref()).unwrap_or_default());
    field(out, "Image", &plain(container.image.as_deref().unwrap_or_default()));
    field(out, "Image ID", status.map(|s| s.image_id.as_str()).unwrap_or_default());
    let ports = container.ports.iter().flatten();
    let ports = ports.map(|p| (p.container_port, p.host_port.unwrap_or(0), p.protocol.as_deref().unwrap_or("TCP")));
    let ports: Vec<_> = ports.collect();
    let texts = |pick: fn(&(i32, i32, &str)) -> i32| {
        ports.iter().map(|p| format!("{}/{}", pick(p), p.2)).collect::<Vec<_>>().join(", ")
    };
    field(out, "Ports", if ports.is_empty() { "<none>".into() } else { texts(|p| p.0) }.as_str());
    field(out, "Host Ports", if ports.is_empty() { "<none>".into() } else { texts(|p| p.1) }.as_str());
    arguments(out, "Command", container.command.as_deref());
    arguments(out, "Args", container.args.as_deref());
    if let Some(status) = status {
        state(out, "State", status.state.as_ref());
        if status.last_state.as_ref().is_some_and(|s| s.terminated.is_some()) {
            state(out, "Last State", status.last_state.as_ref());
        }
        field(out, "Ready", if status.ready { "True" } else { "False" });
        field(out, "Restart Count", &status.restart_count.to_string());
    }
    let resources = container.resources.as_ref();
    quantities(out, "Limits", resources.and_then(|r| r.limits.as_ref()));
    quantities(out, "Requests", resources.and_then(|r| r.requests.as_ref()));
    for (name, found) in [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ] {
        if let Some(found) = found {
            field(out, name, &plain(&probe(found)));
        }
    }
    list(out, "Environment", container.env.iter().flatten().map(variable).collect());
    list(out, "Mounts", container.volume_mounts.iter().flatten().map(mount).collect());
}

fn state(out: &mut String, name: &str, state: Option<&ContainerState>) {
    let Some(state) = state else { return field(out, name, "Waiting") };
    let line = |out: &mut String, name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            field(out, &format!("  {name}"), &plain(value));
        }
    };
    if let Some(running) = &state.running {
        field(out, name, "Running");
        line(out, "Started", running.started_at.as_ref().map(timestamp).as_deref());
    } else if let Some(ended) = &state.terminated {
        field(out, name, "Terminated");
        line(out, "Reason", ended.reason.as_deref());
        line(out, "Message", ended.message.as_deref());
        field(out, "  Exit Code", &ended.exit_code.to_string());
        line(out, "Signal", ended.signal.map(|signal| signal.to_string()).as_deref());
        line(out, "Started", ended.started_at.as_ref().map(timestamp).as_deref());
        line(out, "Finished", ended.finished_at.as_ref().map(timestamp).as_deref());
    } else {
        field(out, name, "Waiting");
        let waiting = state.waiting.as_ref();
        line(out, "Reason", waiting.and_then(|w| w.reason.as_deref()));
        line(out, "Message", waiting.and_then(|w| w.message.as_deref()));
    }
}

fn probe(probe: &Probe) -> String {
    let port = |port: &IntOrString| match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let how = if let Some(http) = &probe.http_get {
        let scheme = http.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let (host, path) = (http.host.as_deref().unwrap_or_default(), http.path.as_deref().unwrap_or("/"));
        format!("http-get {scheme}://{host}:{}{path}", port(&http.port))
    } else if let Some(tcp) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", tcp.host.as_deref().unwrap_or_default(), port(&tcp.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, grpc.service.as_deref().unwrap_or_default())
    } else {
        let command = probe.exec.as_ref().and_then(|e| e.command.as_ref());
        format!("exec [{}]", command.map(|c| c.join(" ")).unwrap_or_default())
    };
    let delay = probe.initial_delay_seconds.unwrap_or(0);
    let (timeout, period) = (probe.timeout_seconds.unwrap_or(1), probe.period_seconds.unwrap_or(10));
    let (success, failure) = (probe.success_threshold.unwrap_or(1), probe.failure_threshold.unwrap_or(3));
    format!("{how} delay={delay}s timeout={timeout}s period={period}s #success={success} #failure={failure}")
}

fn variable(variable: &EnvVar) -> String {
    let from = variable.value_from.as_ref().map(|from| {
        let resource = from.resource_field_ref.as_ref().map(|r| r.resource.clone());
        let path = from.field_ref.as_ref().map(|f| format!("v1:{}", f.field_path)).or(resource);
        format!("({})", path.unwrap_or_else(|| "from another object".into()))
    });
    plain(&format!("{}:  {}", variable.name, from.or(variable.value.clone()).unwrap_or_default()))
}

fn mount(mount: &VolumeMount) -> String {
    let mode = if mount.read_only == Some(true) { "ro" } else { "rw" };
    let below = mount.sub_path.as_ref().or(mount.sub_path_expr.as_ref());
    let below = below.map(|path| format!(",path={path:?}")).unwrap_or_default();
    plain(&format!("{} from {} ({mode}{below})", mount.mount_path, mount.name))
}

fn quantities(out: &mut String, name: &str, map: Option<&BTreeMap<String, Quantity>>) {
    let texts: Vec<String> = map.into_iter().flatten().map(|(key, value)| format!("{key}:  {}", value.0)).collect();
    if !texts.is_empty() {
        list(out, name, texts);
    }
}

fn arguments(out: &mut String, name: &str, arguments: Option<&[String]>) {
    if let Some(arguments) = arguments.filter(|w| !w.is_empty()) {
        list(out, name, arguments.iter().map(|argument| plain(argument)).collect());
    }
}

fn list(out: &mut String, name: &str, values: Vec<String>) {
    if values.is_empty() {
        return field(out, name, "<none>");
    }
    field(out, name, "");
    for value in values {
        let _ = writeln!(out, "      {value}");
    }
}

fn field(out: &mut String, name: &str, value: &str) {
    let name = format!("{name}:");
    let _ = writeln!(out, "{}", format!("    {name:<15} {value}").trim_end());
}
