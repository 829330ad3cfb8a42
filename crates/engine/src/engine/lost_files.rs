//! Running containers whose files in the run directory were deleted, as by a program that cleans `/run`. Nothing leads to their processes
//! and exit codes any more: an engine that started would take them for ended, and kill what is left in their cgroups.

use std::fs;
use std::io;
use std::path::Path;

use podwright_linux::cgroup::{CgroupPath, CgroupTree};

use super::EngineError;
use crate::machine::ContainerRecordState;
use crate::spec;
use crate::store::{ContainerRecord, SandboxRecord, StoredRecords};

/// Refuses to go on with records of this boot while such a container runs.
pub(super) fn check(records: &StoredRecords, pods: &Path, cgroups: &CgroupTree) -> Result<(), EngineError> {
    let mut running = vec![];
    for (id, container) in &records.containers {
        let dir = pods.join(&container.sandbox_id);
        let is_lost = match container.state {
            ContainerRecordState::Running => is_missing(&dir.join("c").join(&id.0))?,
            // Its own directory may not have been made.
            ContainerRecordState::Starting => is_missing(&dir)?,
            ContainerRecordState::Created | ContainerRecordState::Exited(_) => false,
        };
        let sandbox = records.sandboxes.iter().find(|(sandbox, _)| sandbox.0 == container.sandbox_id);
        let Some((_, sandbox)) = sandbox.filter(|_| is_lost) else { continue };
        let Some(cgroup) = cgroup(&id.0, sandbox) else { continue };
        let pids = cgroups.procs(&cgroup)?;
        if !pids.is_empty() {
            running.push(description(container, sandbox, pids.into_iter().collect()));
        }
    }
    match running.is_empty() {
        true => Ok(()),
        false => Err(EngineError::RunFilesLost { pods: pods.to_owned(), running: listed(running) }),
    }
}

fn is_missing(path: &Path) -> Result<bool, EngineError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(EngineError::Host("the files of a container", error)),
    }
}

fn cgroup(container: &str, sandbox: &SandboxRecord) -> Option<CgroupPath> {
    let pod = spec::pod_cgroup(&sandbox.config).ok()?;
    CgroupPath::parse(&pod).ok()?.join(container).ok()
}

fn description(container: &ContainerRecord, sandbox: &SandboxRecord, pids: Vec<u32>) -> String {
    let name = container.config.metadata.as_ref().map(|metadata| metadata.name.as_str()).unwrap_or_default();
    let pod = sandbox.config.metadata.clone().unwrap_or_default();
    let pids = listed(pids.iter().map(u32::to_string).collect());
    format!("{name} of pod {}/{} (PID {pids})", pod.namespace, pod.name)
}

fn listed(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(LISTED_MAX);
    all.truncate(LISTED_MAX);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(", ")
}

/// In one message.
const LISTED_MAX: usize = 5;
