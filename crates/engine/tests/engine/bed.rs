//! An engine with its own directories and names, pods for it, and the check that nothing is left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use podwright_cri::{CriError, RuntimeService, v1};
use podwright_engine::{Engine, EngineSettings, NetworkSettings, OciRuntime};
use podwright_linux::cgroup::{CgroupPath, CgroupTree};
use podwright_linux::mountinfo;
use podwright_tasks::{Supervisor, Tasks};
use podwright_testbed::image;
use tokio_util::sync::CancellationToken;

/// The soft limit of open files of containers; this process has a higher one.
pub(crate) const OPEN_FILES: u64 = 777;
/// Long enough for a busy host.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) dir: PathBuf,
    settings: EngineSettings,
    running: Option<RunningEngine>,
    pub(crate) cgroup_parent: String,
}

struct RunningEngine {
    engine: Arc<Engine>,
    runtime: Arc<dyn RuntimeService>,
    stop: CancellationToken,
    supervisor: Option<Supervisor>,
}

/// Without this the driver would keep the lock after a case.
impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a case on a new engine, and checks afterwards that nothing is left of its pods.
pub(crate) fn run(case: &crate::Case) {
    let dir = tempfile::Builder::new().prefix("pw-engine-").tempdir().unwrap();
    let images = dir.path().join("root/engine/images");
    take_images(&images);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("pwtest-{}-{number}", std::process::id());
    runtime.block_on(async {
        let mut settings = EngineSettings::new(dir.path().join("root"), dir.path().join("run"));
        settings.shim_cgroup = format!("/{name}-shims");
        settings.open_files = Some(OPEN_FILES);
        let ranges = vec!["10.99.0.0/24".parse().unwrap()];
        let runc = OciRuntime { path: podwright_testbed::Cache::find().debian("runc").unwrap(), root: None };
        settings.runtimes.insert("runc".into(), runc);
        let (bridge, table) = (format!("pwt{number}"), name.clone());
        settings.network = NetworkSettings::Bridge { bridge, table, ranges, replaceable: true };
        let bed = Bed {
            dir: dir.path().to_owned(),
            settings: settings.clone(),
            running: None,
            cgroup_parent: format!("/{name}"),
        };
        let bed = Bed { running: Some(open(&settings).await), ..bed };
        bed.load_images().await;
        let cleaner = Bed {
            running: None,
            dir: bed.dir.clone(),
            settings: settings.clone(),
            cgroup_parent: bed.cgroup_parent.clone(),
        };
        let result = std::panic::AssertUnwindSafe(case(bed));
        let result = futures::FutureExt::catch_unwind(result).await;
        let left = cleaner.clean_up().await;
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        assert_eq!(left, Vec::<String>::new(), "left behind");
    });
    drop(runtime);
    let _ = fs::rename(&images, shared_images());
}

/// The images of a case that has passed: unpacking them again would take most of the time of the next one.
fn shared_images() -> PathBuf {
    std::env::temp_dir().join(format!("pw-engine-images-{}", std::process::id()))
}

/// Gives the images of the last case to the next one, if there are any.
fn take_images(to: &Path) {
    fs::create_dir_all(to.parent().expect("below the root")).unwrap();
    let _ = fs::rename(shared_images(), to);
}

