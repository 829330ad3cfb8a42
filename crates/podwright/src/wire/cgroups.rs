//! The cgroup hierarchies and the driver that manages them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use podwright_agent::host::SystemdManager;
use podwright_agent::observe::{Observer, runtime_cgroup_driver};
use podwright_agent::translate::CgroupDriver;
use podwright_cri::RuntimeService;
use podwright_linux::cgroup::CgroupTree;
use podwright_tasks::Tasks;

use super::PROBE_LIMIT;
use crate::config::AgentConfig;

/// How pods get their cgroups.
pub(super) struct OpenedCgroups {
    /// `None`: pods have no cgroups (`cgroupsPerQOS: false`).
    pub(super) tree: Option<CgroupTree>,
    pub(super) driver: CgroupDriver,
    /// False: the runtime did not answer yet, so its driver may be another one.
    confirmed: bool,
    /// Present if pods have cgroups and systemd manages them.
    pub(super) systemd: Option<Arc<SystemdManager>>,
}

impl OpenedCgroups {
    /// The driver is the runtime's, if it reports one: both manage the same processes. Waits for the runtime if there may be pods,
    /// by a record or by a directory that another agent left, and the driver of their cgroups is not known.
    pub(super) async fn open(
        config: &AgentConfig,
        runtime: &dyn RuntimeService,
        has_records: bool,
    ) -> anyhow::Result<Self> {
        let configured = config.cgroups.driver;
        let has_pods = has_records || has_pod_dirs(&config.dirs.root);
        let file = DriverFile::below(&config.dirs.root);
        let (driver, confirmed) = choose(runtime, configured, file.read(), has_pods).await;
        if driver != configured {
            let (runtimes, configured) = (driver.as_str(), configured.as_str());
            tracing::info!(
                driver = runtimes,
                configured,
                "the cgroup driver of the runtime replaces the configured one"
            );
        }
        file.write(driver).with_context(|| format!("write {}", file.0.display()))?;
        if !config.cgroups.per_qos {
            return Ok(Self { tree: None, driver, confirmed, systemd: None });
        }
        let tree = CgroupTree::detect().context("find the cgroup hierarchies")?;
        let systemd = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => {
                let connected = SystemdManager::connect(CONNECT_LIMIT).await.context(UNREACHABLE)?;
                Some(Arc::new(connected))
            }
        };
        Ok(Self { tree: Some(tree), driver, confirmed, systemd })
    }

    /// Compares the driver with the runtime's once that answers, if it did not at the start. Until then nothing is observed: with
    /// the wrong driver, pods that run would have no cgroup and be restarted.
    pub(super) fn start_confirmation(
        &self,
        config: &AgentConfig,
        runtime: &Arc<dyn RuntimeService>,
        observer: &Arc<Observer>,
        tasks: &Tasks,
    ) {
        if !self.confirmed && config.cgroups.per_qos {
            observer.hold();
            let (runtime, observer) = (Arc::clone(runtime), Arc::clone(observer));
            let (configured, used) = (config.cgroups.driver, self.driver);
            tasks.service("cgroup-driver", async move {
                if confirm_driver(&*runtime, configured, used).await {
                    observer.release();
                    std::future::pending::<()>().await;
                }
            });
        }
    }
}

