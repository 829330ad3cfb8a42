//! The runtime without an agent: only the CRI calls that a pod needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_agent::host::HostPaths;
use podwright_agent::pod_spec::{FieldRefError, VolumeSpecError};
use podwright_agent::translate::{
    ContainerRequest, HostView, NodeSettings, References, Situation, container_config, sandbox_config,
};
use podwright_core::model::{ImageFacts, Pod, Source};
use podwright_core::static_pod;
use podwright_cri::{RemoteRuntime, RuntimeService, v1};
use podwright_testbed::Scratch;
use podwright_testbed::image::PAUSE;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::pods;

/// Pods handled in parallel.
const AT_ONCE: usize = 4;
const LIMIT: Duration = Duration::from_secs(120);

/// A client of the runtime.
pub(crate) struct RuntimeCalls {
    tokio: Runtime,
    runtime: Arc<RemoteRuntime>,
    facts: NodeSettings,
    /// A file used as hosts file and termination log of every pod.
    file: PathBuf,
}

/// The configurations of a pod's calls, from the agent's own translation, so that the runtime has the same work.
struct PodConfigs {
    sandbox: v1::PodSandboxConfig,
    container: v1::ContainerConfig,
}

/// The number of objects in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeCounts {
    /// Running containers and ready sandboxes.
    pub(crate) alive: usize,
    /// All containers and sandboxes.
    pub(crate) there: usize,
}

impl RuntimeCalls {
    /// `endpoint` is in the form of `--container-runtime-endpoint`.
    pub(crate) fn new(scratch: &Scratch, endpoint: &str) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let runtime = tokio.block_on(async { RemoteRuntime::connect(endpoint) })?;
        let root_dir = scratch.dir("bare")?;
        let file = root_dir.join("file");
        fs::write(&file, "")?;
        let paths = HostPaths {
            root_dir,
            pod_logs_dir: scratch.pod_logs()?,
            container_logs_dir: scratch.log_links()?,
            cgroup_root: format!("{}/bare", scratch.cgroup_root()),
        };
        Ok(Self { tokio, runtime: Arc::new(runtime), facts: NodeSettings { paths, ..NodeSettings::default() }, file })
    }

    pub(crate) fn counts(&self) -> Result<RuntimeCounts> {
        self.tokio.block_on(async {
            let (sandboxes, containers) = tokio::try_join!(
                self.runtime.list_pod_sandbox(None, LIMIT),
                self.runtime.list_containers(None, LIMIT)
            )?;
            let ready = sandboxes.iter().filter(|s| s.state() == v1::PodSandboxState::SandboxReady).count();
            let running = containers.iter().filter(|c| c.state() == v1::ContainerState::ContainerRunning).count();
            Ok(RuntimeCounts { alive: ready + running, there: sandboxes.len() + containers.len() })
        })
    }

    /// Starts this many pods, then removes them: the time of both.
    pub(crate) fn up_and_down(&self, pods: usize, host_network: bool) -> Result<(Duration, Duration)> {
        let (up, (), down) = self.with_pods(pods, host_network, || Ok(()))?;
        Ok((up, down))
    }

    /// Starts this many pods, measures something, then removes them: the times of both, and the measurement.
    pub(crate) fn with_pods<T>(
        &self,
        pods: usize,
        host_network: bool,
        measure: impl FnOnce() -> Result<T>,
    ) -> Result<(Duration, T, Duration)> {
        let asked: Vec<PodConfigs> = (0..pods).map(|n| self.asked(n, host_network)).collect::<Result<_>>()?;
        self.tokio.block_on(async {
            let began = Instant::now();
            let made = self.each(asked.into_iter().map(|asked| up(self.runtime.clone(), asked))).await?;
            let up = began.elapsed();
            let measured = measure()?;
            let began = Instant::now();
            self.each(made.into_iter().map(|(sandbox, container)| down(self.runtime.clone(), sandbox, container)))
                .await?;
            Ok((up, measured, began.elapsed()))
        })
    }

    /// Removes what an agent left.
    pub(crate) fn clear(&self) -> Result<()> {
        self.tokio.block_on(async {
            for sandbox in self.runtime.list_pod_sandbox(None, LIMIT).await? {
                self.runtime.stop_pod_sandbox(&sandbox.id, LIMIT).await?;
                self.runtime.remove_pod_sandbox(&sandbox.id, LIMIT).await?;
            }
            Ok(())
        })
    }

    async fn each<T: Send + 'static>(
        &self,
        work: impl Iterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
    ) -> Result<Vec<T>> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let tasks: Vec<_> = work
            .map(|one| {
                let places = places.clone();
                tokio::spawn(async move {
                    let _place = places.acquire_owned().await?;
                    one.await
                })
            })
            .collect();
        let mut done = vec![];
        for task in tasks {
            done.push(task.await??);
        }
        Ok(done)
    }

    fn asked(&self, n: usize, host_network: bool) -> Result<PodConfigs> {
        let spec = pods::sleeper(host_network);
        let value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("bare{n}")}, "spec": spec});
        let now = jiff::Timestamp::now();
        let manifest = static_pod::from_value(value, Source::File, "bare", "node", now)?.pop().context("a pod")?;
        let (pod, situation) = (&*manifest.pod, Situation::default());
        let image = ImageFacts { id: PAUSE.into(), uid: Some(0), ..ImageFacts::default() };
        let ips = ["127.0.0.1".to_owned()];
        let references = References::default();
        let ask =
            ContainerRequest { name: "c", attempt: 0, image: &image, ips: &ips, target: None, references: &references };
        let files = Files(self.file.clone());
        let asked = PodConfigs {
            sandbox: sandbox_config(pod, 0, &self.facts, &situation)?,
            container: container_config(pod, &ask, &self.facts, &situation, &files)?,
        };
        fs::create_dir_all(Path::new(&asked.sandbox.log_directory).join("c"))?;
        Ok(asked)
    }
}

