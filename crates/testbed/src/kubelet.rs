//! The Go kubelet, standalone or in a cluster: the reference for comparisons.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::find_pod;
use crate::agent_config::{agent_config, merge, write_config};
use crate::cache::Cache;
use crate::host_settings::{restore_host, save_host_settings};
use crate::http::{HttpResponse, free_port, get};
use crate::node_runtime::NodeRuntime;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// A running Go kubelet on the scratch's manifests.
///
/// Not at the same time as another agent on the same runtime: each would kill the other's pods.
#[derive(Debug)]
pub struct GoKubelet {
    port: u16,
    https: u16,
    process: Process,
    scratch: Scratch,
}

impl GoKubelet {
    /// Starts it without an API server and waits until it responds. `changes` are merged into the testbed's KubeletConfiguration.
    pub fn start_standalone(
        scratch: &Scratch,
        runtime: &impl NodeRuntime,
        hostname: &str,
        changes: &Value,
    ) -> Result<Self> {
        Self::start(scratch, runtime, hostname, None, &scratch.dir("kubelet")?, changes)
    }

    /// Starts it as a node of a cluster and waits until it responds; see [`crate::ControlPlane::node_kubeconfig`].
    pub fn start_joined(
        scratch: &Scratch,
        runtime: &impl NodeRuntime,
        hostname: &str,
        kubeconfig: &Path,
        changes: &Value,
    ) -> Result<Self> {
        Self::start(scratch, runtime, hostname, Some(kubeconfig), &scratch.dir("kubelet")?, changes)
    }

    /// As [`Self::start_joined`], on the root directory of our own agent: one takes the node over from the other.
    pub fn start_on_agent_root(
        scratch: &Scratch,
        runtime: &impl NodeRuntime,
        hostname: &str,
        kubeconfig: &Path,
        changes: &Value,
    ) -> Result<Self> {
        Self::start(scratch, runtime, hostname, Some(kubeconfig), &scratch.root_dir()?, changes)
    }

    fn start(
        scratch: &Scratch,
        runtime: &impl NodeRuntime,
        hostname: &str,
        kubeconfig: Option<&Path>,
        root_dir: &Path,
        changes: &Value,
    ) -> Result<Self> {
        let (port, https) = (free_port()?, free_port()?);
        let endpoint = runtime.endpoint().context("the Go kubelet has no runtime of its own")?;
        let own = json!({
            "address": "127.0.0.1", "port": https, "readOnlyPort": port, "healthzPort": 0, "enableServer": true,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "enableControllerAttachDetach": false,
            // Its defaults change the host: chains for kube-proxy, a directory in /usr/libexec.
            "makeIPTablesUtilChains": false, "volumePluginDir": scratch.dir("kubelet/volume-plugins")?,
        });
        let mut config = agent_config(scratch, Some(&endpoint), &own)?;
        merge(&mut config, changes);
        let file = write_config(scratch, "kubelet.yaml", &config)?;
        let mut command = Command::new(Cache::find().peer("kubelet")?);
        command.arg("--config").arg(file).arg("--root-dir").arg(root_dir);
        command.args(["--hostname-override", hostname, "--v", "2"]);
        command.arg("--cert-dir").arg(scratch.dir("kubelet-certs")?);
        if let Some(kubeconfig) = kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.env("PATH", Cache::find().search_path(true));
        save_host_settings(&scratch.path())?;
        let process = Process::start(scratch, "kubelet", &mut command)?;
        let kubelet = Self { port, https, process, scratch: scratch.clone() };
        wait_until(Duration::from_secs(60), "the kubelet to respond", || kubelet.pods());
        Ok(kubelet)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The port of its API on 127.0.0.1, with TLS.
    pub fn https_port(&self) -> u16 {
        self.https
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// `GET path` on its read-only port.
    pub fn get(&self, path: &str) -> Result<HttpResponse> {
        get(&format!("127.0.0.1:{}", self.port), path)
    }

    /// The v1 PodList of `/pods`.
    pub fn pods(&self) -> Result<Value> {
        let response = self.get("/pods")?;
        ensure!(response.status == 200, "/pods: status {}", response.status);
        serde_json::from_str(&response.body).context("/pods is not JSON")
    }

    /// One pod of `/pods`, by its name.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        Ok(find_pod(&self.pods()?, name))
    }

    /// SIGTERM and wait; containers keep running.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(Duration::from_secs(20)).map(|_| ())
    }

    /// SIGKILL; containers keep running.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }
}

impl Drop for GoKubelet {
    fn drop(&mut self) {
        // Killed first, or it might change settings again.
        let _ = self.process.kill9();
        restore_host(&self.scratch.path());
    }
}
