//! Processes that became children of this one because their shim, or the agent before, has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use podwright_linux::exit_info::{self, ExitInfo};
use podwright_linux::pidfd;
use podwright_shim::protocol::{ExitReport, Exited};

use super::{ExitReporter, OBSERVE_LIMIT, STATUS_PAUSE, container_dir, ended, location, oom_killed, record_of};
use crate::context::{EngineContext, now};
use crate::machine::{ContainerId, Failure};

/// Reaps a shim when it ends, if it is a child of ours.
pub(crate) fn reap_shim(pidfd: Arc<OwnedFd>) {
    podwright_tasks::spawn("reap", async move {
        if ended(&pidfd).await.is_ok() {
            // Not a child: pid 1 reaps it.
            let _ = exit_info::poll(&pidfd, true);
        }
    });
}

/// Reaps a container whose shim is lost when it ends, if it is a child of ours. Before Linux 6.15 only its parent gets the status, and
/// once: it is recorded first, so that a crash in between loses nothing, and the new shim reports what is recorded. If that fails it is
/// reported from here, and its zombie keeps the status until the sweep.
pub(crate) fn reap_container(
    context: &Arc<EngineContext>,
    id: &ContainerId,
    pidfd: Arc<OwnedFd>,
    exited: ExitReporter,
) {
    let (context, id) = (Arc::downgrade(context), id.clone());
    podwright_tasks::spawn("reap", async move {
        if ended(&pidfd).await.is_err() {
            return;
        }
        let Some(info) = own_zombie(&pidfd).await else { return };
        // With 6.15 the new shim reads it after it was reaped, and reports it once the output is complete.
        if let Some(context) = context.upgrade()
            && !context.features.pidfd_exit_info
            && let Err(error) = write_exit(&context, &id, info).await
        {
            tracing::warn!(container_id = %id, %error, "exit of a container not recorded for its shim");
            return exited(id.clone(), record_of(&context, &id, info).await).await;
        }
        let _ = exit_info::poll(&pidfd, true);
    });
}

/// The status of a process that has ended, if it is a child of ours. The kernel closes the socket of a shim that dies before its
/// children become ours: one that is not yet reaped may still come. `None`: pid 1 reaps it.
async fn own_zombie(pidfd: &OwnedFd) -> Option<ExitInfo> {
    let until = tokio::time::Instant::now() + REPARENT_LIMIT;
    loop {
        if let Ok(Some(info)) = exit_info::poll(pidfd, false) {
            return Some(info);
        }
        if exit_info::is_reaped(pidfd).unwrap_or(true) || tokio::time::Instant::now() >= until {
            return None;
        }
        tokio::time::sleep(STATUS_PAUSE).await;
    }
}

/// Writes the exit to the files of the container, as its shim would have.
async fn write_exit(context: &Arc<EngineContext>, id: &ContainerId, info: ExitInfo) -> Result<(), Failure> {
    let Some((sandbox, _)) = location(context, id) else { return Ok(()) };
    let number = |number: i32| u32::try_from(number).unwrap_or_default();
    let finished_at = u64::try_from(now().wall_ns).unwrap_or_default();
    let (code, signal) = (number(info.code), number(info.signal.unwrap_or_default()));
    let report = ExitReport { code, signal, finished_at, unknown: false };
    let (of, pod) = (id.clone(), sandbox.clone());
    let write = move |context: &EngineContext| -> io::Result<()> {
        let oom_kills = u64::from(oom_killed(context, &of));
        let dir = container_dir(context, &pod, &of)?;
        let process = dir.process().map_err(io::Error::other)?;
        let started_at = process.map_or(0, |process| pidfd::started_at_ns(process.start_time));
        let exited = Exited { container: of.0.clone(), report: Some(report), oom_kills, started_at };
        dir.record_exit(&exited).map_err(io::Error::other)
    };
    context.blocking(&sandbox, OBSERVE_LIMIT, write).await
}

/// The new shim waits for a status for ten seconds.
const REPARENT_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use podwright_linux::pidfd::PidFd;

    use super::*;

    /// As that of a shim that is dying: its parent is another process for a moment longer.
    #[tokio::test]
    async fn a_zombie_that_becomes_ours_a_moment_later_is_waited_for() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let script = "exec 3<&0; sh -c 'read line; exit 7' <&3 & echo $!; exec sleep 60";
        let mut parent = std::process::Command::new("sh");
        let parent = parent.args(["-c", script]).stdin(std::process::Stdio::piped());
        let mut parent = parent.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(parent.stdout.take().unwrap()), &mut line).unwrap();
        let pidfd = PidFd::open(line.trim().parse().unwrap()).unwrap();
        // A shell would reap it.
        let name = format!("/proc/{}/comm", parent.id());
        while std::fs::read_to_string(&name).unwrap().trim() != "sleep" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(parent.stdin.take());
        assert!(pidfd.wait_exit(Duration::from_secs(30)).unwrap());
        let pidfd = pidfd.into_fd();
        let end = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            parent.kill().unwrap();
            parent.wait().unwrap();
        };
        let (status, ()) = tokio::join!(own_zombie(&pidfd), end);
        assert_eq!(status.map(|info| info.code), Some(7));
        assert!(exit_info::poll(&pidfd, true).unwrap().is_some());
    }
}
