//! The runtime of a test: a containerd of its own, or the engine in the agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::containerd::{Containerd, Flavor};
use crate::engine_bed::EngineBed;
use crate::host_state;
use crate::registry::Registry;
use crate::scratch::Scratch;

/// The settings that an agent needs for its runtime, and the objects that tests check in it.
pub trait NodeRuntime {
    /// In the form of `--container-runtime-endpoint`; `None`: the default of the agent, which is its own engine.
    fn endpoint(&self) -> Option<String>;

    /// More flags of the agent that uses it.
    fn arguments(&self) -> Vec<OsString>;

    /// The objects of pods that it has, one line each.
    fn objects(&self) -> Result<Vec<String>>;
}

/// The runtime of one node.
#[derive(Debug)]
pub enum TestRuntime {
    /// A separate process.
    Containerd(Box<Containerd>),
    /// In the agent.
    Engine(EngineBed),
}

impl TestRuntime {
    /// Prepares it in the scratch, with the test images.
    pub fn start(scratch: &Scratch, flavor: Flavor) -> Result<Self> {
        Ok(match flavor {
            Flavor::Engine => Self::Engine(EngineBed::prepare(scratch)?),
            flavor => Self::Containerd(Box::new(Containerd::start(scratch, flavor)?)),
        })
    }

    /// The path of its CRI socket. The engine serves one while the agent runs.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Containerd(containerd) => containerd.socket(),
            Self::Engine(engine) => engine.socket(),
        }
    }

    /// Sends pulls of image references with this `host` to the registry.
    pub fn use_registry(&self, host: &str, registry: &Registry) -> Result<()> {
        match self {
            Self::Containerd(containerd) => containerd.use_registry(host, registry),
            Self::Engine(engine) => engine.use_registry(host, registry),
        }
    }

    /// Imports a docker-archive while the agent runs.
    pub fn import(&self, archive: &Path) -> Result<()> {
        match self {
            Self::Containerd(containerd) => containerd.import(archive),
            Self::Engine(engine) => engine.import(archive),
        }
    }

    /// Kills it with SIGKILL while containers keep running: containerd, which stays down until [`Self::start_again`]; of the engine the
    /// zygote and the shims, which the agent replaces.
    pub fn kill9(&mut self) -> Result<()> {
        match self {
            Self::Containerd(containerd) => containerd.kill9(),
            Self::Engine(engine) => engine.kill_shims(),
        }
    }

    /// After [`Self::kill9`] or [`Self::power_cut`]. The engine starts with the agent.
    pub fn start_again(&mut self) -> Result<()> {
        match self {
            Self::Containerd(containerd) => containerd.start_again(),
            Self::Engine(_) => Ok(()),
        }
    }

    /// Stops its processes with SIGSTOP: containerd, or the zygote and the shims of the engine.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// After [`Self::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let pids = match self {
            Self::Containerd(containerd) => vec![containerd.pid()],
            Self::Engine(engine) => engine.processes(),
        };
        pids.into_iter().try_for_each(|pid| host_state::send_signal(pid, signal))
    }

    /// Simulates a power cut: kills everything, removes mounts, cgroups and everything in /run, keeps disks. The agent must have been
    /// killed before.
    pub fn power_cut(&mut self) -> Result<()> {
        match self {
            Self::Containerd(containerd) => containerd.power_cut(),
            Self::Engine(engine) => engine.power_cut(),
        }
    }

    /// For tests of containerd itself.
    pub fn containerd(&mut self) -> Result<&mut Containerd> {
        match self {
            Self::Containerd(containerd) => Ok(containerd),
            Self::Engine(_) => None.context("this runtime is not containerd"),
        }
    }
}

impl NodeRuntime for TestRuntime {
    fn endpoint(&self) -> Option<String> {
        match self {
            Self::Containerd(containerd) => NodeRuntime::endpoint(&**containerd),
            Self::Engine(engine) => engine.endpoint(),
        }
    }

    fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::Containerd(containerd) => containerd.arguments(),
            Self::Engine(engine) => engine.arguments(),
        }
    }

    fn objects(&self) -> Result<Vec<String>> {
        match self {
            Self::Containerd(containerd) => containerd.objects(),
            Self::Engine(engine) => engine.objects(),
        }
    }
}

impl NodeRuntime for Containerd {
    fn endpoint(&self) -> Option<String> {
        Some(self.endpoint())
    }

    fn arguments(&self) -> Vec<OsString> {
        Vec::new()
    }

    fn objects(&self) -> Result<Vec<String>> {
        Ok(self.containers()?.into_iter().map(|id| format!("container {id}")).collect())
    }
}
