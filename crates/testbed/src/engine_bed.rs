//! The container engine of the agent: the names it uses in this instance, and what it has on the host.
//!
//! ```text
//! root/engine/           records, images, writable layers, leases of addresses
//! run/engine/            files of running pods, pins of network namespaces
//! run/engine.sock        its CRI socket, while the agent runs
//! registries/            hosts.toml files
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::agent::Agent;
use crate::cni_config::CniConfig;
use crate::command::run;
use crate::containerd_config::hosts_toml;
use crate::node_runtime::NodeRuntime;
use crate::registry::Registry;
use crate::scratch::Scratch;
use crate::{host_state, image, network_state};

/// The cgroup of the shims, below that of the instance.
pub(crate) const SHIM_CGROUP: &str = "shims";

/// The embedded engine of an agent of this scratch.
#[derive(Debug)]
pub struct EngineBed {
    scratch: Scratch,
    /// `None`: the network of the engine itself.
    cni: Option<CniConfig>,
}

impl EngineBed {
    /// Loads the test images into its store; it starts with the agent.
    pub fn prepare(scratch: &Scratch) -> Result<Self> {
        let mut load = Command::new(Agent::program()?);
        load.args(["image", "--root-dir"]).arg(scratch.root_dir()?).arg("load").arg(image::archive()?);
        run(&mut load).context("load the test images")?;
        scratch.dir("registries")?;
        Ok(Self { scratch: scratch.clone(), cni: None })
    }

    /// Pods are connected by CNI plugins, once there is a configuration.
    pub fn with_cni(self, cni: &CniConfig) -> Self {
        Self { cni: Some(cni.clone()), ..self }
    }

    /// The path of its CRI socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("run/engine.sock")
    }

    /// Sends pulls of image references with this `host` to the registry. It is read at each pull.
    pub fn use_registry(&self, host: &str, registry: &Registry) -> Result<()> {
        let dir = self.scratch.dir("registries")?.join(host);
        fs::create_dir_all(&dir)?;
        Ok(fs::write(dir.join("hosts.toml"), hosts_toml(&registry.address()))?)
    }

    /// Imports a docker-archive through the agent, which runs.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let mut load = Command::new(Agent::program()?);
        load.env("PODWRIGHT_RUN_DIR", self.scratch.run_dir()?).args(["image", "load"]).arg(archive);
        run(&mut load).map(drop)
    }

    /// SIGKILL to the zygote and to every shim; containers keep running.
    pub fn kill_shims(&self) -> Result<()> {
        for pid in self.processes() {
            // What was a launch in the list may be a container by now, in a cgroup of its own.
            if self.processes().contains(&pid) {
                host_state::kill9_and_wait(pid);
            }
        }
        Ok(())
    }

    /// Simulates a power cut: kills shims and containers, removes mounts, cgroups, the network and everything in /run, keeps disks. The
    /// agent must have been killed before.
    pub fn power_cut(&self) -> Result<()> {
        let (path, name) = (self.scratch.path(), self.scratch.name());
        host_state::kill_containers(&name, &path);
        host_state::unmount_below(&path);
        host_state::remove_cgroup(&name);
        host_state::make_cgroup(&name)?;
        host_state::delete_link(&name);
        network_state::delete_table(&name);
        let run = self.scratch.run_dir()?;
        fs::remove_dir_all(&run).with_context(|| format!("remove {}", run.display()))?;
        // The kernel's boot id stays the same: the note of the engine is of another one instead.
        let note = self.scratch.root_dir()?.join("engine/boot");
        fs::write(&note, "another boot\n/run\n").with_context(|| format!("write {}", note.display()))
    }

    /// The zygote and the shims that run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        shim_processes(&self.scratch)
    }
}

impl NodeRuntime for EngineBed {
    fn endpoint(&self) -> Option<String> {
        None
    }

    fn arguments(&self) -> Vec<OsString> {
        let name = self.scratch.name();
        let names: [(&str, OsString); 2] = [
            ("--engine-cgroup", format!("/{name}/{SHIM_CGROUP}").into()),
            ("--engine-registries", self.scratch.path().join("registries").into()),
        ];
        let network: Vec<(&str, OsString)> = match &self.cni {
            Some(CniConfig { conf_dir, bin_dir, .. }) => {
                vec![("--engine-cni-conf-dir", conf_dir.into()), ("--engine-cni-bin-dir", bin_dir.into())]
            }
            None => vec![
                ("--engine-bridge", name.clone().into()),
                ("--engine-table", name.into()),
                ("--pod-cidr", self.scratch.subnet().into()),
            ],
        };
        names.into_iter().chain(network).flat_map(|(flag, value)| [flag.into(), value]).collect()
    }

    fn objects(&self) -> Result<Vec<String>> {
        let mut found = engine_objects(&self.scratch, "run/engine")?;
        let leases = self.cni.iter().flat_map(CniConfig::leases);
        found.extend(leases.map(|address| format!("address {address}")));
        Ok(found)
    }
}

/// The objects of pods that an engine of this scratch has, with its built-in network. `run`: its directory of running pods.
pub(crate) fn engine_objects(scratch: &Scratch, run: &str) -> Result<Vec<String>> {
    let (path, name) = (scratch.path(), scratch.name());
    let mut found = Vec::new();
    for (kind, dir) in [
        ("sandbox", path.join("root/engine/sandboxes")),
        ("container", path.join("root/engine/containers")),
        ("shim directory", path.join(run).join("pods")),
        ("netns", path.join(run).join("netns")),
        ("cni result", path.join("root/engine/network/cni")),
    ] {
        found.extend(entries(&dir).into_iter().map(|entry| format!("{kind} {entry}")));
    }
    let shims = shim_processes(scratch).into_iter().filter(|pid| host_state::is_pod_shim(*pid));
    found.extend(shims.map(|pid| format!("shim {pid}")));
    let leases = files_below(&path.join("root/engine/network/leases"));
    let is_lease = |file: &&PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().parse::<std::net::IpAddr>().is_ok())
    };
    found.extend(leases.iter().filter(is_lease).map(|file| format!("address {}", file.display())));
    let links = entries(&Path::new("/sys/class/net").join(&name).join("brif"));
    found.extend(links.into_iter().map(|link| format!("link {link}")));
    found.extend(network_state::map_elements(&name)?.into_iter().map(|element| format!("port map {element}")));
    Ok(found)
}

/// The zygote and the shims of an engine of this scratch.
pub(crate) fn shim_processes(scratch: &Scratch) -> Vec<u32> {
    host_state::processes_of(&format!("{}/{SHIM_CGROUP}", scratch.name()))
}

fn entries(dir: &Path) -> Vec<String> {
    let listed = fs::read_dir(dir).into_iter().flatten().flatten();
    listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    listed.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
