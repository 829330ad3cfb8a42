//! Our own agent as a process, started as a user starts it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent_config::{agent_config, write_config};
use crate::cache::Cache;
use crate::containerd::Containerd;
use crate::http::{HttpResponse, free_port, get};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// The arguments of an agent.
#[derive(Debug)]
pub struct AgentBuilder {
    scratch: Scratch,
    hostname: String,
    endpoint: String,
    changes: Value,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
}

/// A running `podwright run`.
#[derive(Debug)]
pub struct Agent {
    scratch: Scratch,
    address: String,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    process: Process,
}

impl AgentBuilder {
    /// The runtime it uses.
    pub fn runtime(self, containerd: &Containerd) -> Self {
        self.endpoint(&containerd.endpoint())
    }

    /// The runtime's endpoint, for a runtime other than [`Containerd`].
    pub fn endpoint(mut self, endpoint: &str) -> Self {
        endpoint.clone_into(&mut self.endpoint);
        self
    }

    /// The node's name; the default is `node`.
    pub fn hostname(mut self, name: &str) -> Self {
        name.clone_into(&mut self.hostname);
        self
    }

    /// Fields of KubeletConfiguration, merged into the testbed's.
    pub fn config(mut self, changes: Value) -> Self {
        self.changes = changes;
        self
    }

    /// Makes it a node of a cluster; see [`crate::ControlPlane::node_kubeconfig`].
    pub fn kubeconfig(self, path: &Path) -> Self {
        self.arg("--kubeconfig").arg(path)
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// One more variable of its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits for `/healthz`.
    pub fn start(self) -> Result<Agent> {
        let scratch = self.scratch;
        let config = agent_config(&scratch, &self.endpoint, &self.changes)?;
        let config = write_config(&scratch, "podwright.yaml", &config)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut arguments: Vec<OsString> = vec!["run".into()];
        let pairs: [(&str, OsString); 7] = [
            ("--config", config.into()),
            ("--pod-manifest-path", scratch.manifests()?.into()),
            ("--container-runtime-endpoint", self.endpoint.into()),
            ("--root-dir", scratch.root_dir()?.into()),
            ("--run-dir", scratch.run_dir()?.into()),
            ("--hostname-override", self.hostname.into()),
            ("--listen", address.clone().into()),
        ];
        arguments.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.into(), value]));
        arguments.extend(self.arguments);
        let mut environment = vec![("PODWRIGHT_LOG_LINK_DIR".to_owned(), scratch.log_links()?.display().to_string())];
        environment.extend(self.environment);
        let process = launch(&scratch, &arguments, &environment)?;
        let mut agent = Agent { scratch, address, arguments, environment, process };
        agent.wait_healthy()?;
        Ok(agent)
    }
}

impl Agent {
    /// A builder for an agent of this scratch.
    #[expect(clippy::new_ret_no_self, reason = "an agent is first configured, then started")]
    pub fn new(scratch: &Scratch) -> AgentBuilder {
        AgentBuilder {
            scratch: scratch.clone(),
            hostname: "node".to_owned(),
            endpoint: String::new(),
            changes: json!({}),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// The path of the tested binary: `PODWRIGHT_BIN`, else next to the test in the target directory.
    pub fn program() -> Result<PathBuf> {
        if let Some(given) = env::var_os("PODWRIGHT_BIN") {
            return Ok(given.into());
        }
        program_next_to_tests("podwright")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address of `--listen`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The file with its output.
    pub fn log_path(&self) -> &Path {
        self.process.log_path()
    }

    /// Its log, over all restarts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGKILL; containers keep running.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }

    /// SIGTERM, and wait up to 10 s for its exit; containers keep running.
    pub fn sigterm(&mut self) -> Result<ExitStatus> {
        self.process.terminate(Duration::from_secs(10))
    }

    /// Any other signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Its exit status, if it has exited.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Start again with the same arguments, after [`Self::kill9`] or [`Self::sigterm`], and wait for `/healthz`.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch_again()?;
        self.wait_healthy()
    }

    /// As [`Self::start_again`], without waiting.
    pub fn launch_again(&mut self) -> Result<()> {
        self.process = launch(&self.scratch, &self.arguments, &self.environment)?;
        Ok(())
    }

    /// Stops it with SIGTERM and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.sigterm()?;
        self.start_again()
    }

    /// Set a variable for its next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// `GET path` on `--listen`.
    pub fn get(&self, path: &str) -> Result<HttpResponse> {
        get(&self.address, path)
    }

    /// The v1 PodList of `/pods`.
    pub fn pods(&self) -> Result<Value> {
        let response = self.get("/pods")?;
        ensure!(response.status == 200, "/pods: status {}: {}", response.status, response.body);
        serde_json::from_str(&response.body).context("/pods is not JSON")
    }

    /// One pod of `/pods`, by its name; names of static pods end with the node's name.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        Ok(find_pod(&self.pods()?, name))
    }

    fn wait_healthy(&mut self) -> Result<()> {
        wait_until(Duration::from_secs(30), "the agent to be healthy", || {
            if let Some(status) = self.process.exited()? {
                // Waiting is useless; the panic drops the process, which prints its log.
                panic!("the agent has exited with {status}");
            }
            let status = self.get("/healthz")?.status;
            ensure!(status == 200, "/healthz: status {status}");
            Ok(())
        });
        Ok(())
    }
}

/// The path of a program that cargo has built, by its name.
pub(crate) fn program_next_to_tests(name: &str) -> Result<PathBuf> {
    let test = env::current_exe()?;
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("no program {name} near {}: run `cargo build --workspace --bins`, or set PODWRIGHT_BIN", test.display())
    })
}

/// The pod of a PodList with this name.
pub(crate) fn find_pod(list: &Value, name: &str) -> Option<Value> {
    list["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == name).cloned()
}

fn launch(scratch: &Scratch, arguments: &[OsString], environment: &[(String, String)]) -> Result<Process> {
    let mut command = Command::new(Agent::program()?);
    command.args(arguments).env("PATH", Cache::find().search_path(false));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Process::start(scratch, "podwright", &mut command)
}
