//! The runtime without an agent: the calls a pod needs, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwright_cri::{RemoteRuntime, RuntimeService, v1};
use podwright_testbed::image::PAUSE;
use podwright_testbed::{Containerd, Scratch};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

/// Pods worked on at the same time.
const AT_ONCE: usize = 4;
const LIMIT: Duration = Duration::from_secs(120);

/// A client of the runtime.
pub(crate) struct Bare {
    tokio: Runtime,
    runtime: Arc<RemoteRuntime>,
    cgroup: String,
    logs: String,
}

/// What the runtime has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    /// Running containers and ready sandboxes.
    pub(crate) alive: usize,
    /// All of them.
    pub(crate) there: usize,
}

impl Bare {
    pub(crate) fn new(scratch: &Scratch, containerd: &Containerd) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let runtime = tokio.block_on(async { RemoteRuntime::connect(&containerd.endpoint()) })?;
        let logs = scratch.pod_logs()?.display().to_string();
        Ok(Self { tokio, runtime: Arc::new(runtime), cgroup: format!("{}/bare", scratch.cgroup_root()), logs })
    }

    pub(crate) fn census(&self) -> Result<Census> {
        self.tokio.block_on(async {
            let (sandboxes, containers) = tokio::try_join!(
                self.runtime.list_pod_sandbox(None, LIMIT),
                self.runtime.list_containers(None, LIMIT)
            )?;
            let ready = sandboxes.iter().filter(|s| s.state() == v1::PodSandboxState::SandboxReady).count();
            let running = containers.iter().filter(|c| c.state() == v1::ContainerState::ContainerRunning).count();
            Ok(Census { alive: ready + running, there: sandboxes.len() + containers.len() })
        })
    }

    /// Bring so many pods up, then down: how long each took.
    pub(crate) fn up_and_down(&self, pods: usize, host_network: bool) -> Result<(Duration, Duration)> {
        self.tokio.block_on(async {
            let began = Instant::now();
            let made = self.each((0..pods).map(|n| up(self.runtime.clone(), self.config(n, host_network)))).await?;
            let up = began.elapsed();
            let began = Instant::now();
            self.each(made.into_iter().map(|(sandbox, container)| down(self.runtime.clone(), sandbox, container)))
                .await?;
            Ok((up, began.elapsed()))
        })
    }

    /// Take away what an agent left.
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

    fn config(&self, n: usize, host_network: bool) -> v1::PodSandboxConfig {
        let (name, uid) = (format!("bare{n}"), format!("bare-uid-{n}"));
        let network = if host_network { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod }.into();
        let namespaces =
            v1::NamespaceOption { network, pid: v1::NamespaceMode::Container.into(), ..Default::default() };
        let security = v1::LinuxSandboxSecurityContext { namespace_options: Some(namespaces), ..Default::default() };
        v1::PodSandboxConfig {
            log_directory: format!("{}/default_{name}_{uid}", self.logs),
            hostname: if host_network { String::new() } else { name.clone() },
            metadata: Some(v1::PodSandboxMetadata { name, uid, namespace: "default".into(), attempt: 0 }),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup.clone(),
                security_context: Some(security),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

async fn up(runtime: Arc<RemoteRuntime>, sandbox: v1::PodSandboxConfig) -> Result<(String, String)> {
    std::fs::create_dir_all(&sandbox.log_directory)?;
    let request = v1::RunPodSandboxRequest { config: Some(sandbox.clone()), runtime_handler: String::new() };
    let id = runtime.run_pod_sandbox(request, LIMIT).await?;
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
        linux: sandbox.linux.as_ref().map(|linux| v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: linux.security_context.as_ref().and_then(|c| c.namespace_options.clone()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        image: Some(v1::ImageSpec { image: PAUSE.into(), ..Default::default() }),
        log_path: "c.log".into(),
        ..Default::default()
    };
    let request =
        v1::CreateContainerRequest { pod_sandbox_id: id.clone(), config: Some(config), sandbox_config: Some(sandbox) };
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
