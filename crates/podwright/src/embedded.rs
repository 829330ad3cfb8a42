//! The embedded container engine: for the agent in its own process, or alone behind a CRI socket.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use podwright_cri::serve::CriSocket;
use podwright_engine::images::EngineImages;
use podwright_engine::store::EngineStoreError;
use podwright_engine::{Engine, EngineError, EngineSettings, NetworkSettings, OverlayProbeError, default_pod_range};
use podwright_image::{ImageStoreError, Puller, RegistryOptions};
use podwright_linux::rlimit;
use podwright_tasks::{Pool, Tasks};
use tokio_util::sync::CancellationToken;

use crate::cli::EngineFlags;
use crate::config::{AgentConfig, CniDirs, EngineConfig};

/// The engine and its images.
pub(crate) struct EmbeddedRuntime {
    pub(crate) engine: Arc<Engine>,
    pub(crate) images: Arc<EngineImages>,
}

/// Opens the engine, which takes up the pods of an earlier one. `registries` has the `hosts.toml` files.
async fn open(mut settings: EngineSettings, registries: &Path, tasks: &Tasks) -> anyhow::Result<EmbeddedRuntime> {
    let root = settings.root_dir.clone();
    // The engine holds some descriptors of every pod; containers get the limit that this process was started with.
    settings.open_files = rlimit::raise_open_files().ok().map(|before| before.soft);
    let engine = Engine::open(settings, tasks).await.map_err(with_advice)?;
    let (store, pool) = (Arc::clone(engine.images()), Pool::default());
    let options = RegistryOptions { config_dir: Some(registries.to_owned()), ..RegistryOptions::default() };
    let puller = Puller::new(Arc::clone(&store), options, pool.clone()).context("prepare pulls of images")?;
    let containers = engine.containers_on_disk();
    let roots = Arc::clone(&containers);
    let puller = puller.collecting_garbage(move || roots.gc_roots());
    let images = EngineImages::new(store, Arc::new(puller), pool, containers, root.join("engine"));
    Ok(EmbeddedRuntime { engine, images: Arc::new(images) })
}

/// The error of an engine that cannot start, with what to do about it.
fn with_advice(error: EngineError) -> anyhow::Error {
    let advice = match &error {
        EngineError::Store(EngineStoreError::Locked { .. }) | EngineError::Images(ImageStoreError::Locked { .. }) => {
            "end that process (an agent, `podwright engine` or `podwright image`), or use another --root-dir".to_owned()
        }
        EngineError::Privileges(_) => {
            format!("run it as root, without CapabilityBoundingSet= or User= in its unit, or {OTHER_RUNTIME}")
        }
        EngineError::Kernel(_) => {
            format!("the engine needs Linux 5.14 or newer: update the kernel, or {OTHER_RUNTIME}")
        }
        EngineError::Initramfs => format!("boot with a root file system of its own (switch_root), or {OTHER_RUNTIME}"),
        EngineError::Overlay(OverlayProbeError::Missing(_)) => {
            format!("load it (`modprobe overlay`) or use a kernel with CONFIG_OVERLAY_FS, or {OTHER_RUNTIME}")
        }
        EngineError::Overlay(OverlayProbeError::Refused { .. }) => {
            format!("use a --root-dir on a local disk, such as ext4, xfs or btrfs, or {OTHER_RUNTIME}")
        }
        EngineError::Cgroup(_) => format!("mount the cgroup hierarchies at /sys/fs/cgroup, or {OTHER_RUNTIME}"),
        _ => return anyhow::Error::from(error).context(OPENING),
    };
    // The chain is printed from the outside to the cause, and the advice belongs behind the cause.
    anyhow::anyhow!("{OPENING}: {:#}. To fix it, {advice}", anyhow::Error::from(error))
}

/// Opens the engine of an agent, and serves it on a CRI socket, too: crictl shows and debugs containers through it.
pub(crate) async fn open_for_agent(config: &AgentConfig, tasks: &Tasks) -> anyhow::Result<EmbeddedRuntime> {
    let engine = &config.engine;
    // The run directory of the engine is emptied after a reboot; the agent has files of its own in its run directory.
    let mut settings = EngineSettings::new(&config.dirs.root, config.dirs.run.join("engine"));
    settings.shim_cgroup.clone_from(&engine.shim_cgroup);
    settings.network = network_of_agent(engine);
    settings.runtimes.clone_from(&engine.runtimes);
    let opened = open(settings, &engine.registries, tasks).await?;
    let socket = CriSocket::bind(&config.dirs.engine_socket())?;
    let (runtime, images) = (opened.engine.runtime(), Arc::clone(&opened.images));
    tasks.service("engine-socket", async move {
        if let Err(error) = socket.serve(runtime, images, std::future::pending()).await {
            tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "CRI socket of the engine failed");
        }
    });
    Ok(opened)
}

