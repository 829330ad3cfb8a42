//! The table of pods, with a STATUS column.
//!
//! The status follows kubectl's rules (`printPod`), with two differences: a pod that is not admitted yet (not enough resources, another pod
//! of its name) shows that reason, where kubectl would show the state of its containers, which do not exist yet. A pod in quarantine is
//! `Quarantined`: the agent does nothing for it, and what is known of its containers may be old.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use podwright_core::model::is_sidecar;
use podwright_core::static_pod::CONFIG_SEEN;

use super::{Colour, TextTable, age, age_at, plain, seconds};

/// The computed columns of a row.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    /// Ready containers, and all that should be.
    pub(crate) ready: (usize, usize),
    /// `Running`, `Init:0/1`, `CrashLoopBackOff`, …
    pub(crate) status: String,
    /// Number of restarts, and the time of the last. Init containers count only until they have completed.
    pub(crate) restarts: (i64, Option<Timestamp>),
}

/// Optional columns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) namespace: bool,
    /// IP, node and ports.
    pub(crate) wide: bool,
    pub(crate) labels: bool,
}

/// Static pods have no creation time of an API server; their age starts when they were admitted, or else first read.
fn created_at(pod: &Pod) -> Option<Timestamp> {
    let created = pod.metadata.creation_timestamp.as_ref();
    let created = created.or(pod.status.as_ref().and_then(|s| s.start_time.as_ref())).map(|time| time.0);
    let seen = || pod.metadata.annotations.as_ref()?.get(CONFIG_SEEN)?.parse().ok();
    created.or_else(seen)
}

pub(crate) fn table(pods: &[Pod], columns: Columns, now: Timestamp) -> TextTable {
    let mut head = vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    if columns.namespace {
        head.insert(0, "NAMESPACE");
    }
    if columns.wide {
        head.extend(["IP", "NODE", "PORTS"]);
    }
    if columns.labels {
        head.push("LABELS");
    }
    let mut table = TextTable::new(&head);
    for pod in pods {
        let Summary { ready, status, restarts } = summary(pod);
        let text = |text: Option<&str>| (plain(text.unwrap_or("<none>")), None);
        let created = created_at(pod);
        let all_ready = ready.0 == ready.1;
        let mut row = vec![
            text(pod.metadata.name.as_deref()),
            (format!("{}/{}", ready.0, ready.1), None),
            (plain(&status_text(pod, &status)), Some(colour(&status, all_ready))),
            (restarts_text(restarts, now), None),
            (age_at(created, now), None),
        ];
        if columns.namespace {
            row.insert(0, text(pod.metadata.namespace.as_deref()));
        }
        if columns.wide {
            row.push(text(pod.status.as_ref().and_then(|s| s.pod_ip.as_deref())));
            row.push(text(pod.spec.as_ref().and_then(|s| s.node_name.as_deref())));
            row.push(text(ports(pod).as_deref()));
        }
        if columns.labels {
            let labels = pod.metadata.labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
            let labels = labels.collect::<Vec<_>>().join(",");
            row.push(text(Some(labels.as_str()).filter(|labels| !labels.is_empty())));
        }
        table.row(row);
    }
    table
}

/// `Pulling 34 of 120 MB` while a container waits for its image, if it is known how far the pull is; of an init container
/// `Init:0/1 (Pulling 34 of 120 MB)`.
fn status_text(pod: &Pod, status: &str) -> String {
    let statuses = pod.status.iter().filter(|_| pod.metadata.deletion_timestamp.is_none());
    let mut statuses = statuses.flat_map(|s| s.init_container_statuses.iter().chain(&s.container_statuses).flatten());
    let pull = statuses.find_map(|container| {
        let message = state(container)?.waiting.as_ref()?.message.as_deref()?;
        message.starts_with("Pulling ").then_some(message)
    });
    match (pull, status) {
        (None, status) => status.to_owned(),
        (Some(pull), "ContainerCreating" | "PodInitializing" | "Pending") => pull.to_owned(),
        (Some(pull), status) => format!("{status} ({pull})"),
    }
}

/// The cells of the API server's table after the name: ready, status, restarts, age, IP, node.
pub(crate) fn cells(pod: &Pod, now: Timestamp) -> [String; 6] {
    let Summary { ready, status, restarts } = summary(pod);
    let text = |text: Option<&str>| text.unwrap_or("<none>").to_owned();
    [
        format!("{}/{}", ready.0, ready.1),
        status,
        restarts_text(restarts, now),
        age_at(created_at(pod), now),
        text(pod.status.as_ref().and_then(|s| s.pod_ip.as_deref())),
        text(pod.spec.as_ref().and_then(|s| s.node_name.as_deref())),
    ]
}

fn restarts_text(restarts: (i64, Option<Timestamp>), now: Timestamp) -> String {
    match restarts {
        (count @ 1.., Some(last)) => format!("{count} ({} ago)", age(seconds(last, now))),
        (count, _) => count.to_string(),
    }
}

/// The ports that containers declare: `8080->80/TCP` with a host port, else `80/TCP`.
fn ports(pod: &Pod) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).map(|port| {
        let host = port.host_port.filter(|host| *host != 0).map(|host| format!("{host}->")).unwrap_or_default();
        format!("{host}{}/{}", port.container_port, port.protocol.as_deref().unwrap_or("TCP"))
    });
    Some(ports.collect::<Vec<_>>().join(",")).filter(|ports| !ports.is_empty())
}

