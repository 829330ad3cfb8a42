//! Rotation of the logs of running containers: connects `podwright_agent::rotate` to the container runtime.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_agent::host::Pool;
use podwright_agent::rotate::{self, ListRunning, Reopen, RunningContainer};
use podwright_cri::{RuntimeService, labels, v1};

/// Runs until it is dropped. `limit` is the timeout of each runtime call.
pub(crate) async fn run(config: rotate::RotationConfig, runtime: Arc<dyn RuntimeService>, pool: Pool, limit: Duration) {
    let reopen: Reopen = {
        let runtime = runtime.clone();
        Arc::new(move |id| {
            let runtime = runtime.clone();
            Box::pin(async move { runtime.reopen_container_log(id.as_str(), limit).await })
        })
    };
    let logs = LogPaths::default();
    let list: ListRunning = Arc::new(move || {
        let (runtime, logs) = (runtime.clone(), logs.clone());
        Box::pin(async move { logs.of_running(&*runtime, limit).await })
    });
    rotate::run(config, list, reopen, pool).await;
}

/// Cache of log paths by container id: the path of a container's log never changes.
#[derive(Clone, Default)]
struct LogPaths(Arc<std::sync::Mutex<std::collections::BTreeMap<String, PathBuf>>>);

impl LogPaths {
    async fn of_running(&self, runtime: &dyn RuntimeService, limit: Duration) -> Vec<RunningContainer> {
        let state = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
        let filter = v1::ContainerFilter { state: Some(state), ..Default::default() };
        let Ok(mut listed) = runtime.list_containers(Some(filter), limit).await else { return vec![] };
        listed.retain(|c| labels::Owner::of(&c.labels).is_some());
        let mut known = std::mem::take(&mut *self.0.lock().expect("no panic under this lock"));
        known.retain(|id, _| listed.iter().any(|c| c.id == *id));
        for container in &listed {
            if !known.contains_key(&container.id)
                && let Ok(answer) = runtime.container_status(&container.id, false, limit).await
                && let Some(status) = answer.status.filter(|s| !s.log_path.is_empty())
            {
                known.insert(container.id.clone(), PathBuf::from(status.log_path));
            }
        }
        let running =
            known.iter().map(|(id, log)| RunningContainer { id: id.as_str().into(), log: log.clone() }).collect();
        *self.0.lock().expect("no panic under this lock") = known;
        running
    }
}