/// After the last case.
pub(crate) fn remove_images() {
    let _ = fs::remove_dir_all(shared_images());
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

async fn open(settings: &EngineSettings) -> RunningEngine {
    let until = Instant::now() + LIMIT;
    loop {
        let stop = CancellationToken::new();
        let (tasks, supervisor) = Tasks::supervised(stop.clone());
        match Engine::open(settings.clone(), &tasks).await {
            Ok(engine) => {
                let runtime = engine.runtime();
                return RunningEngine { engine, runtime, stop, supervisor: Some(supervisor) };
            }
            // The last one is still ending.
            Err(error) if error.to_string().contains("in use") && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

impl Bed {
    /// The CRI of the engine.
    pub(crate) fn engine(&self) -> &Arc<dyn RuntimeService> {
        &self.running.as_ref().expect("the engine runs").runtime
    }

    pub(crate) fn opened(&self) -> &Arc<Engine> {
        &self.running.as_ref().expect("the engine runs").engine
    }

    async fn load_images(&self) {
        let images = self.opened().images().clone();
        if images.images().len() == image::ALL.len() {
            return;
        }
        let load = move || {
            let archive = File::open(image::archive().unwrap()).unwrap();
            images.load(archive, &AtomicBool::new(false)).unwrap();
        };
        tokio::task::spawn_blocking(load).await.unwrap();
    }

    /// Ends the engine as a crash of the agent does: the shims hear nothing of it.
    pub(crate) async fn end_engine(&mut self) {
        let mut running = self.running.take().expect("the engine runs");
        running.stop.cancel();
        let supervisor = running.supervisor.take().expect("not ended before");
        assert!(supervisor.drain(LIMIT).await);
        let engine = Arc::clone(&running.engine);
        drop(running);
        tokio::task::spawn_blocking(move || engine.close()).await.unwrap();
    }

    pub(crate) async fn start_engine(&mut self) {
        self.running = Some(open(&self.settings).await);
    }

    /// Why an engine with these directories does not start.
    pub(crate) async fn refusal_of(&self, root_dir: PathBuf, run_dir: PathBuf) -> String {
        let (tasks, _supervisor) = Tasks::supervised(CancellationToken::new());
        let settings = EngineSettings { root_dir, run_dir, ..self.settings.clone() };
        match Engine::open(settings, &tasks).await {
            Ok(_) => panic!("it starts"),
            Err(error) => error.to_string(),
        }
    }

    pub(crate) async fn restart_engine(&mut self) {
        self.end_engine().await;
        self.start_engine().await;
    }

    /// Other ranges of pod addresses, as another configuration has them. The next engine has them.
    pub(crate) fn configure_ranges(&mut self, given: &[&str], is_replaceable: bool) {
        if let NetworkSettings::Bridge { ranges, replaceable, .. } = &mut self.settings.network {
            *ranges = given.iter().map(|range| range.parse().unwrap()).collect();
            *replaceable = is_replaceable;
        }
    }

    /// Another runtime for a handler. The next engine has it.
    pub(crate) fn configure_runtime(&mut self, handler: &str, runtime: OciRuntime) {
        self.settings.runtimes.insert(handler.to_owned(), runtime);
    }

    /// Root and run directory say that they are of another boot, and nothing of that boot runs.
    pub(crate) fn pretend_reboot(&self) {
        fs::write(self.settings.run_dir.join("boot-id"), "another boot").unwrap();
        fs::write(self.settings.root_dir.join("engine/boot"), "another boot\n/run").unwrap();
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.settings.run_dir.clone()
    }

    pub(crate) fn sandbox_config(&self, name: &str, host_network: bool) -> v1::PodSandboxConfig {
        let logs = self.dir.join("logs").join(name);
        fs::create_dir_all(&logs).unwrap();
        let mode = |node: bool| if node { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod }.into();
        let options = v1::NamespaceOption {
            network: mode(host_network),
            ipc: mode(false),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: if host_network { String::new() } else { name.into() },
            log_directory: logs.to_str().unwrap().into(),
            labels: [("app".to_owned(), name.to_owned())].into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", self.cgroup_parent),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(crate) async fn run_sandbox(&self, config: v1::PodSandboxConfig) -> String {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        self.engine().run_pod_sandbox(request, LIMIT).await.unwrap()
    }

    /// A pod on the host's network.
    pub(crate) async fn pod(&self, name: &str) -> String {
        self.run_sandbox(self.sandbox_config(name, true)).await
    }

    pub(crate) fn container_config(&self, name: &str, script: &str) -> v1::ContainerConfig {
        let options = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image::BUSYBOX.into(), ..Default::default() }),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            log_path: format!("{name}.log"),
            labels: [("container".to_owned(), name.to_owned())].into(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources::default()),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(options),
                    ..Default::default()
                }),
            }),
            ..Default::default()
        }
    }

    pub(crate) async fn create(&self, sandbox: &str, config: v1::ContainerConfig) -> Result<String, CriError> {
        let request =
            v1::CreateContainerRequest { pod_sandbox_id: sandbox.into(), config: Some(config), sandbox_config: None };
        self.engine().create_container(request, LIMIT).await
    }

    /// Creates and starts a container that runs a script.
    pub(crate) async fn start(&self, sandbox: &str, name: &str, script: &str) -> String {
        self.start_config(sandbox, self.container_config(name, script)).await
    }

    pub(crate) async fn start_config(&self, sandbox: &str, config: v1::ContainerConfig) -> String {
        let id = self.create(sandbox, config).await.unwrap();
        self.engine().start_container(&id, LIMIT).await.unwrap();
        id
    }

    pub(crate) async fn status(&self, container: &str) -> v1::ContainerStatus {
        self.engine().container_status(container, false, LIMIT).await.unwrap().status.unwrap()
    }

    /// The status of a container that nothing stops.
    pub(crate) async fn exit(&self, container: &str) -> v1::ContainerStatus {
        let until = Instant::now() + LIMIT;
        loop {
            let status = self.status(container).await;
            if status.state() == v1::ContainerState::ContainerExited {
                return status;
            }
            assert!(Instant::now() < until, "{status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn pid(&self, container: &str) -> i32 {
        let response = self.engine().container_status(container, true, LIMIT).await.unwrap();
        let info: serde_json::Value = serde_json::from_str(&response.info["info"]).unwrap();
        i32::try_from(info["pid"].as_i64().unwrap()).unwrap()
    }

    /// The texts of a container's log.
    pub(crate) async fn logged(&self, container: &str) -> Vec<String> {
        let path = self.status(container).await.log_path;
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
    }

    pub(crate) async fn wait_for_log(&self, container: &str, text: &str) {
        let until = Instant::now() + LIMIT;
        while !self.logged(container).await.iter().any(|line| line == text) {
            assert!(Instant::now() < until, "{:?}", self.logged(container).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn exec(&self, container: &str, script: &str) -> v1::ExecSyncResponse {
        let cmd = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let request = v1::ExecSyncRequest { container_id: container.into(), cmd, timeout: 0 };
        self.engine().exec_sync(request, LIMIT).await.unwrap()
    }

    /// Removes every pod through the CRI, and lists what is left nevertheless.
    async fn clean_up(mut self) -> Vec<String> {
        self.start_engine().await;
        for sandbox in self.engine().list_pod_sandbox(None, LIMIT).await.unwrap() {
            self.engine().remove_pod_sandbox(&sandbox.id, LIMIT).await.unwrap();
        }
        self.end_engine().await;
        let mut left = vec![];
        for dir in ["root/engine/sandboxes", "root/engine/containers", "run/pods", "run/netns"] {
            let entries = fs::read_dir(self.dir.join(dir)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        let mounts = mountinfo::read().unwrap();
        left.extend(mounts.iter().filter(|m| m.point.starts_with(&self.dir)).map(|m| m.point.display().to_string()));
        let tree = CgroupTree::detect().unwrap();
        let parent = CgroupPath::parse(&self.cgroup_parent).unwrap();
        for pod in tree.children(&parent).unwrap() {
            let pod = parent.join(&pod).unwrap();
            left.extend(tree.children(&pod).unwrap().into_iter().map(|name| format!("cgroup {pod}/{name}")));
        }
        let shims = CgroupPath::parse(&self.settings.shim_cgroup).unwrap();
        for path in [parent, shims] {
            tree.kill_all(&path, LIMIT).unwrap();
            tree.remove(&path, LIMIT).unwrap();
        }
        left
    }
}