/// The computed columns of a pod.
pub(crate) fn summary(pod: &Pod) -> Summary {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    let inits = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let sidecars: Vec<&str> = inits.clone().filter(|c| is_sidecar(c)).map(|c| c.name.as_str()).collect();
    let init = init(status, &sidecars, inits.count());
    let apps = pod.spec.as_ref().map_or(0, |s| s.containers.len());
    let initialized = condition(status, "Initialized");
    let held_reason = status.reason.clone().filter(|reason| !reason.is_empty());
    let mut text = held_reason.clone().unwrap_or_else(|| phase.to_owned());
    let mut summary = Summary { ready: (init.ready, apps + sidecars.len()), status: String::new(), restarts: init.all };
    if let Some(unfinished) = init.status {
        text = unfinished;
    }
    if init.done || initialized {
        let app = app(status);
        summary.ready.0 += app.ready;
        summary.restarts = join(init.sidecars, app.restarts);
        text = match app.status {
            // The pod is not admitted: the state of its containers adds nothing.
            Some(_) if held_reason.is_some() && phase == "Pending" => text,
            Some(app) => app,
            None => text,
        };
        if text == "Completed" && app.running {
            text = if condition(status, "Ready") { "Running" } else { "NotReady" }.into();
        }
    } else if held_reason.is_some() && phase == "Pending" {
        text = held_reason.unwrap_or_default();
    }
    let terminal = podwright_core::model::is_terminal(Some(phase));
    // How its containers ended says nothing about them: a user ended them.
    if terminal && status.reason.as_deref() == Some(podwright_core::status::STOPPED) {
        text = podwright_core::status::STOPPED.into();
    }
    if podwright_core::status::is_quarantined_for_long(status) && !terminal {
        text = "Quarantined".into();
    }
    if pod.metadata.deletion_timestamp.is_some() && !terminal {
        text = "Terminating".into();
    }
    summary.status = text;
    summary
}

type Restarts = (i64, Option<Timestamp>);

struct Init {
    /// Why init is not over.
    status: Option<String>,
    done: bool,
    ready: usize,
    all: Restarts,
    sidecars: Restarts,
}

fn init(status: &PodStatus, sidecars: &[&str], count: usize) -> Init {
    let mut init = Init { status: None, done: true, ready: 0, all: (0, None), sidecars: (0, None) };
    for (place, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = sidecars.contains(&container.name.as_str());
        init.all = join(init.all, restarts(container));
        if sidecar {
            init.sidecars = join(init.sidecars, restarts(container));
        }
        let ended = terminated(container);
        if ended.is_some_and(|ended| ended.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            init.ready += usize::from(container.ready);
            continue;
        }
        let waiting = waiting(container).filter(|reason| *reason != "PodInitializing");
        init.status = Some(match (ended, waiting) {
            (Some(ended), _) => format!("Init:{}", ending(ended)),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{place}/{count}"),
        });
        init.done = false;
        break;
    }
    init
}

struct App {
    status: Option<String>,
    running: bool,
    ready: usize,
    restarts: Restarts,
}

/// The first container that waits or has terminated determines the status.
fn app(status: &PodStatus) -> App {
    let mut app = App { status: None, running: false, ready: 0, restarts: (0, None) };
    for container in status.container_statuses.iter().flatten().rev() {
        app.restarts = join(app.restarts, restarts(container));
        if let Some(reason) = waiting(container) {
            app.status = Some(reason.to_owned());
        } else if let Some(ended) = terminated(container) {
            app.status = Some(ending(ended));
        } else if container.ready && state(container).is_some_and(|s| s.running.is_some()) {
            app.running = true;
            app.ready += 1;
        }
    }
    app
}

fn ending(ended: &ContainerStateTerminated) -> String {
    match (ended.reason.as_deref().filter(|reason| !reason.is_empty()), ended.signal.filter(|signal| *signal != 0)) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", ended.exit_code),
    }
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

fn waiting(container: &ContainerStatus) -> Option<&str> {
    state(container)?.waiting.as_ref()?.reason.as_deref().filter(|reason| !reason.is_empty())
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    state(container)?.terminated.as_ref()
}

fn restarts(container: &ContainerStatus) -> Restarts {
    let last = container.last_state.as_ref().and_then(|s| s.terminated.as_ref()).and_then(|t| t.finished_at.as_ref());
    (container.restart_count.into(), last.map(|time| time.0))
}

fn join(a: Restarts, b: Restarts) -> Restarts {
    (a.0 + b.0, a.1.max(b.1))
}

/// Whether the condition is `True`.
pub(crate) fn condition(status: &PodStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

fn colour(status: &str, ready: bool) -> Colour {
    match status {
        "Running" if ready => Colour::Good,
        "Completed" | "Succeeded" => Colour::Good,
        "Running" | "Pending" | "Terminating" | "ContainerCreating" | "PodInitializing" | "NotReady" => Colour::Busy,
        podwright_core::status::STOPPED => Colour::Busy,
        "WaitingForPredecessor" => Colour::Busy,
        other if other.strip_prefix("Init:").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) => {
            Colour::Busy
        }
        _ => Colour::Bad,
    }
}

#[cfg(test)]
mod tests;