/// `podwright engine`: serves the engine to crictl, critest or another kubelet until a signal comes. Pods keep running.
pub(crate) async fn serve(flags: &EngineFlags, stop: CancellationToken) -> anyhow::Result<()> {
    let (tasks, mut supervisor) = Tasks::supervised(stop.clone());
    let mut settings = EngineSettings::new(&flags.root_dir, &flags.run_dir);
    settings.shim_cgroup.clone_from(&flags.shim_cgroup);
    settings.pod_cgroup.clone_from(&flags.pod_cgroup);
    settings.network = network(flags);
    settings.runtimes = flags.runtime_handler.iter().map(|flag| (flag.name.clone(), flag.runtime.clone())).collect();
    let EmbeddedRuntime { engine, images } = open(settings, &flags.registry_config_path, &tasks).await?;
    for archive in flags.load.clone() {
        load(&engine, archive).await?;
    }
    let path = flags.listen.strip_prefix("unix://").unwrap_or(&flags.listen);
    let socket = CriSocket::bind(Path::new(path))?;
    let stopping = stop.clone();
    let served = socket.serve(engine.runtime(), images, async move { stopping.cancelled().await });
    let result = tokio::select! {
        served = served => served.map_err(Into::into),
        failure = supervisor.failed() => Err(failure.into()),
    };
    stop.cancel();
    engine.close();
    result
}

fn network_of_agent(engine: &EngineConfig) -> NetworkSettings {
    match engine.cni.clone() {
        Some(CniDirs { conf_dir, bin_dirs }) => NetworkSettings::Cni { conf_dir, bin_dirs },
        None => NetworkSettings::Bridge {
            bridge: engine.bridge.clone(),
            table: engine.table.clone(),
            ranges: engine.pod_ranges.clone(),
            replaceable: engine.pod_ranges_of_node,
        },
    }
}

fn network(flags: &EngineFlags) -> NetworkSettings {
    match &flags.cni_conf_dir {
        Some(conf_dir) => NetworkSettings::Cni { conf_dir: conf_dir.clone(), bin_dirs: flags.cni_bin_dir.clone() },
        None => NetworkSettings::Bridge {
            bridge: flags.bridge.clone(),
            table: flags.table.clone(),
            ranges: match (&flags.pod_cidr[..], flags.wait_for_pod_cidr) {
                ([], false) => vec![default_pod_range()],
                (given, _) => given.to_vec(),
            },
            replaceable: flags.pod_cidr.is_empty(),
        },
    }
}

/// Loads a docker or OCI archive.
async fn load(engine: &Arc<Engine>, archive: PathBuf) -> anyhow::Result<()> {
    let store = Arc::clone(engine.images());
    let load = move || -> anyhow::Result<()> {
        let file = File::open(&archive).with_context(|| format!("open {}", archive.display()))?;
        store.load(file, &AtomicBool::new(false)).with_context(|| format!("load {}", archive.display()))?;
        Ok(())
    };
    Pool::default().run_to_end("load", load).await?
}

/// The result of a command as its exit code.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "command failed");
            eprintln!("podwright: {error:#}");
            ExitCode::FAILURE
        }
    }
}

const OPENING: &str = "open the embedded engine";
const OTHER_RUNTIME: &str =
    "use another runtime with --container-runtime-endpoint unix:///run/containerd/containerd.sock";

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    #[test]
    fn every_reason_not_to_start_names_the_cause_and_what_to_do() {
        let root = PathBuf::from("/var/lib/podwright/engine");
        let message = String::new();
        for (error, cause, advice) in [
            (
                EngineStoreError::Locked { path: root.join("lock"), pid: "77".into() }.into(),
                "/var/lib/podwright/engine/lock is in use by process 77",
                "--root-dir",
            ),
            (EngineError::Kernel(vec!["openat2", "close_range"]), "lacks openat2, close_range", "Linux 5.14"),
            (EngineError::Privileges(vec!["CAP_SYS_ADMIN"]), "capabilities CAP_SYS_ADMIN", "as root"),
            (EngineError::Initramfs, "is the initramfs", "switch_root"),
            (
                OverlayProbeError::Missing(Error::from_raw_os_error(19)).into(),
                "no overlay file system: No such device",
                "modprobe overlay",
            ),
            (
                OverlayProbeError::Refused { path: root, message, source: Error::from_raw_os_error(22) }.into(),
                "mounted on /var/lib/podwright/engine: Invalid argument",
                "ext4",
            ),
        ] {
            let is_lock = matches!(error, EngineError::Store(_));
            let text = format!("{:#}", with_advice(error));
            assert!(text.starts_with("open the embedded engine: ") && text.contains(cause), "{text}");
            let (_, fix) = text.split_once(". To fix it, ").unwrap_or_else(|| panic!("{text}"));
            // Another runtime does not help against a second agent.
            assert!(fix.contains(advice) && (is_lock || fix.ends_with(OTHER_RUNTIME)), "{text}");
        }
    }
}