/// One file for everything that a container needs from the host.
struct Files(PathBuf);

impl HostView for Files {
    fn volume(&self, _: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
        Err(VolumeSpecError::NotFound(volume.into()))
    }

    fn sub_path(&self, _: &Pod, _: &str, _: usize, _: &str, _: &str) -> PathBuf {
        self.0.clone()
    }

    fn hosts_file(&self, _: &Pod) -> PathBuf {
        self.0.clone()
    }

    fn termination_log(&self, _: &Pod, _: &str, _: u32) -> PathBuf {
        self.0.clone()
    }

    fn field(&self, _: &Pod, path: &str, _: &[String]) -> Result<String, FieldRefError> {
        Err(FieldRefError::Unsupported(path.into()))
    }

    fn resource_field(&self, _: &Pod, _: &str, selector: &ResourceFieldSelector) -> Result<String, FieldRefError> {
        Err(FieldRefError::UnsupportedResource(selector.resource.clone()))
    }
}

async fn up(runtime: Arc<RemoteRuntime>, asked: PodConfigs) -> Result<(String, String)> {
    let request = v1::RunPodSandboxRequest { config: Some(asked.sandbox.clone()), runtime_handler: String::new() };
    let id = runtime.run_pod_sandbox(request, LIMIT).await?;
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: id.clone(),
        config: Some(asked.container),
        sandbox_config: Some(asked.sandbox),
    };
    let container = runtime.create_container(request, LIMIT).await?;
    runtime.start_container(&container, LIMIT).await.context("start")?;
    Ok((id, container))
}

async fn down(runtime: Arc<RemoteRuntime>, sandbox: String, container: String) -> Result<()> {
    runtime.stop_container(&container, 2, LIMIT).await?;
    runtime.stop_pod_sandbox(&sandbox, LIMIT).await?;
    runtime.remove_container(&container, LIMIT).await?;
    runtime.remove_pod_sandbox(&sandbox, LIMIT).await?;
    Ok(())
}
