//! `podwright engine`: the engine in a process of its own, with the names and directories of a scratch.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::agent::Agent;
use crate::engine_bed::{SHIM_CGROUP, engine_objects, shim_processes};
use crate::node_runtime::NodeRuntime;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// An engine that serves the CRI to others. Dropping it kills the engine; its pods end with the scratch.
#[derive(Debug)]
pub struct EngineProcess {
    scratch: Scratch,
    process: Process,
}

impl EngineProcess {
    /// Starts it with the built-in network; returns when its socket is served.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let name = scratch.name();
        let network = [("--bridge", name.clone()), ("--table", name), ("--pod-cidr", scratch.subnet())];
        let arguments: Vec<OsString> =
            network.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]).collect();
        Self::start_with(scratch, |command| _ = command.args(arguments))
    }

    /// Starts it with the flags and variables that `configure` adds.
    pub fn start_with(scratch: &Scratch, configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = Command::new(Agent::program()?);
        command.arg("engine").arg("--listen").arg(endpoint(scratch));
        command.arg("--root-dir").arg(scratch.root_dir()?).arg("--run-dir").arg(scratch.run_dir()?);
        command.arg("--shim-cgroup").arg(format!("{}/{SHIM_CGROUP}", scratch.cgroup_root()));
        command.arg("--pod-cgroup").arg(format!("{}/pods", scratch.cgroup_root()));
        configure(&mut command);
        let process = Process::start(scratch, "engine", &mut command)?;
        let mut engine = Self { scratch: scratch.clone(), process };
        wait_until(Duration::from_secs(30), "the socket of the engine", || {
            if let Some(status) = engine.process.exited()? {
                panic!("the engine has exited with {status}");
            }
            ensure!(engine.socket().exists(), "no socket");
            Ok(())
        });
        Ok(engine)
    }

    /// The path of its CRI socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.scratch)
    }

    /// In the form of `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        endpoint(&self.scratch)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Itself, the zygote and the shims.
    pub fn processes(&self) -> Vec<u32> {
        shim_processes(&self.scratch).into_iter().chain([self.pid()]).collect()
    }

    /// SIGTERM, and wait for the end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.terminate(limit)
    }
}

impl NodeRuntime for EngineProcess {
    fn endpoint(&self) -> Option<String> {
        Some(self.endpoint())
    }

    fn arguments(&self) -> Vec<OsString> {
        Vec::new()
    }

    fn objects(&self) -> Result<Vec<String>> {
        engine_objects(&self.scratch, "run")
    }
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path().join("cri.sock")
}

fn endpoint(scratch: &Scratch) -> String {
    format!("unix://{}", socket(scratch).display())
}