/// Pods of this or another agent have directories on this node.
fn has_pod_dirs(root: &Path) -> bool {
    match std::fs::read_dir(root.join("pods")) {
        Ok(mut entries) => entries.next().is_some(),
        // What cannot be read may have entries.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The driver to use, and whether the runtime confirmed it.
async fn choose(
    runtime: &dyn RuntimeService,
    configured: CgroupDriver,
    last: Option<CgroupDriver>,
    has_pods: bool,
) -> (CgroupDriver, bool) {
    let mut attempt = 1;
    loop {
        let error = match runtime_cgroup_driver(runtime, PROBE_LIMIT).await {
            Ok(reported) => return (reported.unwrap_or(configured), true),
            Err(error) => anyhow::Error::from(error),
        };
        match last {
            Some(last) => {
                tracing::warn!(error = %format!("{error:#}"), driver = last.as_str(), "the cgroup driver of the last start is used");
                return (last, false);
            }
            None if attempt >= DRIVER_TRIES && !has_pods => {
                tracing::warn!(error = %format!("{error:#}"), driver = configured.as_str(), "the configured cgroup driver is used");
                return (configured, false);
            }
            None if attempt.is_multiple_of(DRIVER_TRIES) => {
                tracing::warn!(error = %format!("{error:#}"), attempt, "waiting for the runtime to report its cgroup driver");
            }
            None => {}
        }
        attempt = attempt.saturating_add(1);
        // The runtime may still be starting.
        tokio::time::sleep(DRIVER_PAUSE).await;
    }
}

/// Asks the runtime for its driver until it answers. False if it is not the one in use: the agent has to start again.
async fn confirm_driver(runtime: &dyn RuntimeService, configured: CgroupDriver, used: CgroupDriver) -> bool {
    let reported = loop {
        tokio::time::sleep(DRIVER_PAUSE).await;
        match runtime_cgroup_driver(runtime, PROBE_LIMIT).await {
            Ok(reported) => break reported.unwrap_or(configured),
            Err(error) => tracing::debug!(%error, "the cgroup driver of the runtime is still unknown"),
        }
    };
    if reported == used {
        return true;
    }
    let (runtimes, used) = (reported.as_str(), used.as_str());
    tracing::error!(
        driver = runtimes,
        configured = used,
        "the agent started with another cgroup driver than the runtime's and has to start again"
    );
    false
}

/// Records the driver of the last start, which the cgroups of the pods on this node have.
struct DriverFile(PathBuf);

impl DriverFile {
    fn below(root: &Path) -> Self {
        Self(root.join("cgroup-driver"))
    }

    /// `None`: there was no start, or only of a version that did not record it.
    fn read(&self) -> Option<CgroupDriver> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        [CgroupDriver::Cgroupfs, CgroupDriver::Systemd].into_iter().find(|driver| driver.as_str() == text.trim())
    }

    fn write(&self, driver: CgroupDriver) -> std::io::Result<()> {
        if self.read() == Some(driver) {
            return Ok(());
        }
        let temporary = self.0.with_extension("new");
        std::fs::write(&temporary, format!("{}\n", driver.as_str()))?;
        std::fs::rename(temporary, &self.0)
    }
}

/// Kubernetes: how often the driver is requested, and the pause between two tries.
const DRIVER_TRIES: u32 = 3;
const DRIVER_PAUSE: Duration = Duration::from_secs(2);
const UNREACHABLE: &str = "cgroupDriver is systemd, but systemd cannot be reached. Run the agent on a host with systemd, or use \
    cgroupfs and configure the container runtime for it too (containerd: SystemdCgroup = false; CRI-O: cgroup_manager = \
    \"cgroupfs\")";
/// How long systemd may take to answer at the start.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use podwright_cri::RemoteRuntime;

    use super::*;
    use crate::run_flags::RunFlags;

    /// A runtime whose socket does not exist.
    fn unreachable_runtime() -> RemoteRuntime {
        RemoteRuntime::connect("unix:///nonexistent/podwright-test.sock").unwrap()
    }

    #[test]
    fn the_driver_of_the_last_start_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = DriverFile::below(dir.path());
        assert_eq!(file.read(), None);
        for driver in [CgroupDriver::Systemd, CgroupDriver::Cgroupfs] {
            file.write(driver).unwrap();
            assert_eq!(file.read(), Some(driver));
        }
        std::fs::write(&file.0, "other").unwrap();
        assert_eq!(file.read(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_runtime_does_not_change_the_cgroup_driver() {
        let runtime = unreachable_runtime();
        let (systemd, cgroupfs) = (CgroupDriver::Systemd, CgroupDriver::Cgroupfs);
        assert_eq!(choose(&runtime, cgroupfs, Some(systemd), true).await, (systemd, false));
        assert_eq!(choose(&runtime, cgroupfs, None, false).await, (cgroupfs, false), "no pod has a cgroup yet");
        let hour = Duration::from_secs(3600);
        let waiting = tokio::time::timeout(hour, choose(&runtime, cgroupfs, None, true)).await;
        assert!(waiting.is_err(), "pods may have cgroups of either driver: {waiting:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_start_on_a_node_with_pods_of_another_agent_waits_for_the_runtime() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("pods/6cf3f0b1-5b8c-4ff7-8ce9-0c4c0b0c7b1e")).unwrap();
        let file = root.path().join("config.yaml");
        // The host of the test may have swap.
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailSwapOn: false\n";
        std::fs::write(&file, text).unwrap();
        let mut config = AgentConfig::load(&RunFlags { config: Some(file), ..RunFlags::default() }).unwrap();
        config.dirs.root = root.path().to_owned();
        let hour = Duration::from_secs(3600);
        let opened = tokio::time::timeout(hour, OpenedCgroups::open(&config, &unreachable_runtime(), false)).await;
        assert!(opened.is_err(), "these pods may have cgroups of either driver");
        assert_eq!(DriverFile::below(root.path()).read(), None);
    }

    #[test]
    fn a_directory_of_pods_without_entries_is_none_of_a_pod() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_pod_dirs(root.path()));
        std::fs::create_dir(root.path().join("pods")).unwrap();
        assert!(!has_pod_dirs(root.path()));
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(has_pod_dirs(&root.path().join("file")), "unknown");
    }
}
