//! `podwright engine` with its own directories and names, and a registry with the images of critest as the mirror of all others.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_linux::cgroup::{CgroupPath, CgroupTree};
use podwright_linux::mountinfo;
use podwright_testbed::{Cache, CniConfig, CritestImages, EngineProcess, Registry, Scratch};
use serde_json::json;

/// How the engine connects pods.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PodNetwork {
    Builtin,
    Cni,
}

/// The engine for a peer, and its registry.
pub(crate) struct PeerEngine {
    network: PodNetwork,
    engine: EngineProcess,
    _registry: Registry,
    pub(crate) scratch: Scratch,
}

impl PeerEngine {
    /// Returns when the socket is served.
    pub(crate) fn start(network: PodNetwork) -> Result<Self> {
        let scratch = Scratch::new()?;
        let registry = Registry::start(&scratch)?;
        CritestImages::build()?.push(&registry)?;
        let mirrors = scratch.dir("certs.d/_default")?;
        fs::write(mirrors.join("hosts.toml"), format!("server = \"http://{}\"\n", registry.address()))?;
        let mut flags: Vec<OsString> = vec!["--registry-config-path".into(), scratch.path().join("certs.d").into()];
        let mut variables = vec![];
        match network {
            PodNetwork::Builtin => {
                let pairs =
                    [("--bridge", scratch.name()), ("--table", scratch.name()), ("--pod-cidr", scratch.subnet())];
                flags.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]));
            }
            PodNetwork::Cni => {
                let cni = CniConfig::new(&scratch)?;
                cni.write(&[json!({"type": "portmap", "capabilities": {"portMappings": true}})])?;
                flags.extend(["--cni-conf-dir".into(), cni.conf_dir.into()]);
                flags.extend(["--cni-bin-dir".into(), cni.bin_dir.into()]);
                // The port map plugin calls it by its name.
                let iptables = Cache::find().debian("iptables")?;
                let path = std::env::var_os("PATH").unwrap_or_default();
                let dirs = iptables.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
                variables.push(("PATH", std::env::join_paths(dirs)?));
            }
        }
        let engine = EngineProcess::start_with(&scratch, |command| _ = command.args(flags).envs(variables))?;
        Ok(Self { network, engine, _registry: registry, scratch })
    }

    /// A Go peer as a client of this engine, with its temporary files in the directory of the test.
    pub(crate) fn client(&self, peer: &str) -> Result<Command> {
        let dir = self.scratch.path();
        let mut command = Command::new(Cache::find().peer(peer)?);
        command.env("HOME", &dir).env("TMPDIR", self.scratch.dir("tmp")?).current_dir(&dir);
        command.args(["--config", "/dev/null", "--runtime-endpoint"]).arg(self.engine.endpoint());
        Ok(command)
    }

    /// Ends an engine without pods, and checks that nothing of them is left.
    pub(crate) fn end(mut self) -> Result<()> {
        let status = self.engine.terminate(Duration::from_secs(20))?;
        ensure!(status.success(), "the engine has ended with {status}");
        assert_eq!(self.left()?, Vec::<String>::new(), "left behind");
        Ok(())
    }

    fn left(&self) -> Result<Vec<String>> {
        let dir = self.scratch.path();
        let mut left = vec![];
        for name in ["root/engine/sandboxes", "root/engine/containers", "run/pods", "run/netns", "tmp"] {
            let entries = fs::read_dir(dir.join(name)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        let mounts = mountinfo::read()?;
        left.extend(
            mounts.iter().filter(|m| m.point.starts_with(&dir)).map(|m| format!("mount {}", m.point.display())),
        );
        // Plugins leave their bridge.
        let is_ours = |link: &String| self.network == PodNetwork::Builtin || *link != self.scratch.name();
        left.extend(links()?.into_iter().filter(is_ours).map(|link| format!("link {link}")));
        let tree = CgroupTree::detect()?;
        let pods = CgroupPath::parse(&format!("{}/pods", self.scratch.cgroup_root()))?;
        left.extend(tree.children(&pods)?.into_iter().map(|name| format!("cgroup {name}")));
        Ok(left)
    }
}

/// The links of this network namespace but the loopback interface.
fn links() -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/net/dev").context("read the links")?;
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    Ok(names.filter(|name| name != "lo").collect())
}
