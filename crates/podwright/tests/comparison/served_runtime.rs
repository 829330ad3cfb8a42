//! A runtime in a process of its own, for the Go kubelet.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use podwright_testbed::{Containerd, EngineBed, EngineProcess, Flavor, NodeRuntime, Scratch};

pub(crate) enum ServedRuntime {
    Containerd(Box<Containerd>),
    Engine(EngineProcess),
}

impl ServedRuntime {
    /// Starts it with the test images.
    pub(crate) fn start(scratch: &Scratch, flavor: Flavor) -> Result<Self> {
        if flavor == Flavor::Engine {
            EngineBed::prepare(scratch)?;
            return Ok(Self::Engine(EngineProcess::start(scratch)?));
        }
        Ok(Self::Containerd(Box::new(Containerd::start(scratch, flavor)?)))
    }

    /// The path of its CRI socket.
    pub(crate) fn socket(&self) -> PathBuf {
        match self {
            Self::Containerd(containerd) => containerd.socket(),
            Self::Engine(engine) => engine.socket(),
        }
    }

    fn node_runtime(&self) -> &dyn NodeRuntime {
        match self {
            Self::Containerd(containerd) => &**containerd,
            Self::Engine(engine) => engine,
        }
    }
}

impl NodeRuntime for ServedRuntime {
    fn endpoint(&self) -> Option<String> {
        self.node_runtime().endpoint()
    }

    fn arguments(&self) -> Vec<OsString> {
        self.node_runtime().arguments()
    }

    fn objects(&self) -> Result<Vec<String>> {
        self.node_runtime().objects()
    }
}
