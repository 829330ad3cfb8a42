//! The last lines of the logs of failed containers, which `podwright explain` shows.

use std::fmt::Write;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::{Client, encode, pod_path};
use crate::print::plain;

/// Lines that are shown of each log.
const LINES: usize = 5;
/// Characters that are shown of each line.
const LINE_MAX: usize = 200;
/// Logs that are shown.
const LOGS_MAX: usize = 3;

/// A section for each container whose last instance failed; empty if there is none, or its log cannot be read.
pub(super) async fn of_failed_containers(client: &Client, pod: &Pod) -> String {
    let mut text = String::new();
    for (container, instance) in failed(pod).into_iter().take(LOGS_MAX) {
        let previous = instance == Instance::Previous;
        let query = format!("container={}&previous={previous}&tailLines={LINES}", encode(&container.name));
        let Ok(log) = client.get_bytes(&format!("{}/log?{query}", pod_path(pod))).await else { continue };
        let log = String::from_utf8_lossy(&log);
        if log.trim().is_empty() {
            let _ = writeln!(text, "\nThe log of {} is empty", container.name);
            continue;
        }
        let _ = writeln!(text, "\nLast log lines of {}", container.name);
        for line in log.lines() {
            let _ = writeln!(text, "  {}", plain(line).chars().take(LINE_MAX).collect::<String>());
        }
    }
    text
}

/// The instance of a container whose log is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instance {
    Newest,
    Previous,
}

/// The containers whose last instance ended with an error, and which instance that is.
fn failed(pod: &Pod) -> Vec<(&ContainerStatus, Instance)> {
    let Some(status) = &pod.status else { return vec![] };
    let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let ended_badly = |container: &&ContainerStatus| {
        let states = [&container.state, &container.last_state];
        let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code != 0)
    };
    let instance = |container: &ContainerStatus| match container.state.as_ref().is_some_and(|s| s.running.is_some()) {
        true => Instance::Previous,
        false => Instance::Newest,
    };
    all.filter(ended_badly).map(|container| (container, instance(container))).collect()
}
