//! The Go kubelet, alone or in a cluster: what ours is compared with.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::find_pod;
use crate::agent_config::{agent_config, write_config};
use crate::cache::Cache;
use crate::containerd::Containerd;
use crate::http::{Response, free_port, get};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// A running Go kubelet on the scratch's manifests.
///
/// Not at the same time as another agent on the same containerd: each would kill the other's pods.
#[derive(Debug)]
pub struct GoKubelet {
    port: u16,
    process: Process,
    scratch: Scratch,
}

/// Kernel settings it changes at its start, unasked.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Where it keeps device plugins, wherever its root directory is.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// The file of an instance that says what the machine was like.
const NOTE: &str = "machine-before-kubelet";

impl GoKubelet {
    /// Start it without an API server and wait until it answers. `changes` are laid over the testbed's KubeletConfiguration.
    pub fn start_standalone(
        scratch: &Scratch,
        containerd: &Containerd,
        hostname: &str,
        changes: &Value,
    ) -> Result<Self> {
        Self::start(scratch, containerd, hostname, None, changes)
    }

    /// Start it as a node of a cluster and wait until it answers; see [`crate::ControlPlane::node_kubeconfig`].
    pub fn start_joined(
        scratch: &Scratch,
        containerd: &Containerd,
        hostname: &str,
        kubeconfig: &Path,
        changes: &Value,
    ) -> Result<Self> {
        Self::start(scratch, containerd, hostname, Some(kubeconfig), changes)
    }

    fn start(
        scratch: &Scratch,
        containerd: &Containerd,
        hostname: &str,
        kubeconfig: Option<&Path>,
        changes: &Value,
    ) -> Result<Self> {
        let port = free_port()?;
        let mut config = agent_config(scratch, &containerd.endpoint(), changes)?;
        let own = json!({
            "address": "127.0.0.1", "port": free_port()?, "readOnlyPort": port, "healthzPort": 0, "enableServer": true,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "enableControllerAttachDetach": false,
            // Its defaults write into the machine: chains for kube-proxy, a directory in /usr/libexec.
            "makeIPTablesUtilChains": false, "volumePluginDir": scratch.dir("kubelet/volume-plugins")?,
        });
        for (key, value) in own.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let file = write_config(scratch, "kubelet.yaml", &config)?;
        let mut command = Command::new(Cache::find().peer("kubelet")?);
        command.arg("--config").arg(file).arg("--root-dir").arg(scratch.dir("kubelet")?);
        command.args(["--hostname-override", hostname, "--v", "2"]);
        command.arg("--cert-dir").arg(scratch.dir("kubelet-certs")?);
        if let Some(kubeconfig) = kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.env("PATH", Cache::find().search_path(true));
        remember_machine(&scratch.path())?;
        let process = Process::start(scratch, "kubelet", &mut command)?;
        let kubelet = Self { port, process, scratch: scratch.clone() };
        wait_until(Duration::from_secs(60), "the kubelet to answer", || kubelet.pods());
        Ok(kubelet)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// `GET path` on its read-only port.
    pub fn get(&self, path: &str) -> Result<Response> {
        get(&format!("127.0.0.1:{}", self.port), path)
    }

    /// The v1 PodList of `/pods`.
    pub fn pods(&self) -> Result<Value> {
        let response = self.get("/pods")?;
        ensure!(response.status == 200, "/pods answers {}", response.status);
        serde_json::from_str(&response.body).context("/pods is no JSON")
    }

    /// One pod of `/pods`, by its name.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        Ok(find_pod(&self.pods()?, name))
    }

    /// SIGTERM and wait; containers go on.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(Duration::from_secs(20)).map(|_| ())
    }

    /// SIGKILL; containers go on.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }
}

impl Drop for GoKubelet {
    fn drop(&mut self) {
        // Dead first, or it might write again.
        let _ = self.process.kill9();
        restore_machine(&self.scratch.path());
    }
}

/// Note what the machine is like before the first kubelet of an instance.
fn remember_machine(instance: &Path) -> Result<()> {
    let note = instance.join(NOTE);
    if note.exists() {
        return Ok(());
    }
    let sysctl = |name: &str| Some((name.to_owned(), fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?));
    let sysctls: BTreeMap<String, String> = SYSCTLS.into_iter().filter_map(sysctl).collect();
    let before = json!({"sysctls": sysctls, "had_device_plugins": Path::new(DEVICE_PLUGINS).exists()});
    Ok(fs::write(note, before.to_string())?)
}

/// Make the machine what it was; nothing if no kubelet was started in this instance.
pub(crate) fn restore_machine(instance: &Path) {
    let Ok(note) = fs::read_to_string(instance.join(NOTE)) else { return };
    let before: Value = serde_json::from_str(&note).unwrap_or_default();
    for (name, value) in before["sysctls"].as_object().into_iter().flatten() {
        let (path, value) = (Path::new("/proc/sys").join(name), value.as_str().unwrap_or_default());
        if fs::read_to_string(&path).is_ok_and(|now| now != value) {
            let _ = fs::write(path, value);
        }
    }
    if before["had_device_plugins"] == false {
        let _ = fs::remove_dir_all(DEVICE_PLUGINS);
    }
    // Only when empty, that is, when nobody else uses them.
    for dir in ["/var/lib/kubelet", "/var/log/containers"] {
        let _ = fs::remove_dir(dir);
    }
}
